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
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
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
}

func newRun(env Environment) *cobra.Command {
	r := &runner{source: newSource(env)}
	cmd := &cobra.Command{
		Use:   "run -f PATH... [--turn NAME]",
		Short: "Run a Turn here, without a cluster",
		Long: `run runs a Turn of manifests on this machine: the same objects, the same engine and the same record as in a cluster. The
answer goes to standard output, whole; all else to standard error. -o json and -o yaml print the finished Turn instead,
whose status holds the first 32 KiB of the answer. spec.ttlSecondsAfterFinished has no effect here.

Keys come from Secrets of the manifests, or with --env-secret from the environment. They are never printed or kept.

With --data-dir the journal is kept. The same Turn with the same Agent, PromptProfile, ModelProviders, ConfigMaps, skills
and --now then goes on where it stopped, or shows what came of it; what was paid for is not bought again. Anything that
changes makes it a new Turn.

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
	r.complete(cmd)
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
	cache := providers.NewCache(p.readSecret, r.env.Now)
	defer cache.Close()
	chain, err := r.chain(ctx, p, cache)
	if err != nil {
		return err
	}
	result, err := r.execute(ctx, p, t, chain)
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

// execute runs the Turn, or goes on with it, and writes its status. The result is nil if the Turn has not ended.
func (r *runner) execute(ctx context.Context, p *project, t *v1alpha1.Turn, chain []translate.Link) (result *turn.Result, err error) {
	// A second signal has its usual effect, which is to kill.
	watched, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	defer context.AfterFunc(watched, release)()
	cause := turn.ErrCancelled
	if r.dataDir != "" {
		cause = errInterrupted
	}
	steady := context.WithoutCancel(ctx)
	work, cancel := context.WithCancelCause(steady)
	defer cancel(nil)
	defer context.AfterFunc(watched, func() { cancel(cause) })()

	store, err := r.openStore(steady)
	if err != nil {
		return nil, fail(ExitFailed, err)
	}
	defer func() { err = errors.Join(err, store.close()) }()
	past, err := store.Load(steady, string(t.UID))
	if err != nil {
		return nil, fail(ExitFailed, fmt.Errorf("failed to load the journal: %w", err))
	}
	binding := r.bind(t, past)
	in, err := translate.Input(t, p.agent, chain, func(ctx context.Context) (prepare.Input, error) {
		return translate.Preparation(ctx, p.objects(), t.Status.StartTime.Time)
	})
	if err != nil {
		return nil, fail(ExitFailed, p.located(err.Error()))
	}
	in.Epoch = binding.epoch
	engine := &turn.Engine{Journal: store, Now: r.clock()}
	result, err = engine.Run(work, in)
	if err != nil {
		return nil, r.stopped(p, t, err, work.Err() != nil)
	}
	translate.Finish(t, result, binding.end(r.clock()))
	return result, nil
}

// stopped says why a Turn has not ended.
func (r *runner) stopped(p *project, t *v1alpha1.Turn, err error, interrupted bool) error {
	switch {
	case interrupted:
		message := p.title() + ": interrupted before it ended"
		if r.dataDir != "" {
			message += "; run the same command again to go on"
		}
		return fail(ExitInterrupted, errors.New(message))
	case errors.Is(err, journal.ErrFenced), errors.Is(err, journal.ErrSequence):
		return fail(ExitFailed, fmt.Errorf("%s: another capstan runs it with the same --data-dir: wait for that one, or use another folder", p.title()))
	}
	return fail(ExitFailed, fmt.Errorf("%s (journal key %s) has not ended: %w", p.title(), t.UID, err))
}
