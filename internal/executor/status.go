package executor

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// finish writes the end of a Turn, then tells people. The API server may be away: the write is tried until it succeeds
// or the Turn is somebody else's; the journal holds the result meanwhile.
func (r *run) finish(ctx context.Context, result *turn.Result) {
	e := r.executor
	now := e.Now()
	e.total(ctx, r.turn, result.Session, now)
	written, err := e.persist(ctx, r.turn, r.epoch, func(t *v1alpha1.Turn) { translate.Finish(t, result, now) })
	if isRefused(err) {
		// The schema of the cluster and of this process may differ in the middle of an upgrade.
		message := "the API server refused the record of the turn, which its journal has: " + err.Error()
		written, _ = e.persist(ctx, r.turn, r.epoch, func(t *v1alpha1.Turn) {
			translate.End(t, metav1.ConditionFalse, v1alpha1.TurnReasonModelFailed, message, now)
		})
	}
	if written == nil {
		return
	}
	r.turn = written
	metrics.Ended(written, result)
	e.announce(written, result)
}

// release unbinds a Turn that has not ended.
func (r *run) release(ctx context.Context, reason, message string) {
	now := r.executor.Now()
	r.unbind(ctx, func(t *v1alpha1.Turn) { translate.Wait(t, reason, message, now) })
}

// suspend unbinds a Turn that was suspended: it gets its time anew when it goes on. What it has just begun to wait for, nil for
// nothing, is noted as far as it is Turns of sub-agents.
func (r *run) suspend(ctx context.Context, waits *loop.Parked) {
	now := r.executor.Now()
	r.unbind(ctx, func(t *v1alpha1.Turn) {
		translate.Suspend(t)
		if waits != nil && len(waits.Turns) > 0 {
			translate.Await(t, waits.Turns)
		}
		translate.Wait(t, v1alpha1.TurnReasonSuspended, "the turn was suspended; set desiredState to Active to go on", now)
	})
}

// releaseUnprepared unbinds a Turn whose prompt cannot be made yet. It writes down that there is none, or the controller
// would bind the Turn again for what its journal may hold.
func (r *run) releaseUnprepared(ctx context.Context, why *notReadyError) {
	now := r.executor.Now()
	r.unbind(ctx, func(t *v1alpha1.Turn) {
		translate.Wait(t, why.reason, why.message, now)
		meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionPrepared, Status: metav1.ConditionUnknown, Reason: v1alpha1.TurnReasonNotPrepared,
			Message: "the prompt is not made yet", ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(now),
		})
	})
}

// unbind writes that the Turn is bound to nobody, what its run has done, and what else there is to say. It returns the Turn as
// written, nil if it is not this run's any more.
func (r *run) unbind(ctx context.Context, also func(*v1alpha1.Turn)) *v1alpha1.Turn {
	released, _ := r.executor.persist(ctx, r.turn, r.epoch, func(t *v1alpha1.Turn) {
		t.Status.Executor.Name = ""
		r.stamp(t, true)
		r.progress.tell(t)
		also(t)
	})
	if released != nil {
		r.turn = released
	}
	return released
}

// isRefused reports whether the API server will not take an object as it is.
func isRefused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// persist updates a status until that succeeds. It returns nil if the Turn is gone or bound elsewhere, and an error, which
// is logged, if ctx ends first or the API server refuses what was to be written.
func (e *Executor) persist(ctx context.Context, t *v1alpha1.Turn, epoch int64, change func(*v1alpha1.Turn)) (*v1alpha1.Turn, error) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 5*time.Second
	written, err := backoff.Retry(ctx, func() (*v1alpha1.Turn, error) {
		written, err := e.update(ctx, t, epoch, change)
		if isRefused(err) {
			err = backoff.Permanent(err)
		}
		return written, err
	}, backoff.WithBackOff(retry), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, wait time.Duration) {
		e.Log.Error(err, "Failed to write the status of a turn, trying again", "turn", client.ObjectKeyFromObject(t), "in", wait)
	}))
	if err != nil {
		e.Log.Error(err, "Gave up writing the status of a turn", "turn", client.ObjectKeyFromObject(t))
	}
	return written, err
}

// maxConflicts bounds the attempts of one update against others who write the same object.
const maxConflicts = 10

// update changes the status of a Turn that is bound to this executor with an epoch, when it is its namespace's turn. On a conflict (somebody
// changed the spec) it reads the Turn from the API server and judges again whose it is. It returns the Turn as written, nil if it is
// gone, has ended or is not ours, and an error if the write may succeed later.
func (e *Executor) update(ctx context.Context, t *v1alpha1.Turn, epoch int64, change func(*v1alpha1.Turn)) (*v1alpha1.Turn, error) {
	if err := e.Writes.Enter(ctx, t.Namespace); err != nil {
		return nil, fmt.Errorf("the write of turn %q had to wait for others: %w", t.Name, err)
	}
	defer e.Writes.Leave(t.Namespace)
	current, again := t.DeepCopy(), false
	for range maxConflicts {
		if current.UID != t.UID || current.BoundTo() != e.Name || current.Epoch() != epoch {
			return nil, nil //nolint:nilnil // because "not ours" is an answer, not an error
		}
		change(current)
		err := e.Client.Status().Update(ctx, current)
		switch {
		case err == nil:
			current.ManagedFields = nil // which nobody here asks for
			if !again && current.Generation == t.Generation {
				current.Spec = t.Spec // it is the same, and need not be held twice
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
		current, again = fresh, true
	}
	return nil, fmt.Errorf("failed to write the status of turn %q: others changed it %d times meanwhile", t.Name, maxConflicts)
}

// announce emits the Events of a Turn that has ended: at most two. They hold no word of the conversation. Of what there is
// to say beside the end, that is told which somebody should do something about: that the Turn went without tools that it was to
// have, then that a model was replaced by another one, then
// that the conversation is near its bound, then that the Turn was cut off and went on.
func (e *Executor) announce(t *v1alpha1.Turn, result *turn.Result) {
	switch {
	case len(result.ToolServersMissing) > 0:
		e.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventToolsMissing, "Expose",
			"%s", translate.Note("the turn ran "+translate.WithoutTools(result.ToolServersMissing)))
	case result.Fallback != nil:
		e.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventFallbackUsed, "Fallback",
			"%s", translate.Note(result.Fallback.To+" answered in place of "+result.Fallback.From))
	case result.Warned:
		e.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventContextWarning, "Warn",
			"the conversation has come near the context window of its model (compactions %d)", result.Counts.Compactions)
	case result.Counts.Resumes > 0:
		e.Events.Eventf(t, nil, corev1.EventTypeNormal, v1alpha1.EventResumed, "Resume",
			"the turn went on from its journal (resumes %d, epoch %d)", result.Counts.Resumes, t.Epoch())
	}
	e.announceEnd(t, result.Stop)
}

// announceEnd emits the Event of the end of a Turn.
func (e *Executor) announceEnd(t *v1alpha1.Turn, stop turn.Stop) {
	kind, reason := corev1.EventTypeNormal, v1alpha1.EventSucceeded
	switch {
	case t.StateReason() == v1alpha1.TurnReasonCancelled:
		reason = v1alpha1.EventCancelled
	case stop != turn.StopCompleted && stop != turn.StopToolEnded && stop != turn.StopPrepared:
		kind, reason = corev1.EventTypeWarning, v1alpha1.EventFailed
	}
	e.Events.Eventf(t, nil, kind, reason, "Run", "%s", translate.EndNote(t))
}
