package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// session returns the Session that a Turn names, as the API server has it: what is left of its budget must be right. It is
// nil for a Turn without one, and where the Session has gone since the Turn was bound.
func (e *Executor) session(ctx context.Context, t *v1alpha1.Turn) (*v1alpha1.Session, error) {
	if t.Spec.SessionRef == nil {
		return nil, nil //nolint:nilnil // because "none" is an answer, not an error
	}
	var s v1alpha1.Session
	key := client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.SessionRef.Name}
	if err := e.Reader.Get(ctx, key, &s); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // because "gone" is an answer, not an error
		}
		return nil, &unreadError{fmt.Errorf("failed to get session %q: %w", key.Name, err)}
	}
	return &s, nil
}

// unreadError is something that could not be read and is worth another try, as while the API server is away.
type unreadError struct{ error }

// Unwrap returns the cause.
func (e *unreadError) Unwrap() error { return e.error }

// sessionGone is the wait of a Turn that has no prompt yet for a Session that was deleted after the Turn was bound.
func sessionGone(name string) error {
	return &notReadyError{v1alpha1.TurnReasonWaitingForSession, fmt.Sprintf("Session %q was deleted; it is made anew", name)}
}

// onLoss returns what happens when a Turn finds that the history of earlier Turns of its Session was lost: the Session says so, and
// the Turn goes on or waits, as the Session's policy says.
func (e *Executor) onLoss(t *v1alpha1.Turn) func(ctx context.Context, missing int64) error {
	key := client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.SessionRef.Name}
	return func(ctx context.Context, missing int64) error {
		var s v1alpha1.Session
		if err := e.Reader.Get(ctx, key, &s); err != nil {
			return &unreadError{fmt.Errorf("failed to get session %q: %w", key.Name, err)}
		}
		if translate.LoseHistory(&s, missing, e.Now()) {
			if err := e.Client.Status().Update(ctx, &s); err != nil {
				return &unreadError{fmt.Errorf("failed to write the status of session %q: %w", key.Name, err)}
			}
			e.Log.Info("The history of a session was lost", "session", key, "missingTurns", s.Status.MissingTurns)
			e.Events.Eventf(&s, nil, corev1.EventTypeWarning, v1alpha1.EventHistoryLost, "Recall",
				"The journal does not have the history of %d of %d turns any more", s.Status.MissingTurns, s.Status.Turns)
		}
		if why := translate.WaitsForHistory(&s); why != "" {
			return &notReadyError{v1alpha1.TurnReasonWaitingForSession, fmt.Sprintf("Session %q: %s", key.Name, why)}
		}
		return nil
	}
}

// total writes what the Turns of a Session took by now into its status, until that succeeds. It comes before the end of the
// Turn is written, so that whoever sees that end sees these totals.
func (e *Executor) total(ctx context.Context, t *v1alpha1.Turn, place *turn.Place, end time.Time) {
	if place == nil {
		return
	}
	key := client.ObjectKey{Namespace: t.Namespace, Name: place.Name}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 5*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, writeTotals(ctx, e.Reader, e.Client, key, place, end)
	}, backoff.WithBackOff(retry), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, wait time.Duration) {
		if !apierrors.IsConflict(err) { // somebody else changed the Session: that is no news to anybody
			e.Log.Error(err, "Failed to write the status of a session, trying again", "session", key, "in", wait)
		}
	}))
	if err != nil {
		e.Log.Error(err, "Gave up writing the status of a session", "session", key)
	}
}

// writeTotals writes the totals once. A Session that has gone, or was made anew meanwhile, has no use for them.
func writeTotals(
	ctx context.Context, reader client.Reader, writer client.Client, key client.ObjectKey, place *turn.Place, end time.Time,
) error {
	var s v1alpha1.Session
	if err := reader.Get(ctx, key, &s); err != nil {
		return client.IgnoreNotFound(err)
	}
	if string(s.UID) != place.UID || !translate.SessionTotals(&s, place.Totals, place.Last, end) {
		return nil
	}
	err := writer.Status().Update(ctx, &s)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case isRefused(err):
		return backoff.Permanent(errors.Join(errors.New("the API server refused the totals of the session, which its history has"), err))
	}
	return err
}
