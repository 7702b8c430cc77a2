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
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// session returns the Session that a Turn names. It reads the API server, because the rest of the Session's budget must
// be exact. It returns nil if the Turn has no Session, or if the Session was deleted after the Turn was bound.
func (e *Executor) session(ctx context.Context, t *v1alpha1.Turn) (*v1alpha1.Session, error) {
	s, err := sessionOf(ctx, e.Reader, t)
	if err != nil {
		return nil, &retryError{err}
	}
	return s, nil
}

// sessionOf returns the Session that a Turn names, or nil if the Turn has none or the Session does not exist.
func sessionOf(ctx context.Context, reader client.Reader, t *v1alpha1.Turn) (*v1alpha1.Session, error) {
	if t.Spec.SessionRef == nil {
		return nil, nil //nolint:nilnil // because "none" is an answer, not an error
	}
	var s v1alpha1.Session
	key := client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.SessionRef.Name}
	if err := reader.Get(ctx, key, &s); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // because "gone" is an answer, not an error
		}
		return nil, fmt.Errorf("failed to get session %q: %w", key.Name, err)
	}
	return &s, nil
}

// retryError means that something could not be read or written and that another attempt may succeed, for example while
// the API server is unavailable.
type retryError struct{ error }

// Unwrap returns the cause.
func (e *retryError) Unwrap() error { return e.error }

// sessionGone returns the *notReadyError for a Turn that has no prompt yet, and whose Session was deleted after the
// Turn was bound.
func sessionGone(name string) error {
	return &notReadyError{
		reason: v1alpha1.TurnReasonWaitingForSession, message: fmt.Sprintf("Session %q was deleted; Capstan creates it again", name),
	}
}

// onLoss returns the function that a Turn calls if the history of earlier Turns of its Session is lost. The
// function records the loss in the Session's status. Then the Turn continues or waits, as the Session's policy
// says. If the API server rejects that status, a Turn that may continue does so: at once if the status cannot be
// stored, and otherwise when admission has denied it for denialPatience. A Turn that must wait tries again: without the
// status, the controller would bind it again and again.
func (e *Executor) onLoss(t *v1alpha1.Turn) func(ctx context.Context, missing int64) error {
	key := client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.SessionRef.Name}
	return func(ctx context.Context, missing int64) error {
		s, err := repeatWrite(ctx, e.Now, func() (*v1alpha1.Session, error) {
			s, err := e.recordLoss(ctx, key, missing)
			switch {
			case writeerror.IsRejected(err) && translate.WaitsForHistory(s) == "":
			case err != nil:
				err = backoff.Permanent(err) // the run tries again
			}
			return s, err
		}, func(err error, wait time.Duration) {
			e.Log.Error(err, "Failed to record the loss of the history of a session, trying again", "session", key, "in", wait)
		})
		switch {
		case writeerror.IsRejected(err) && translate.WaitsForHistory(s) == "":
			e.Log.Error(err, "Failed to record the loss of the history of a session, because the API server rejects it", "session", key)
			return nil
		case err != nil:
			return &retryError{err}
		}
		if why := translate.WaitsForHistory(s); why != "" {
			return &notReadyError{reason: v1alpha1.TurnReasonWaitingForSession, message: fmt.Sprintf("Session %q: %s", key.Name, why)}
		}
		return nil
	}
}

// recordLoss makes one attempt to record the loss of the history of a Session in its status. It returns the Session
// with this status, also if the write failed.
func (e *Executor) recordLoss(ctx context.Context, key client.ObjectKey, missing int64) (*v1alpha1.Session, error) {
	var s v1alpha1.Session
	if err := e.Reader.Get(ctx, key, &s); err != nil {
		return &s, fmt.Errorf("failed to get session %q: %w", key.Name, err)
	}
	if !translate.LoseHistory(&s, missing, e.Now()) {
		return &s, nil
	}
	if err := e.Client.Status().Update(ctx, &s); err != nil {
		return &s, fmt.Errorf("failed to write the status of session %q: %w", key.Name, err)
	}
	e.Log.Info("The history of a session was lost", "session", key, "missingTurns", s.Status.MissingTurns)
	e.Events.Eventf(&s, nil, corev1.EventTypeWarning, v1alpha1.EventHistoryLost, "Recall",
		"The journal no longer has the history of %d of %d turns", s.Status.MissingTurns, s.Status.Turns)
	return &s, nil
}

// persistTotals writes the current totals of a Session into its status. It repeats the write until it succeeds, the API
// server cannot store the totals, or admission has denied them for denialPatience. It runs before the end of the Turn
// is written, so that a client that sees the end of the Turn also sees these totals.
func (e *Executor) persistTotals(ctx context.Context, t *v1alpha1.Turn, place *turn.SessionPosition, end time.Time) {
	if place == nil {
		return
	}
	key := client.ObjectKey{Namespace: t.Namespace, Name: place.Name}
	_, err := repeatWrite(ctx, e.Now, func() (struct{}, error) {
		return struct{}{}, writeTotals(ctx, e.Reader, e.Client, key, place, end)
	}, func(err error, wait time.Duration) {
		if !apierrors.IsConflict(err) { // a conflict is normal and needs no log message
			e.Log.Error(err, "Failed to write the status of a session, trying again", "session", key, "in", wait)
		}
	})
	if err != nil {
		e.Log.Error(err, "Stopped writing the status of a session", "session", key)
	}
}

// writeTotals makes one attempt to write the totals. It does nothing if the Session was deleted, even if another
// Session has its name.
func writeTotals(
	ctx context.Context, reader client.Reader, writer client.Client, key client.ObjectKey, place *turn.SessionPosition, end time.Time,
) error {
	var s v1alpha1.Session
	if err := reader.Get(ctx, key, &s); err != nil {
		return client.IgnoreNotFound(err)
	}
	if string(s.UID) != place.UID || !translate.SessionTotals(&s, place.Totals, place.Last, end) {
		return nil
	}
	err := client.IgnoreNotFound(writer.Status().Update(ctx, &s))
	if writeerror.IsRejected(err) {
		return fmt.Errorf("the API server refused the totals of the session; its history has them: %w", err)
	}
	return err
}
