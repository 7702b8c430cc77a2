package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// executorName is what status.executor names where no cluster binds a Turn.
const executorName = "local"

// errInterrupted is the cause of a run that Ctrl-C stopped and that a later one goes on from.
var errInterrupted = errors.New("interrupted")

// runner holds the flags of run.
type runner struct {
	*source
	secrets []string
	dataDir string
	quiet   bool
	approve approvalMode
	// wentOn is true for a Turn that an earlier run has begun and not ended. undecided are the calls that nobody has decided about, for people.
	wentOn    bool
	undecided []string
}

func newRun(env Environment) *cobra.Command {
	r := &runner{source: newSource(env), approve: approveAsk}
	cmd := &cobra.Command{
		Use:   "run -f PATH... [--turn NAME]",
		Short: "Run a Turn here, without a cluster",
		Long: `run runs a Turn of manifests on this machine: the same objects, the same engine and the same record as in a cluster. The
answer goes to standard output, whole; all else to standard error. -o json and -o yaml print the finished Turn instead,
whose status holds the first 32 KiB of the answer. spec.ttlSecondsAfterFinished has no effect here.

Keys come from Secrets of the manifests, or with --env-secret from the environment. They are never printed or kept.

With --data-dir the journal is kept. The same Turn with the same Agent, PromptProfile, ModelProviders, ConfigMaps, skills
and --now then goes on where it stopped, or shows what came of it; what was paid for is not bought again. Anything that
changes makes it a new Turn. The Turns of a Session are run one after another, and each sees what was said before; a Session
that the manifests do not hold is made. Its history belongs to its name, whatever else changes. capstan logs shows what a
Turn did, also while it runs. One run at a time works with a folder.

Tools are those of the manifests' ToolServers, which may be on this machine, too. A sub-agent's Turn runs here as well. Where a call
needs approval, run shows it at a terminal and asks; without one the Turn waits (exit code 3), and goes on when it is run again with
the same --data-dir at a terminal. --approve=all approves all such calls, --approve=none denies them.

Standard error shows each request, reply and call as it happens, on a line of its own, and on a terminal also what goes on just now.
--quiet leaves these out, and only these.

Ctrl-C stops the run at once; a second one kills the program.

` + exitCodesHelp,
		Example: `  # start a model server to try it with, in another terminal
  go run ./hack/fakemodel --listen 127.0.0.1:8089 --rules hack/fakemodel/rules.yaml

  # run the one Turn of these manifests
  capstan run -f examples/quickstart

  # with a key from the environment, and the finished Turn as YAML
  MODEL_KEY=demo-key capstan run -f examples/quickstart --env-secret demo-model/apiKey=MODEL_KEY -o yaml

  # with the skills that the manager offers to every Agent
  capstan run -f examples/quickstart --skills-file skills.yaml

  # so that it can go on after an interruption
  capstan run -f examples/quickstart --data-dir data`,
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(cmd.Context(), args) },
	}
	r.addFlags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&r.secrets, "env-secret", nil,
		"set a Secret's key from an environment variable, as [NAMESPACE/]NAME/KEY=ENVVAR; may be repeated")
	f.StringVar(&r.dataDir, "data-dir", "", "folder to keep the journal in, made if it is not there; default: keep none")
	f.Var(&r.approve, "approve", "what becomes of calls that a person must approve")
	f.BoolVarP(&r.quiet, "quiet", "q", false, "show no requests, replies and calls as they happen")
	r.complete(cmd)
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("approve", cobra.FixedCompletions(approvalModes, cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("env-secret", cobra.NoFileCompletions))
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	return cmd
}

func (r *runner) run(ctx context.Context, args []string) error {
	p, err := r.load(ctx, args)
	if err != nil {
		return err
	}
	for _, spec := range r.secrets {
		if err := p.set.SetSecretFromEnv(spec, r.env.LookupEnv); err != nil {
			return fail(ExitUsage, fmt.Errorf("--env-secret: %w", err))
		}
	}
	t := p.turn.DeepCopy()
	t.Generation = 1 // as of any object that was created and not changed since
	if t.UID, err = p.identity(ctx, r.now.Time); err != nil {
		return fail(ExitFailed, err)
	}
	if endedBefore(t, r.clock()()) {
		return r.report(p, t, nil)
	}
	result, err := r.execute(ctx, p, t)
	if err != nil {
		return err
	}
	return r.report(p, t, result)
}

// endedBefore ends or suspends a Turn that is not to run, as a cluster does before it binds one, and reports whether it
// did.
func endedBefore(t *v1alpha1.Turn, now time.Time) bool {
	switch t.Spec.DesiredState {
	case v1alpha1.DesiredStateCancelled:
		t.Status.StopReason = v1alpha1.StopCancelled
		translate.End(t, metav1.ConditionFalse, v1alpha1.TurnReasonCancelled, "the turn was cancelled before it ran", now)
		return true
	case v1alpha1.DesiredStateSuspended:
		translate.Wait(t, v1alpha1.TurnReasonSuspended, "the turn is suspended; set desiredState to Active to go on", now)
		return true
	case v1alpha1.DesiredStateActive:
	}
	return false
}

// execute runs the Turn, or goes on with it, and writes its status. The result is nil if the Turn was not run, or waits.
func (r *runner) execute(ctx context.Context, p *project, t *v1alpha1.Turn) (result *turn.Result, err error) {
	// A second signal has its usual effect, which is to kill.
	watched, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	defer context.AfterFunc(watched, release)()
	steady := context.WithoutCancel(ctx)
	life, abandon := context.WithCancelCause(steady)
	defer abandon(nil)

	j, err := r.newJob(steady, p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.close()) }()
	j.watched, j.life = watched, life
	before, err := j.store.past(steady, string(t.UID))
	if err != nil {
		return nil, fail(ExitFailed, err)
	}
	if closed, err := r.converse(steady, p, t, j.store, before); err != nil || closed {
		return nil, err
	}
	if r.dataDir == "" {
		j.cancel = watched // nothing would be left to go on with
	} else {
		defer context.AfterFunc(watched, func() { abandon(errInterrupted) })()
	}
	w, err := j.begin(p, t, r.bind(t, before))
	if err != nil {
		return nil, err
	}
	r.wentOn = before.last.Seq > 0 && before.last.Kind != journal.Finalized
	err = j.drive(w) //nolint:contextcheck // because the job holds its life
	if waits, ok := errors.AsType[*loop.Parked](err); ok {
		w.park(waits)
		return nil, nil //nolint:nilnil // because the Turn waits, and its status says so
	}
	if err != nil {
		return nil, r.stopped(p, t, err, life.Err() != nil)
	}
	return w.result, nil
}

// storePatience is how long the store of a run may fail: it is a file of this machine, which does not come back by waiting
// for long.
const storePatience = 10 * time.Second

// stopped says why a Turn has not ended.
func (r *runner) stopped(p *project, t *v1alpha1.Turn, err error, interrupted bool) error {
	if interrupted {
		message := p.title() + ": interrupted before it ended"
		if r.dataDir != "" {
			message += "; run the same command again to go on"
		}
		return fail(ExitInterrupted, errors.New(message))
	}
	return fail(ExitFailed, fmt.Errorf("%s (journal key %s) has not ended: %w", p.title(), t.UID, err))
}
