package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/existence"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/tracing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// Charger ends the journals of Turns that were deleted, or that ended without an executor, and adds their usage to the
// totals of their Sessions. It is safe for concurrent use. NewCharger creates it.
type Charger struct {
	// Engine ends the Turns in their journals.
	Engine *turn.Engine
	// Reader reads from the API server. Client writes the status of Sessions.
	Reader client.Reader
	Client client.Client
	// Traces exports the steps of Turns that ended without an executor. If Traces is nil, nothing is exported.
	Traces *tracing.Provider
	// Now returns the time of day.
	Now func() time.Time
	// RecordLabels are the keys of the labels of Turns that records keep.
	RecordLabels []string
	Log          logr.Logger

	// memory is the budget for the journals that are read. If memory is nil, it is unlimited.
	memory *bytebudget.Budget
}

// NewCharger returns a Charger without Traces and RecordLabels. memory is the budget for the journals that it reads. It
// is a parameter, and not a field, so that no caller reads journals without a limit by mistake.
func NewCharger(
	engine *turn.Engine, reader client.Reader, writer client.Client, memory *bytebudget.Budget, now func() time.Time, log logr.Logger,
) *Charger {
	return &Charger{Engine: engine, Reader: reader, Client: writer, Now: now, Log: log, memory: memory}
}

// family returns the family whose journals are read within the memory budget.
func (c *Charger) family() family {
	return family{c.Reader, c.Engine, c.reserve}
}

// reserve reserves the memory to read a journal. It does not wait: the caller tries again later.
func (c *Charger) reserve(ctx context.Context, namespace, uid string) (release func(), err error) {
	return reserveJournal(ctx, c.Engine.Journal, c.memory, namespace, uid)
}

// chargeTries is how often a charge is tried if others write the same journal or the same Session.
const chargeTries = 5

// Charge ends a deleted Turn in its journal, with its record. Then it adds the usage of the Turn to the history and to
// the totals of its Session. Each of these steps takes effect once, even if several processes call Charge several
// times.
//
// A Turn that has no Session, whose Session was deleted, or that asked no model, is only ended. Charge does nothing if
// the UID belongs to no Turn. It fails while a Turn of a sub-agent has not ended. After an error, a later call may
// succeed. It returns journal.ErrNewer for a journal that only a newer version can end. A damaged journal, or one that
// makes the engine panic, is logged and is not an error.
func (c *Charger) Charge(ctx context.Context, uid string) error {
	err := retryConflicts(ctx, func() error { return c.charge(ctx, uid) })
	if isUnreadable(err) {
		c.Log.Error(err, "Failed to add the usage of a deleted turn to its session, because its journal cannot be read",
			"uid", uid, "stack", stackOf(err))
		return nil
	}
	return err
}

// isUnreadable reports whether the journal of a Turn can never be used: it is damaged, or the engine panics, which is a
// bug. It returns false for a journal of a newer version, because a manager of that version can use it.
func isUnreadable(err error) bool {
	_, panicked := errors.AsType[*turn.PanicError](err)
	return panicked || errors.Is(err, journal.ErrDamaged)
}

// stackOf returns the stack of a panic of the engine, or an empty string if there was no panic.
func stackOf(err error) string {
	if bug, panicked := errors.AsType[*turn.PanicError](err); panicked {
		return bug.Stack
	}
	return ""
}

// charge makes one attempt.
func (c *Charger) charge(ctx context.Context, uid string) error {
	namespace, err := c.Engine.Namespace(ctx, uid)
	if err != nil {
		return err
	}
	release, err := c.reserve(ctx, namespace, uid)
	if err != nil {
		return err
	}
	defer release()
	children := c.family().usage
	a, err := c.Engine.OpenDeletedTurn(ctx, uid, children)
	if err != nil {
		return err
	}
	// If there is nothing to charge to a Session, the end is still recorded, so that the usage is not lost.
	end := func() error {
		_, err := c.Engine.EndDeletedTurn(ctx, uid, children)
		return notEnded(err)
	}
	if a == nil {
		return end()
	}
	var s v1alpha1.Session
	key := client.ObjectKey{Namespace: a.Namespace, Name: a.Session.Name}
	if err := c.Reader.Get(ctx, key, &s); err != nil {
		if apierrors.IsNotFound(err) {
			return end()
		}
		return fmt.Errorf("failed to get session %q: %w", key.Name, err)
	}
	if string(s.UID) != a.Session.UID { // another Session of this name
		return end()
	}
	a.Session.Known = translate.KnownTotals(&s)
	place, err := a.Charge(a.Session)
	if err != nil || place == nil {
		return notEnded(err)
	}
	return c.writeTotals(ctx, key, place, c.Now())
}

// EndFromObject ends the journal of a Turn whose object has ended without an executor, and writes the record from the
// journal, which may have usage that the status lacks.
//
// It returns false if the status must be the source of the record: the journal has no entries, has fewer entries than
// the status says, has the end already, or cannot be read. A journal without entries still gets an end, so that no run
// can begin there.
//
// EndFromObject charges the Session of the Turn before it writes the end. It also charges the Session if the journal
// has the end, because the process that wrote the end may have been killed before it charged the Session. It fails
// while a Turn of a sub-agent has not ended, or while there is no memory for the journal. It returns journal.ErrNewer
// for a journal that only a newer version can end.
func (c *Charger) EndFromObject(ctx context.Context, t *v1alpha1.Turn) (recorded bool, err error) {
	in, end, ended := translate.ObjectEnd(t, c.RecordLabels)
	if !ended {
		return false, nil
	}
	release, err := c.reserve(ctx, t.Namespace, string(t.UID))
	if err != nil {
		return false, err
	}
	defer release()
	if err := c.chargeSession(ctx, t, in, &end); err != nil {
		return false, err
	}
	o := observerOf(c.Traces, t)
	in.Observer, in.TraceID = lateObserver{o, end.At}, o.TraceID()
	recorded, err = c.Engine.EndFromObject(ctx, in, end, c.family().usage)
	if isUnreadable(err) {
		c.Log.Error(err, "Failed to end the journal of a turn, whose record has only the facts of its status", "turn",
			client.ObjectKeyFromObject(t), "requester", t.Requester(), "stack", stackOf(err))
		return false, nil
	}
	return recorded, notEnded(err)
}

// ChargeFromStatus charges the Session of a Turn that ended without an executor with the usage in the Turn's status,
// because the journal cannot be used. It does nothing if the Session has the Turn already, or if an executor has ended
// the Turn, because that executor has charged the Session.
func (c *Charger) ChargeFromStatus(ctx context.Context, t *v1alpha1.Turn) error {
	if !t.EndedWithoutExecutor() || t.Status.CompletionTime == nil {
		return nil
	}
	s, err := sessionOf(ctx, c.Reader, t)
	if err != nil || s == nil {
		return err
	}
	log := c.Log.WithValues("turn", client.ObjectKeyFromObject(t), "requester", t.Requester())
	return retryConflicts(ctx, func() error {
		place, err := chargeStatus(ctx, c.Engine, log, s, t)
		if err != nil || place == nil {
			return err
		}
		return c.writeTotals(ctx, client.ObjectKeyFromObject(s), place, t.Status.CompletionTime.Time)
	})
}

// lateObserver records the parts of a Turn whose journal is ended later than the Turn itself. It cuts each part off at
// the end of the Turn.
type lateObserver struct {
	observer
	end time.Time
}

// Observe records a part of the Turn.
func (o lateObserver) Observe(s *turn.Span) {
	part := *s
	if part.End.After(o.end) {
		part.End = o.end
	}
	if part.Start.After(part.End) {
		part.Start = part.End
	}
	o.observer.Observe(&part)
}

// chargeSession sets in and end so that the end of a Turn charges the Session of the Turn, if the Session still exists.
// It sets nothing if an executor has ended the Turn, because that executor has charged the Session.
func (c *Charger) chargeSession(ctx context.Context, t *v1alpha1.Turn, in *turn.Input, end *turn.ObjectEnd) error {
	if !t.EndedWithoutExecutor() {
		return nil
	}
	s, err := sessionOf(ctx, c.Reader, t)
	if err != nil || s == nil {
		return err
	}
	in.Session = &turn.Session{UID: string(s.UID), Name: s.Name, Known: translate.KnownTotals(s)}
	end.Charge = func(place *turn.SessionPosition) error {
		return retryConflicts(ctx, func() error { return c.writeTotals(ctx, client.ObjectKeyFromObject(s), place, end.At) })
	}
	return nil
}

// writeTotals makes one attempt to write the totals of a Session at the end of a Turn. If the API server cannot store
// the totals, writeTotals logs that and returns nil: the history of the Session has the totals, the API server would
// refuse another attempt as well, and the Turn must end. A denial by admission is an error, so that the caller tries
// again later: without these totals, the budget of the Session would not hold.
func (c *Charger) writeTotals(ctx context.Context, key client.ObjectKey, place *turn.SessionPosition, end time.Time) error {
	err := writeTotals(ctx, c.Reader, c.Client, key, place, end)
	if writeerror.IsUnstorable(err) {
		c.Log.Error(err, "Failed to write the status of a session", "session", key, "turn", place.Last)
		return nil
	}
	return err
}

// retryConflicts repeats an attempt while others write the same journal or the same Session.
func retryConflicts(ctx context.Context, attempt func() error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := attempt()
		if err != nil && !apierrors.IsConflict(err) && !errors.Is(err, journal.ErrSequence) && !errors.Is(err, journal.ErrFenced) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxTries(chargeTries))
	return err
}

// reserveJournal reserves the memory to end the Turn of a journal, which is read as a whole. It does not wait.
func reserveJournal(
	ctx context.Context, j journal.Journal, memory *bytebudget.Budget, namespace, uid string,
) (release func(), err error) {
	account := memory.Account(namespace, bytebudget.Conversations)
	bytes, err := journalMemory(ctx, j, account, uid)
	if err != nil {
		return nil, err
	}
	held, err := account.TryReserve(bytes)
	if err != nil {
		return nil, err
	}
	return held.Release, nil
}

// journalMemory returns the number of bytes to reserve before a journal is read as a whole. For a journal that is
// larger than a Turn may be, it returns only the maximum of a Turn, so that the Turn can end. It returns 0 if the
// account has no limit.
func journalMemory(ctx context.Context, j journal.Journal, account bytebudget.Account, uid string) (int64, error) {
	most := account.MaxReservation()
	if most == 0 {
		return 0, nil
	}
	bytes, err := journalBytes(ctx, j, uid)
	if err != nil {
		return 0, err
	}
	return min(max(0, bytes-unreservedConversation)*perByte, most/2), nil
}

// journalBytes returns the size of the payloads of a journal.
func journalBytes(ctx context.Context, j journal.Journal, uid string) (int64, error) {
	last, err := j.Last(ctx, uid)
	if err != nil || last == 0 {
		return 0, err
	}
	return j.PayloadBytes(ctx, uid, 1, last)
}

// childrenError means that a Turn cannot end, because Turns of its sub-agents have not ended.
type childrenError struct{ *loop.Parked }

// Error returns a message that names the Turns of the sub-agents.
func (e childrenError) Error() string {
	return "the turns of its sub-agents have not ended yet: " + strings.Join(e.Turns, ", ")
}

// Unwrap returns the cause.
func (e childrenError) Unwrap() error { return e.Parked }

// notEnded replaces a *loop.Parked by a childrenError, which explains why the Turn cannot end. It returns other errors
// unchanged.
func notEnded(err error) error {
	if waits, ok := errors.AsType[*loop.Parked](err); ok {
		return childrenError{waits}
	}
	return err
}

// chargeTimeout limits the time in which a run charges its Turn. After that, the cleanup of the journals charges
// it.
const chargeTimeout = 30 * time.Second

// charge charges the Turn to its Session if the Turn has left the watch because it was deleted. It first releases the
// memory of the run, because it reads the journal again. If there is no memory to read the journal, the cleanup of the
// journals charges the Turn later: all Turns of a namespace may be deleted at the same time.
func (r *run) charge(ctx context.Context) {
	e := r.executor
	if r.turn.Spec.SessionRef == nil || !r.hasLeft() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, chargeTimeout)
	defer cancel()
	deleted, err := r.isDeleted(ctx)
	if deleted {
		r.releaseMemory()
		err = NewCharger(e.Engine, e.Reader, e.Client, e.Memory, e.Now, e.Log).Charge(ctx, string(r.turn.UID))
	}
	if err != nil {
		r.log().Error(err, "Failed to add the usage of a deleted turn to its session; the leader tries again")
	}
}

// hasLeft reports whether the watch has reported that the Turn was deleted or is bound elsewhere.
func (r *run) hasLeft() bool {
	r.executor.mu.Lock()
	defer r.executor.mu.Unlock()
	return r.gone
}

// isDeleted asks the API server whether the Turn is gone.
func (r *run) isDeleted(ctx context.Context) (bool, error) {
	return existence.IsGone(ctx, r.executor.Reader, "Turn", r.key(), r.turn.UID)
}
