package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

const (
	// A task that is older than maxAge is not begun. If a task is older than retryAge, a question that an endpoint
	// refuses is not asked again, and a status that admission denies is not written again.
	maxAge, retryAge = 24 * time.Hour, time.Hour
	// maxAttempts is the number of attempts of a task that may be cut off. After that, no attempt is made.
	maxAttempts = 3
	// afterFailure, afterShortage and afterRefusal are the times until a task is tried again: after a failure of the
	// store or the API server, after a lack of memory, and after a refusal by an endpoint or a Budget.
	afterFailure, afterShortage, afterRefusal = 5 * time.Second, 10 * time.Second, 30 * time.Second
	// questionBytes is the memory to reserve for the questions of a task, in bytes, in addition to its journal.
	questionBytes = 1 << 20
)

// done is the end of an attempt to do the work on a task.
type done struct {
	// result is the result. If it is nil, the task is tried again after the duration again.
	result *task.Result
	again  time.Duration
	// used is the number of tokens that the requests have used.
	used int64
	// err is why the task is tried again. It is nil if nothing has failed, and the task only waits. An attempt that has
	// used tokens and failed counts as cut off.
	err error
}

func retried(again time.Duration, err error) done { return done{again: again, err: err} }

// tooManyAttempts returns why no further attempt is made, as the end of a sentence that begins with the work.
func tooManyAttempts(attempts int) string {
	return fmt.Sprintf("was cut off %d times: its executor stopped or was lost, or its results could not be stored", attempts)
}

// followUp is the work on one task, without the part that depends on its kind.
type followUp struct {
	*Tasks
	executor *Executor
	task     *task.Task
	turn     v1alpha1.Turn
	agent    *v1alpha1.Agent
	// requests is the account of the attempt. It is nil until the work begins.
	requests *requests
}

// skipped returns the end of work that is not done for this reason. The end includes the results of earlier attempts,
// because they were paid for.
func (f *followUp) skipped(reason task.Skip) done {
	r := task.Result{}
	if p := f.task.Partial; p != nil {
		r = *p
	}
	r.Skipped = reason
	return done{result: &r}
}

// used returns the number of tokens that the attempt has used.
func (f *followUp) used() int64 {
	if f.requests == nil {
		return 0
	}
	return f.requests.used
}

// credentials returns the function that removes credentials from a text about the Turn.
func (f *followUp) credentials() func(text string) string {
	return f.executor.Credentials.RedactFunc(f.turn.CredentialNamespaces()...)
}

// read reads the Turn and its Agent. It returns nil if the work can continue, and otherwise the end of the attempt.
// asks reports whether the Agent still asks for the work.
func (f *followUp) read(ctx context.Context, asks func(*v1alpha1.Agent) bool) *done {
	e, k := f.executor, f.task
	err := e.Reader.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Turn}, &f.turn)
	if apierrors.IsNotFound(err) || err == nil && f.turn.UID != types.UID(k.UID) {
		return new(f.skipped(task.TurnDeleted))
	}
	if err != nil {
		return new(retried(afterFailure, fmt.Errorf("failed to get the turn: %w", err)))
	}
	if !f.turn.IsFinished() {
		return new(retried(afterFailure, nil)) // its status is not written yet
	}
	f.agent, err = e.Sharing.Agent(ctx, e.objects(k.Namespace), f.turn.Spec.AgentRef, k.Namespace)
	if err == nil && f.agent.Namespace != k.Namespace {
		f.agent, err = translate.Foreign(f.agent)
	}
	_, refused := errors.AsType[*sharing.RefusedError](err)
	if refused || apierrors.IsNotFound(err) || err == nil && !asks(f.agent) {
		return new(f.skipped(task.NotEnabled))
	}
	if err != nil {
		return new(retried(afterFailure, fmt.Errorf("failed to get the agent: %w", err)))
	}
	return nil
}

// unread returns the end of an attempt whose Turn cannot be read from its journal.
func (f *followUp) unread(err error) done {
	if errors.Is(err, turn.ErrNoJudges) || errors.Is(err, turn.ErrNoAnswer) || errors.Is(err, journal.ErrDamaged) ||
		errors.Is(err, journal.ErrNoArtifact) {
		return f.skipped(task.Unreadable)
	}
	return retried(afterFailure, err)
}

// reserveMemory reserves the memory for the journal and the questions. It does not wait, because
// Turns have priority.
func (f *followUp) reserveMemory(ctx context.Context) (*bytebudget.Reservation, error) {
	bytes, err := journalBytes(ctx, f.Journal, f.task.UID)
	if err != nil {
		return nil, err
	}
	account := f.executor.Memory.Account(f.task.Namespace, bytebudget.Conversations)
	if account.Contended() {
		return nil, bytebudget.ErrShort
	}
	want := perByte*bytes + questionBytes
	if most := account.MaxReservation(); most > 0 {
		want = min(want, most/2)
	}
	return account.TryReserve(want)
}

// chain returns the models to ask. The requests to them have low priority at their ModelProviders. chain returns a
// *retryError if a ModelProvider could not be read.
func (f *followUp) chain(
	ctx context.Context, models []v1alpha1.ModelReference, thinking v1alpha1.ThinkingLevel,
) ([]loop.Candidate, error) {
	caller := pace.Caller{Namespace: f.task.Namespace, Agent: f.task.Agent, Low: true}
	var all []loop.Candidate
	for _, m := range models {
		l, err := f.executor.link(ctx, &f.turn, f.agent.Namespace, m, caller)
		if err != nil {
			return nil, err
		}
		c, err := translate.Candidate(l, thinking)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// modelQuestion is a question, with the models that may answer it.
type modelQuestion struct {
	models  []loop.Candidate
	request func(structured bool) model.Request
}

// begin begins the work: it checks the limits of the Agent, with an estimate of one request for each question and the
// tokens of further requests, and opens the account of the requests. It returns the end of the attempt if the work may
// not begin, or nil.
func (f *followUp) begin(ctx context.Context, questions []modelQuestion, further int64, perHour int32, perDay *int64) *done {
	start := task.Start{Now: f.executor.Now(), MaxPerHour: int64(perHour), Tokens: further}
	if perDay != nil {
		start.MaxTokensPerDay = *perDay
	}
	for _, q := range questions {
		if first := slices.IndexFunc(q.models, func(c loop.Candidate) bool { return !c.Unusable }); first >= 0 {
			question := q.request(q.models[first].StructuredOutput)
			start.Tokens += loop.EstimateOutside(&question)
		}
	}
	err := f.Store.BeginTask(ctx, f.task.Held(), start)
	if refusal, ok := errors.AsType[*task.Refusal](err); ok {
		return new(f.skipped(refusal.Skip))
	}
	if err != nil {
		return new(retried(afterFailure, err))
	}
	f.requests = newRequests(ctx, f)
	return nil
}

// writeStatus writes the findings of the work into the status of the Turn, if the Turn still exists. change changes t,
// and reports whether it has changed anything. refused is true if the API server has refused the change before, maybe
// because of its texts.
//
// A denial by admission is an error at first, because it may pass: the store has the result, so the task is claimed
// again and nothing is paid again. Once the task is older than retryAge, a denial counts as a refusal of the change.
func (f *followUp) writeStatus(ctx context.Context, change func(t *v1alpha1.Turn, refused bool) bool) error {
	e, k := f.executor, f.task
	if err := e.Writes.Enter(ctx, k.Namespace); err != nil {
		return fmt.Errorf("gave up waiting until turn %q could be written: %w", k.Turn, err)
	}
	defer e.Writes.Leave(k.Namespace)
	refused := false
	for range maxConflicts {
		var t v1alpha1.Turn
		err := e.Reader.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Turn}, &t)
		if apierrors.IsNotFound(err) || err == nil && t.UID != types.UID(k.UID) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("failed to read turn %q: %w", k.Turn, err)
		}
		if !change(&t, refused) {
			return nil
		}
		err = e.Client.Status().Update(ctx, &t)
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case apierrors.IsConflict(err): // the Turn is read again
		case !writeerror.IsRejected(err), !writeerror.IsUnstorable(err) && e.Now().Sub(k.Created) < retryAge:
			return fmt.Errorf("failed to write the status of turn %q: %w", k.Turn, err)
		case refused:
			e.logOf(&t).Error(err, "Failed to write the status of a turn after its end, because the API server rejects it", "task", k.Kind)
			return nil // a repetition would be rejected again
		default:
			e.logOf(&t).Error(err, "The API server refused the status of a turn after its end, writing it without texts", "task", k.Kind)
			refused = true
		}
	}
	return fmt.Errorf("failed to write the status of turn %q: the API server refused it %d times", k.Turn, maxConflicts)
}

// logPanic logs the stack of a panic. It must be called by the function that recovers.
func (f *followUp) logPanic() {
	f.Log.Info("Failed to do the work that follows a turn because of a panic", "namespace", f.task.Namespace, "turn", f.task.Turn,
		"requester", f.task.Requester, "task", f.task.Kind, "stack", string(debug.Stack()))
}
