package executor

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// finish writes the end of a Turn, then emits its Events. If the API server is unavailable, finish repeats the write
// until it succeeds or the Turn belongs to another run. Until then, only the journal has the result. If the API server
// rejects the result, the Turn ends with the facts that its status has.
func (r *run) finish(ctx context.Context, result *turn.Result) {
	e := r.executor
	now := e.Now()
	e.persistTotals(ctx, r.turn, result.Session, now)
	written, err := r.persist(ctx, func(t *v1alpha1.Turn) { turnstatus.Finish(t, result, now) })
	if writeerror.IsRejected(err) {
		written = r.endRejected(ctx, err, turnstatus.FinishRefused)
	}
	if written == nil {
		return
	}
	metrics.Ended(written, result)
	e.Tasks.wakeUp()
	e.Traces.End(written, time.Time{})
	e.announce(written, result, r.warned)
}

// endRejected ends a Turn whose status the API server has rejected with cause. end writes the end with a message.
// During an upgrade, the CRD of the cluster may differ from the types of this process. If the end is rejected, too, the
// Turn is stuck. endRejected returns the Turn as written, or nil.
func (r *run) endRejected(
	ctx context.Context, cause error, end func(t *v1alpha1.Turn, message string, now time.Time),
) *v1alpha1.Turn {
	now := r.executor.Now()
	message := "the API server refused the status of the turn; its journal has the whole record: " + cause.Error()
	written, err := r.persist(ctx, func(t *v1alpha1.Turn) { end(t, message, now) })
	if writeerror.IsRejected(err) {
		r.markStuck(err)
	}
	return written
}

// release unbinds an unfinished Turn. If the API server rejects that, the Turn is stuck until this process ends or the
// Turn changes. It does not end, because another process may be able to write its status.
func (r *run) release(ctx context.Context, reason, message string) {
	_, err := r.unbind(ctx, func(t *v1alpha1.Turn, known turnstatus.Run, now time.Time) {
		turnstatus.Release(t, known, reason, message, now)
	})
	if writeerror.IsRejected(err) {
		r.markStuck(err)
	}
}

// await unbinds a Turn that waits for something, with change. It returns the Turn as written, or nil if the Turn no
// longer belongs to this run. If the API server rejects the status, users cannot learn what the Turn waits for, so
// await ends the Turn and returns nil.
func (r *run) await(ctx context.Context, change func(t *v1alpha1.Turn, known turnstatus.Run, now time.Time)) *v1alpha1.Turn {
	written, err := r.unbind(ctx, change)
	if !writeerror.IsRejected(err) {
		return written
	}
	ended := r.endRejected(ctx, err, func(t *v1alpha1.Turn, message string, now time.Time) {
		// End needs what this run knows about the journal.
		turnstatus.Release(t, r.facts(), v1alpha1.TurnReasonPending, message, now)
		turnstatus.End(t, v1alpha1.TurnReasonModelFailed, message, now)
	})
	if ended != nil {
		metrics.Ended(ended, nil)
		r.executor.Traces.End(ended, time.Time{})
		r.executor.announceEnd(ended, turn.StopModelError)
	}
	return nil
}

// unbind hands the Turn back. It returns the Turn as written, or nil if the Turn no longer belongs to this run. The
// error is that of persist.
func (r *run) unbind(
	ctx context.Context, change func(t *v1alpha1.Turn, known turnstatus.Run, now time.Time),
) (*v1alpha1.Turn, error) {
	now := r.executor.Now()
	return r.persist(ctx, func(t *v1alpha1.Turn) {
		change(t, r.facts(), now)
	})
}

// persist changes the status of the Turn like Executor.persist, and keeps the Turn as written.
func (r *run) persist(ctx context.Context, change func(*v1alpha1.Turn)) (*v1alpha1.Turn, error) {
	written, err := r.executor.persist(ctx, r.turn, r.epoch, change)
	if written != nil {
		r.turn = written
	}
	return written, err
}

// denialPatience is how long a write that admission denies is repeated. A webhook may deny a request only because it
// could not look something up, or while it is upgraded, and a result that is not written is lost for its users.
const denialPatience = time.Minute

// denials decides when the repetition of one write ends. now is the clock.
type denials struct {
	now func() time.Time
	// since is the time of the first of the latest rejections in a row, or zero.
	since time.Time
}

// judge returns the error of an attempt. The error ends backoff.Retry if the API server cannot store the object, or if
// admission has denied it for denialPatience.
func (d *denials) judge(err error) error {
	if !writeerror.IsRejected(err) {
		d.since = time.Time{}
		return err
	}
	if d.since.IsZero() {
		d.since = d.now()
	}
	if writeerror.IsUnstorable(err) || d.now().Sub(d.since) >= denialPatience {
		return backoff.Permanent(err)
	}
	return err
}

// repeatWrite repeats a write to the API server, at intervals of up to 5 seconds, until it succeeds. It returns the
// error of the last attempt if ctx ends first, if the API server cannot store the object, or if admission has denied it
// for denialPatience by the clock now. A *backoff.PermanentError of write ends the repetition, too. failed receives the
// other errors, and the time until the next attempt.
func repeatWrite[T any](
	ctx context.Context, now func() time.Time, write func() (T, error), failed func(err error, wait time.Duration),
) (T, error) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 5*time.Second
	denied := denials{now: now}
	return backoff.Retry(ctx, func() (T, error) {
		written, err := write()
		return written, denied.judge(err)
	}, backoff.WithBackOff(retry), backoff.WithMaxElapsedTime(0), backoff.WithNotify(failed))
}

// persist repeats the update of a status until it succeeds. It returns nil if the Turn was deleted or is bound
// elsewhere. It logs and returns an error if ctx ends first, the API server cannot store the status, or admission has
// denied it for denialPatience.
func (e *Executor) persist(ctx context.Context, t *v1alpha1.Turn, epoch int64, change func(*v1alpha1.Turn)) (*v1alpha1.Turn, error) {
	written, err := repeatWrite(ctx, e.Now, func() (*v1alpha1.Turn, error) {
		return e.update(ctx, t, epoch, change)
	}, func(err error, wait time.Duration) {
		e.logOf(t).Error(err, "Failed to write the status of a turn, trying again", "in", wait)
	})
	if err != nil {
		e.logOf(t).Error(err, "Stopped writing the status of a turn")
	}
	return written, err
}

// maxConflicts limits the attempts of one update if others write the same object.
const maxConflicts = 10

// update changes the status of a Turn that is bound to this executor with the given epoch. It first waits until the
// Writes gate admits its namespace. On a conflict, for example because the spec changed, it reads the Turn from the API
// server and checks the binding again. It returns the Turn as written, also if an earlier write has made the same
// change although its response was an error. It returns nil if the Turn was deleted, has ended or is not bound to this
// executor with this epoch any more, and an error if the write failed.
func (e *Executor) update(ctx context.Context, t *v1alpha1.Turn, epoch int64, change func(*v1alpha1.Turn)) (*v1alpha1.Turn, error) {
	if err := e.Writes.Enter(ctx, t.Namespace); err != nil {
		return nil, fmt.Errorf("gave up waiting until turn %q could be written: %w", t.Name, err)
	}
	defer e.Writes.Leave(t.Namespace)
	current := t.DeepCopy()
	for range maxConflicts {
		if current.UID != t.UID || current.BoundTo() != e.Name || current.Epoch() != epoch {
			return nil, nil //nolint:nilnil // because "not ours" is an answer, not an error
		}
		change(current)
		err := e.Client.Status().Update(ctx, current)
		switch {
		case err == nil:
			current.ManagedFields = nil // not used here
			if current.Generation == t.Generation {
				current.Spec = t.Spec // the same spec need not be in memory twice
			}
			return current, nil
		case apierrors.IsNotFound(err):
			return nil, nil //nolint:nilnil // because "gone" is an answer, not an error
		case !apierrors.IsConflict(err):
			return nil, fmt.Errorf("failed to write the status of turn %q: %w", t.Name, err)
		}
		fresh := &v1alpha1.Turn{}
		if err := e.Reader.Get(ctx, client.ObjectKeyFromObject(t), fresh); err != nil {
			if apierrors.IsNotFound(err) {
				return nil, nil //nolint:nilnil // because "gone" is an answer, not an error
			}
			return nil, fmt.Errorf("failed to read turn %q again: %w", t.Name, err)
		}
		if turnstatus.IsWritten(fresh, current) {
			fresh.ManagedFields = nil // not used here
			return fresh, nil
		}
		current = fresh
	}
	return nil, fmt.Errorf("failed to write the status of turn %q: other writers changed it %d times", t.Name, maxConflicts)
}

// warnContext emits the Event about the context window when the conversation comes near it.
func (r *run) warnContext(w loop.Warning) {
	r.warned = true
	r.executor.Events.Eventf(r.turn, nil, corev1.EventTypeWarning, v1alpha1.EventContextWarning, "Warn",
		"the conversation is close to the context window of its model: about %d of %d tokens", w.Tokens, w.ContextWindow)
}

// announce emits the Events of a Turn that has ended: at most three, and without any text of the conversation. One
// Event reports the end. Others report that the Turn ran without tools that it should have had, and that another model
// answered in place of the first one. If neither of these two happened, announce emits an Event for the first of these
// findings that applies:
//
//  1. The conversation has come near its context window, and this run has not emitted the Event about that, so warned
//     is false. An earlier run may have been killed before it could emit the Event.
//  2. The Turn was interrupted and continued from its journal.
func (e *Executor) announce(t *v1alpha1.Turn, result *turn.Result, warned bool) {
	isToolless, isFallback := len(result.ToolServersMissing) > 0, result.Fallback != nil
	if isToolless {
		e.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventToolsMissing, "Expose",
			"%s", "the turn ran "+turnstatus.WithoutTools(result.ToolServersMissing))
	}
	if isFallback {
		e.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventFallbackUsed, "Fallback",
			"%s", result.Fallback.String())
	}
	switch {
	case isToolless, isFallback:
	case result.Warned && !warned:
		e.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventContextWarning, "Warn",
			"the conversation is close to the context window of its model (compactions %d)", result.Counts.Compactions)
	case result.Counts.Resumes > 0:
		e.Events.Eventf(t, nil, corev1.EventTypeNormal, v1alpha1.EventResumed, "Resume",
			"the turn continued from its journal (resumes %d, epoch %d)", result.Counts.Resumes, t.Epoch())
	}
	e.announceEnd(t, result.Stop)
}

// announceEnd emits the Event for the end of a Turn.
func (e *Executor) announceEnd(t *v1alpha1.Turn, stop turn.Stop) {
	kind, reason := corev1.EventTypeNormal, v1alpha1.EventSucceeded
	switch {
	case t.StateReason() == v1alpha1.TurnReasonCancelled:
		reason = v1alpha1.EventCancelled
	case stop != turn.StopCompleted && stop != turn.StopToolEnded && stop != turn.StopPrepared && stop != turn.StopUndone:
		kind, reason = corev1.EventTypeWarning, v1alpha1.EventFailed
	}
	e.Events.Eventf(t, nil, kind, reason, "Run", "%s", translate.EndNote(t))
}
