package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// SessionReconciler reports whether a Session takes Turns, and deletes it when its time to live is over. Executors
// write the totals of its Turns into the same status. If an executor writes between the reconciler's read and its
// write, the reconciler's write fails with a conflict and is repeated.
type SessionReconciler struct {
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	Now  func() time.Time
	// ServerClock returns the time by the API server's clock as it is now, for age.
	ServerClock func() time.Time
	// Turns is the reconciler that must not let Turns enter a Session while it is being deleted.
	Turns *TurnReconciler
}

// SetupWithManager registers the reconciler. A Session is reconciled when its spec or its totals change, when one
// of its Turns ends or is deleted, and when its time to live is over.
func (r *SessionReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Session{}, builder.WithPredicates(sessionChanged())).
		Watches(&v1alpha1.Turn{}, handler.EnqueueRequestsFromMapFunc(sessionOf), builder.WithPredicates(turnLeft())).
		WithOptions(fairOptions(maxReconciles, maxReconcilesOfNamespace)).
		Complete(r)
}

// sessionOf maps a Turn to its Session.
func sessionOf(_ context.Context, o client.Object) []reconcile.Request {
	t, ok := o.(*v1alpha1.Turn)
	if !ok || t.Spec.SessionRef == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.SessionRef.Name}}}
}

// Reconcile handles one Session.
func (r *SessionReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var s v1alpha1.Session
	if err := r.Client.Get(ctx, req.NamespacedName, &s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !s.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	now := r.Now()
	left, ends := untilSessionEnds(&s, now, r.ServerClock())
	if ends && left <= 0 {
		inUse, err := hasTurns(ctx, r.Client, &s, client.MatchingFields{indexTurnSession: s.Name})
		if err != nil {
			return ctrl.Result{}, err
		}
		if !inUse {
			return r.remove(ctx, &s)
		}
	}
	// If unfinished Turns keep a Session beyond its time, the end of such a Turn reconciles the Session again.
	again := ctrl.Result{RequeueAfter: max(0, left)}
	before := s.Status.DeepCopy()
	setSessionConditions(&s, now)
	if equality.Semantic.DeepEqual(before, &s.Status) {
		return again, nil
	}
	return resultAfterWrite(again, r.Client.Status().Update(ctx, &s))
}

// setSessionConditions sets the conditions of a Session. A Session whose budget is used up, or whose Turns wait because
// its history was lost, takes no Turns until its spec changes, which kstatus calls stalled.
func setSessionConditions(s *v1alpha1.Session, now time.Time) {
	ready := finding{holds: true, reason: v1alpha1.ReasonOpen, message: "the session takes turns"}
	if meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionHistoryComplete) == nil {
		finding{holds: true, reason: v1alpha1.ReasonHistoryComplete, message: "the journal holds the whole conversation"}.
			set(&s.Status.Conditions, v1alpha1.ConditionHistoryComplete, s.Generation, now)
	}
	if why := translate.WaitsForHistory(s); why != "" {
		ready = finding{reason: v1alpha1.ReasonHistoryLost, message: why}
	}
	if used := translate.BudgetUsed(s); used != "" {
		ready = finding{
			reason:  v1alpha1.ReasonBudgetUsed,
			message: fmt.Sprintf("the budget is used up: %s; raise it to open the session again", used),
		}
	}
	ready.setReady(&s.Status.Conditions, s.Generation, now)
	s.Status.ObservedGeneration = s.Generation
}

// untilSessionEnds returns how long a Session is still kept. ends is false if the Session has no time to live.
func untilSessionEnds(s *v1alpha1.Session, now, server time.Time) (left time.Duration, ends bool) {
	if s.Spec.TTLSecondsAfterLastTurn == nil {
		return 0, false
	}
	idle := age(s, now, server)
	if s.Status.LastTurnTime != nil {
		idle = now.Sub(s.Status.LastTurnTime.Time)
	}
	return time.Duration(*s.Spec.TTLSecondsAfterLastTurn)*time.Second - idle, true
}

// remove deletes a Session whose time is over, unless it has changed since it was read. It also keeps the Session if
// the API server has an unfinished Turn of it that the cache does not show yet. While the Session is locked, no Turn
// can enter it. A Turn that enters later does not find the Session, and creates a new one. If a Turn is just being
// bound, remove does not wait, and the Session is reconciled again soon.
func (r *SessionReconciler) remove(ctx context.Context, s *v1alpha1.Session) (ctrl.Result, error) {
	unlock, ok := r.Turns.sessions.TryLock(client.ObjectKeyFromObject(s))
	if !ok {
		return ctrl.Result{RequeueAfter: staleInterval}, nil
	}
	defer unlock()
	err := expire(ctx, r.Turns.Memories, s, r.Now(), func() error {
		inUse, err := hasTurns(ctx, r.Live, s, client.MatchingFields{indexTurnSession: s.Name, FieldCompletionTime: ""})
		if err != nil {
			return fmt.Errorf("%w: %w", errNotAttempted, err)
		}
		if inUse {
			return errInUse
		}
		return deleteUnchanged(ctx, r.Client, r.Live, "Session", s)
	})
	switch {
	case errors.Is(err, errInUse):
		return ctrl.Result{RequeueAfter: staleInterval}, nil
	case errors.Is(err, errNotAttempted):
		return ctrl.Result{}, err
	}
	return resultAfterWrite(ctrl.Result{}, err)
}

// hasTurns reports whether c finds a Turn with these fields. The fields must select Turns that name the Session.
func hasTurns(ctx context.Context, c client.Reader, s *v1alpha1.Session, fields client.MatchingFields) (bool, error) {
	var turns v1alpha1.TurnList
	if err := c.List(ctx, &turns, client.InNamespace(s.Namespace), client.Limit(1), client.UnsafeDisableDeepCopy, fields); err != nil {
		return false, fmt.Errorf("failed to list the turns of session %q: %w", s.Name, err)
	}
	return len(turns.Items) > 0, nil
}
