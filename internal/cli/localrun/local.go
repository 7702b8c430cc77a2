package localrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/vectors"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/tracing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// localRun is one execution of capstan run. It holds the state that the Turn shares with the Turns of its
// sub-agents.
type localRun struct {
	*Options
	// Env replaces the Env of Options. If live is not nil, its writers erase the line of live first.
	Env       terminal.Environment
	store     *store
	providers *providers.Cache
	servers   *bundle.Connections
	// credentials are the credentials of providers and ToolServers. They are redacted in the journal.
	credentials *redact.Set
	// traces exports the parts of the Turns as spans. exportFailure is its last error, or nil. It is printed at the
	// end, because the exporter works beside the Turns: a line of it could interrupt a question.
	traces        *tracing.Provider
	exportFailure atomic.Pointer[error]
	// chains holds the chains of models by the AgentName of their Agent.
	chains map[string][]translate.Link
	// vectors are the vectors of the Agents' tools.
	vectors vectors.Cache
	// live shows the current activity. It is nil if there is no terminal or if --quiet is set.
	live *terminal.Spinner
	// watched ends at a signal, and life ends when the run is abandoned, which abandon does. cancel ends when the Turns
	// must be cancelled; if it is nil, they are never cancelled.
	watched, life context.Context //nolint:containedctx // because the Turns of sub-agents live no longer than that of their parent
	cancel        context.Context //nolint:containedctx // because it is a signal, and not the context of a call
	abandon       context.CancelCauseFunc
	// ask asks a person. It is nil if no person can be asked, or must not be asked. replies holds how the questions
	// have ended, and asking is the total time for which questions were open.
	ask     *terminal.Asker
	replies map[approvalKey]reply
	asking  time.Duration
}

// newLocalRun opens the journal, the models and the tools. All of them must exist before the Turn starts. Objects that
// differ between the Turns of a Batch, such as attachments, are not checked.
func (r *Options) newLocalRun(ctx context.Context, p *bundle.Bundle) (*localRun, error) {
	// A write to a closed pipe, as in capstan run 2>&1 | head, must fail and not kill the program: a call would be left
	// without its outcome, and a temporary journal would stay.
	signal.Ignore(syscall.SIGPIPE)
	j := &localRun{
		Options: r, Env: r.Env, credentials: redact.NewSet(), replies: map[approvalKey]reply{},
		chains: map[string][]translate.Link{},
	}
	j.providers = providers.NewCache(p.ReadSecret, r.Env.Now, netpolicy.NewLocalPolicy(), nil)
	j.providers.SetCredentialSet(j.credentials)
	var err error
	if j.traces, err = tracing.FromEnvironment(ctx, r.Env.LookupEnv, j.credentials.RedactFunc, func(err error) {
		j.exportFailure.Store(&err)
	}); err != nil {
		return nil, exit.WithCode(exit.Usage, err)
	}
	j.servers = p.Connect(&j.Env)
	j.servers.SetCredentialSet(j.credentials)
	if err := j.prepare(ctx, p); err != nil {
		j.providers.Close()
		j.servers.Close()
		return nil, err
	}
	if !r.Quiet {
		j.live = j.Env.StartSpinner()
	}
	if r.Env.CanAsk() && r.Approve == ApproveAsk {
		j.ask = terminal.NewAsker(j.Env)
	}
	return j, nil
}

// prepare finds the models and the Secrets of all Agents, and opens the journal. A Turn that is only ended from its
// journal needs no models and no Secrets.
func (j *localRun) prepare(ctx context.Context, p *bundle.Bundle) (err error) {
	if !j.hasJournals() || mayAskModels(p.Turn) {
		for _, member := range p.Team {
			if j.chains[member.AgentName()], err = member.Chain(ctx, j.providers, j.logWait); err != nil {
				return err
			}
			if err := member.CheckSecrets(ctx); err != nil {
				return err
			}
		}
	}
	if j.store, err = j.openStore(ctx); err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return nil
}

// logWait prints that a request waits for a ModelProvider. When the wait ends, the provider is empty, and logWait
// prints nothing: the journal then shows the request.
func (j *localRun) logWait(provider string) {
	if provider == "" || j.Quiet {
		return
	}
	message := turnstatus.WaitForProvider(provider)
	j.Env.Logf("%s", strings.ToUpper(message[:1])+message[1:])
}

// closeLive erases the line of live and stops the spinner.
func (j *localRun) closeLive() {
	if j.live != nil {
		j.live.Close()
		j.live = nil
	}
}

func (j *localRun) close(ctx context.Context) error {
	j.closeLive()
	j.servers.Close()
	j.providers.Close()
	j.closeTraces(ctx)
	return j.store.close()
}

// exportTimeout is the maximum time for sending the last spans at the end of a run.
const exportTimeout = 3 * time.Second

// closeTraces sends the last spans, and prints whether spans were lost. If the collector does not answer, the end of
// the run is delayed by exportTimeout.
func (j *localRun) closeTraces(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTimeout)
	defer cancel()
	if err := j.exportError(j.traces.Close(ctx)); err != nil {
		j.Env.Logf("Failed to export traces: %s", err)
	}
}

// exportError returns the last error of the exporter and the error of its end in one line, or nil if there is neither.
func (j *localRun) exportError(end error) error {
	last := j.exportFailure.Load()
	switch {
	case last == nil:
		return end
	case end == nil:
		return *last
	}
	return fmt.Errorf("%w; %w", *last, end)
}

// localTurn is the run of one Turn in a localRun.
type localTurn struct {
	*bundle.Bundle
	// turn holds the Turn with its status, and binding its binding.
	turn    *v1alpha1.Turn
	binding binding
	engine  *turn.Engine
	in      turn.Input
	// trace records the parts of the Turn.
	trace *tracing.Turn
	// redaction applies the redaction rules of the Agent to texts of the Turn.
	redaction *redact.TurnRedactor
	// begun is when the Turn's deadline started to run. asked is the value of localRun.asking at that moment.
	begun time.Time
	asked time.Duration
	// result is the result of the Turn. It is nil until the Turn has ended. unrecorded is the error because of which
	// the journal lacks the result, or nil.
	result     *turn.Result
	unrecorded error

	mu sync.Mutex
	// lastProgress is the progress of the Turn. It is nil until this run reports the first progress.
	lastProgress *turn.Progress
	// children holds the Turns of sub-agents by name.
	children map[string]*localTurn
}

// begin returns a Turn that is ready to run. If spanSeed is not empty, the IDs of its spans follow from it in place of
// the UID.
func (j *localRun) begin(ctx context.Context, p *bundle.Bundle, t *v1alpha1.Turn, b binding, spanSeed string) (*localTurn, error) {
	w := &localTurn{Bundle: p, turn: t, binding: b, asked: j.asking, children: map[string]*localTurn{}}
	w.begun = time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	redaction, err := translate.Redaction(ctx, p.Agent, j.credentials.RedactFunc(t.CredentialNamespaces()...))
	if err != nil {
		return nil, exit.WithCode(exit.Failed, p.Located(err.Error()))
	}
	objects := p.Objects()
	objects.Turn, objects.Redaction = t, redaction
	in, err := translate.Input(t, p.Agent, j.chains[p.AgentName()], p.Session, func(ctx context.Context) (prepare.Input, error) {
		return translate.Preparation(ctx, objects, t.Status.StartTime.Time)
	})
	if err != nil {
		return nil, exit.WithCode(exit.Failed, p.Located(err.Error()))
	}
	in.Epoch, in.Executor, in.Cancel = b.Epoch, executorName, j.cancel
	// The requester is not authenticated, because --data-dir belongs to one person. Without one, the journal, the
	// record and the memories of the Turn belong to the same user.
	in.Requester = cmp.Or(in.Requester, localUser)
	in.Attach, in.AttachBytes = p.Attachments(j.artifacts(t), redaction)
	in.About = translate.About(t, nil)
	in.Redact, in.Redactions = redaction.Redact, redaction.Take
	in.Toolbox, in.Selection.Pinned = j.toolbox(w), p.Profile.Spec.PinnedTools
	in.Decide = func(_ context.Context, a loop.Approval) (*loop.Decision, error) { return j.decide(w, a), nil }
	in.Progress, in.Recall = w.setProgress, j.recall(w)
	in.Child = func(ctx context.Context, c loop.Intent, _ string) (tool.Result, error) {
		return j.childUsage(ctx, w, c)
	}
	if in.Embeddings, err = j.embeddings(ctx, w); err != nil {
		return nil, err
	}
	in.NotEmbedded = func(failure *model.Error) {
		j.Env.Logf("note: memories and tools are selected only by their words, because the embeddings failed: %s", failure.Message)
	}
	w.trace = j.traces.OfSeed(t, cmp.Or(spanSeed, string(t.UID)))
	in.Observer, in.TraceID, in.SpanSeed = w.trace, w.trace.TraceID(), spanSeed
	w.in, w.engine, w.redaction = in, j.engine(ctx, w), redaction
	return w, nil
}

// setProgress stores the progress of the Turn.
func (w *localTurn) setProgress(p turn.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastProgress = &p
}

// park writes into the Turn's status what the Turn is waiting for.
func (w *localTurn) park(waits *loop.Parked) {
	w.mu.Lock()
	defer w.mu.Unlock()
	turnstatus.Park(w.turn, turnstatus.Run{Progress: w.lastProgress, StaysBound: true}, waits, w.binding.clock())
}

// engine returns the engine for a Turn. Unless --quiet is set, it prints the Turn's progress.
func (j *localRun) engine(ctx context.Context, w *localTurn) *turn.Engine {
	e := j.bareEngine()
	if !j.Quiet {
		question, _ := w.Message(ctx, w.turn) // the run itself reports the error
		if rules, err := translate.Rules(ctx, w.Agent); err == nil {
			question = rules.Redact(ctx, question, nil)
		}
		p := &progress{Journal: j.store, env: j.Env, question: termsafe.Line(question, longestQuestion), live: j.live}
		if w.turn.Spec.Depth != nil {
			p.agent = w.AgentName()
		}
		e.Journal = p
	}
	return e
}

// drive runs a Turn and the Turns of its sub-agents to their ends. It returns a *loop.Parked if one of them requires an
// approval and no person can be asked.
func (j *localRun) drive(w *localTurn) error {
	for {
		in := w.in
		in.Timeout = in.Limit - j.elapsed(w)
		result, err := w.engine.Run(j.life, &in)
		if err == nil {
			w.result = result
			turnstatus.Finish(w.turn, result, w.binding.end())
			if w.binding.ended.IsZero() {
				w.trace.End(w.turn, w.binding.since)
			}
			return nil
		}
		if bug, panicked := errors.AsType[*turn.PanicError](err); panicked {
			return fmt.Errorf("%w; please report this stack:\n%s", err, bug.Stack)
		}
		parked, isParked := errors.AsType[*loop.Parked](err)
		if !isParked {
			return err
		}
		again, err := j.serve(w, parked)
		if err != nil {
			return err
		}
		if !again {
			return parked
		}
		turnstatus.Adopt(w.turn, j.Clock()()) // a cluster would bind the Turn again
		w.in.Epoch = w.turn.Epoch()
	}
}

// serve does the work for which a Turn is parked: it runs sub-agents and asks for approvals. It reports whether the
// Turn must be run again.
func (j *localRun) serve(w *localTurn, waits *loop.Parked) (again bool, err error) {
	for _, name := range waits.Turns {
		w.mu.Lock()
		child := w.children[name]
		w.mu.Unlock()
		if child == nil {
			return false, fmt.Errorf("the Turn waits for Turn %q, which it has not called", name)
		}
		err := j.drive(child)
		if _, parked := errors.AsType[*loop.Parked](err); parked {
			continue
		}
		if err != nil {
			return false, err
		}
		again = true
	}
	for _, a := range waits.Approvals {
		ok, err := j.resolve(w, a, waits.Approvals)
		if err != nil {
			return false, err
		}
		if call := fmt.Sprintf("%s (%s)", termsafe.Line(a.Name, output.LongestID), termsafe.Line(a.CallID, output.LongestID)); !ok &&
			!slices.Contains(j.undecided, call) {
			j.undecided = append(j.undecided, call)
		}
		again = again || ok
	}
	return again, nil
}
