package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TurnReconciler binds Turns to executors and ends those that never get to run. While a Turn is bound its executor owns
// its status.
type TurnReconciler struct {
	Client    client.Client
	Events    events.EventRecorder
	Executors *ExecutorReconciler
	Now       func() time.Time

	places *places
	seed   sync.Once
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// bindingsAtOnce is how many Turns are looked at side by side: each binding waits for one write.
const bindingsAtOnce = 8

// SetupWithManager registers the reconciler. A Turn is looked at when it appears, when its spec changes, when it has
// ended or was handed back, when its agent changes, and when a place becomes free for it.
func (r *TurnReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.places = newPlaces(func(turn types.NamespacedName) { r.enqueue(reconcile.Request{NamespacedName: turn}) })
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Turn{}, builder.WithPredicates(turnNews())).
		Watches(&v1alpha1.Agent{}, handler.EnqueueRequestsFromMapFunc(r.waitersOf), builder.WithPredicates(agentNews())).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.queue = q
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: bindingsAtOnce}).
		Complete(r)
}

func (r *TurnReconciler) enqueue(req reconcile.Request) {
	if r.queue != nil {
		r.queue.Add(req)
	}
}

// turnNews lets through what the reconciler acts on, so that the status writes of binding and running wake nobody.
func turnNews() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Turn)
		after, isTurn := e.ObjectNew.(*v1alpha1.Turn)
		if !ok || !isTurn {
			return false
		}
		return before.Generation != after.Generation ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			before.IsFinished() != after.IsFinished() ||
			(before.BoundTo() != "" && after.BoundTo() == "")
	}}
}

// agentNews lets through what may let a waiting Turn run.
func agentNews() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Agent)
			after, isAgent := e.ObjectNew.(*v1alpha1.Agent)
			if !ok || !isAgent {
				return false
			}
			was := ready(before.Status.Conditions, before.Generation)
			is := ready(after.Status.Conditions, after.Generation)
			return before.Generation != after.Generation || (was == nil) != (is == nil) ||
				(was != nil && (was.Status != is.Status || was.Message != is.Message))
		},
	}
}

// waitersOf maps an agent to its Turns that are not bound.
func (r *TurnReconciler) waitersOf(ctx context.Context, o client.Object) []reconcile.Request {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.InNamespace(o.GetNamespace()), client.MatchingFields{indexTurnAgent: o.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the turns of an agent", "agent", o.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range turns.Items {
		if turns.Items[i].BoundTo() == "" {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&turns.Items[i])})
		}
	}
	return requests
}

// Reconcile looks at one Turn, decides, and acts.
func (r *TurnReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.seedPlaces(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var t v1alpha1.Turn
	if err := r.Client.Get(ctx, req.NamespacedName, &t); err != nil {
		if apierrors.IsNotFound(err) {
			r.places.leave(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !t.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // somebody's finalizer holds it; its executor has stopped
	}
	v, err := r.view(ctx, &t)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(v)
	again := ctrl.Result{RequeueAfter: d.after}
	switch d.action {
	case admit:
		return r.admit(ctx, v, d)
	case wait:
		r.places.leave(req.NamespacedName)
		return again, r.wait(ctx, &t, d.reason, d.message)
	case end:
		r.places.leave(req.NamespacedName)
		return again, r.end(ctx, &t, d)
	case remove:
		r.places.leave(req.NamespacedName)
		return again, r.remove(ctx, &t)
	case observe:
		r.places.leave(req.NamespacedName)
		t.Status.ObservedGeneration = t.Generation
		return again, ignoreStale(r.Client.Status().Update(ctx, &t))
	case nothing:
		if t.IsFinished() {
			r.places.leave(req.NamespacedName)
		}
	}
	return again, nil
}

// seedPlaces notes, once, what was bound before this process started.
func (r *TurnReconciler) seedPlaces(ctx context.Context) (err error) {
	r.seed.Do(func() {
		var turns v1alpha1.TurnList
		if err = r.Client.List(ctx, &turns); err != nil {
			r.seed = sync.Once{}
			return
		}
		for i := range turns.Items {
			if t := &turns.Items[i]; t.BoundTo() != "" {
				r.places.hold(client.ObjectKeyFromObject(t), agentKey(t), t.BoundTo())
			}
		}
	})
	return err
}

func agentKey(t *v1alpha1.Turn) types.NamespacedName {
	return types.NamespacedName{Namespace: t.Namespace, Name: t.Spec.AgentRef.Name}
}

// view gathers what a decision is made from.
func (r *TurnReconciler) view(ctx context.Context, t *v1alpha1.Turn) (view, error) {
	v := view{turn: t, now: r.Now()}
	if t.IsFinished() {
		return v, nil
	}
	if name := t.BoundTo(); name != "" {
		var err error
		if v.executorLives, err = r.Executors.lives(ctx, name); err != nil {
			return v, fmt.Errorf("failed to get the lease of executor %q: %w", name, err)
		}
	}
	var agent v1alpha1.Agent
	switch err := r.Client.Get(ctx, agentKey(t), &agent); {
	case err == nil:
		v.agent = &agent
	case !apierrors.IsNotFound(err):
		return v, fmt.Errorf("failed to get agent %q: %w", t.Spec.AgentRef.Name, err)
	}
	return v, nil
}

// admit binds a Turn if there is a place for it, by one write that claims it.
func (r *TurnReconciler) admit(ctx context.Context, v view, d decision) (ctrl.Result, error) {
	t := v.turn
	key := client.ObjectKeyFromObject(t)
	executors, err := r.Executors.live(ctx)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("failed to list executors: %w", err)
	}
	most := 0
	if m := v.agent.Spec.MaxParallelTurns; m != nil {
		most = int(*m)
	}
	name, why := r.places.take(key, agentKey(t), t.CreationTimestamp.Time, most, executors)
	if why != "" {
		return ctrl.Result{RequeueAfter: d.after}, r.wait(ctx, t, queueReason(executors), why)
	}
	translate.Wait(t, v1alpha1.TurnReasonRunning, fmt.Sprintf("bound to executor %q", name), v.now)
	if t.Status.StartTime == nil {
		start := metav1.NewMicroTime(v.now)
		t.Status.StartTime = &start
	}
	t.Status.Executor = &v1alpha1.ExecutorBinding{Name: name, Epoch: t.Epoch() + 1}
	if err := r.Client.Status().Update(ctx, t); err != nil {
		r.places.giveBack(key)
		return ctrl.Result{}, ignoreStale(err)
	}
	return ctrl.Result{}, nil
}

// queueReason is Queued where all executors are busy, and Pending where there is none yet.
func queueReason(executors []ExecutorInfo) string {
	if len(executors) == 0 {
		return v1alpha1.TurnReasonPending
	}
	return v1alpha1.TurnReasonQueued
}

// wait writes down what a Turn waits for, if that is news. A Turn of a lost executor is unbound by it.
func (r *TurnReconciler) wait(ctx context.Context, t *v1alpha1.Turn, reason, message string) error {
	unbound := false
	if t.BoundTo() != "" {
		t.Status.Executor.Name = ""
		unbound = true
	}
	if changed := translate.Wait(t, reason, message, r.Now()); !changed && !unbound {
		return nil
	}
	return ignoreStale(r.Client.Status().Update(ctx, t))
}

// end ends a Turn that did not run, then tells people.
func (r *TurnReconciler) end(ctx context.Context, t *v1alpha1.Turn, d decision) error {
	if t.Status.Executor != nil {
		t.Status.Executor.Name = ""
	}
	translate.End(t, metav1.ConditionFalse, d.reason, d.message, r.Now())
	switch d.reason {
	case v1alpha1.TurnReasonCancelled:
		t.Status.StopReason = v1alpha1.StopCancelled
	case v1alpha1.TurnReasonDeadlineExceeded:
		t.Status.StopReason = v1alpha1.StopDeadline
	}
	if err := r.Client.Status().Update(ctx, t); err != nil {
		return ignoreStale(err)
	}
	kind, reason := corev1.EventTypeWarning, v1alpha1.EventFailed
	if d.reason == v1alpha1.TurnReasonCancelled {
		kind, reason = corev1.EventTypeNormal, v1alpha1.EventCancelled
	}
	r.Events.Eventf(t, nil, kind, reason, "End", "%s", d.reason)
	return nil
}

// remove deletes a Turn whose time to live is over, unless it has changed meanwhile.
func (r *TurnReconciler) remove(ctx context.Context, t *v1alpha1.Turn) error {
	return ignoreStale(r.Client.Delete(ctx, t,
		client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion},
		client.PropagationPolicy(metav1.DeletePropagationBackground)))
}
