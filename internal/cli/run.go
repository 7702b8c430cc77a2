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

// executorName is the name in status.executor of a Turn that runs without a cluster.
const executorName = "local"

// errInterrupted is the cause of a run that Ctrl-C stopped and that a later run can continue.
var errInterrupted = errors.New("interrupted")

// runCommand holds the flags of capstan run.
type runCommand struct {
	*source
	secrets []string
	dataDir string
	quiet   bool
	approve approvalMode
	// wentOn reports whether this run continued a Turn that an earlier run had started. undecided lists the calls
	// that still require an approval, for messages.
	wentOn    bool
	undecided []string
}

func newRun(env Environment) *cobra.Command {
	r := &runCommand{source: newSource(env), approve: approveAsk}
	cmd := &cobra.Command{
		Use:   "run -f PATH... [--turn NAME]",
		Short: "Run a Turn here, without a cluster",
		Long: `run runs a Turn from manifests on this machine, with the same objects, the same engine and the same
record as in a cluster. It prints the whole answer to standard output, and everything else to standard
error. -o json and -o yaml print the finished Turn instead, whose status contains the first 32 KiB of the
answer. spec.ttlSecondsAfterFinished has no effect here.

Keys come from Secrets in the manifests, or with --env-secret from the environment. They are never
printed or stored.

With --data-dir, run keeps the journal. The same Turn with the same Agent, PromptProfile, ModelProviders,
ConfigMaps, skills and --now then continues where it stopped, or shows its result again, without paying
twice for the same replies. Any change makes it a new Turn. Only one run at a time may use a folder.
capstan logs shows what a Turn did, even while it runs.

The Turns of a Session run one after another, and each sees the earlier messages. If the manifests do not
contain the Session, run creates it. The history of a Session belongs to its name, whatever else changes.

Tools come from the ToolServers in the manifests, which may be on this machine. Sub-agents run here, too.
If a tool call requires approval, run shows the call and asks at a terminal. Without a terminal, the Turn
waits (exit code 3), and continues when the same command with the same --data-dir runs at a terminal.
--approve=all approves all such calls, --approve=none denies them.

Standard error shows each request, reply and call on its own line as it happens, and on a terminal also
the current activity. --quiet hides these lines only.

Ctrl-C stops the run at once. A second Ctrl-C kills the program.

` + exitCodesHelp,
		Example: `  # start a fake model server in another terminal
  go run ./hack/fakemodel --listen 127.0.0.1:8089 --rules hack/fakemodel/rules.yaml

  # run the only Turn of these manifests
  capstan run -f examples/quickstart

  # take a key from the environment, and print the finished Turn as YAML
  MODEL_KEY=demo-key capstan run -f examples/quickstart --env-secret demo-model/apiKey=MODEL_KEY -o yaml

  # use the skills that the manager offers to every Agent
  capstan run -f examples/quickstart --skills-file skills.yaml

  # keep the journal, so that the Turn can continue after an interruption
  capstan run -f examples/quickstart --data-dir data`,
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(cmd.Context(), args) },
	}
	r.addFlags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&r.secrets, "env-secret", nil,
		"set a Secret's key from an environment variable, as [NAMESPACE/]NAME/KEY=ENVVAR; may be repeated")
	f.StringVar(&r.dataDir, "data-dir", "", "folder for the journal, created if necessary; default: keep no journal")
	f.Var(&r.approve, "approve", "decision about tool calls that require approval")
	f.BoolVarP(&r.quiet, "quiet", "q", false, "do not show requests, replies and calls as they happen")
	r.complete(cmd)
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("approve", cobra.FixedCompletions(approvalModes, cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("env-secret", cobra.NoFileCompletions))
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	return cmd
}

func (r *runCommand) run(ctx context.Context, args []string) error {
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
	t.Generation = 1 // the generation of an object that was created and never changed
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

// endedBefore ends or suspends a Turn that must not run, as a cluster does before it binds one, and reports whether
// it did.
func endedBefore(t *v1alpha1.Turn, now time.Time) bool {
	switch t.Spec.DesiredState {
	case v1alpha1.DesiredStateCancelled:
		t.Status.StopReason = v1alpha1.StopCancelled
		translate.End(t, metav1.ConditionFalse, v1alpha1.TurnReasonCancelled, "the turn was cancelled before it ran", now)
		return true
	case v1alpha1.DesiredStateSuspended:
		translate.Wait(t, v1alpha1.TurnReasonSuspended, "the turn is suspended; set desiredState to Active to continue", now)
		return true
	case v1alpha1.DesiredStateActive:
	}
	return false
}

// execute runs the Turn from its start or from its journal, and writes its status. The result is nil if the Turn
// did not run or if it waits.
func (r *runCommand) execute(ctx context.Context, p *bundle, t *v1alpha1.Turn) (result *turn.Result, err error) {
	// A second signal kills the program, which is its default effect.
	watched, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	defer context.AfterFunc(watched, release)()
	steady := context.WithoutCancel(ctx)
	life, abandon := context.WithCancelCause(steady)
	defer abandon(nil)

	j, err := r.newLocalRun(steady, p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.close()) }()
	j.watched, j.life = watched, life
	before, err := j.store.earlierRuns(steady, string(t.UID))
	if err != nil {
		return nil, fail(ExitFailed, err)
	}
	if closed, err := r.enterSession(steady, p, t, j.store, before); err != nil || closed {
		return nil, err
	}
	if r.dataDir == "" {
		j.cancel = watched // without a journal, the Turn cannot be continued
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

// storePatience is how long the store of a run may fail. The store is a local file, so a longer wait would not
// help.
const storePatience = 10 * time.Second

// stopped returns the error for a Turn that has not ended.
func (r *runCommand) stopped(p *bundle, t *v1alpha1.Turn, err error, interrupted bool) error {
	if interrupted {
		message := p.title() + ": interrupted before it ended"
		if r.dataDir != "" {
			message += "; run the same command again to continue"
		}
		return fail(ExitInterrupted, errors.New(message))
	}
	return fail(ExitFailed, fmt.Errorf("%s (journal key %s) has not ended: %w", p.title(), t.UID, err))
}
