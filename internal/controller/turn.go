package controller

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TurnReconciler binds Turns to executors and ends those that never get to run. While a Turn is bound its executor owns
// its status. Its cache holds the Turns that have not finished: one that is not found has finished or was deleted, which is
// the same to those who wait for its place. FinishedTurns looks after what comes then.
type TurnReconciler struct {
	Client    client.Client
	Events    events.EventRecorder
	Executors *ExecutorReconciler
	Now       func() time.Time
	// Reader tells whether the ConfigMaps of Turns exist: the cache, or the API server where they may not be watched.
	Reader client.Reader
	// Live reads Sessions from the API server.
	Live client.Reader
	// Ceiling is what no Turn goes beyond, whatever it and its Agent say; nil for nothing. Executors have the same.
	Ceiling *v1alpha1.Limits
	// Approvals says which decisions about calls may be used.
	Approvals approvals.Check
	// Recheck is how often Turns that wait for a ConfigMap are looked at where ConfigMaps may not be watched; 0 watches them.
	Recheck time.Duration

	places *places
	// entering is held while Turns are told what their Session says, and locked while a Session is deleted that none names.
	entering sync.RWMutex
	wrote    ownWrites
	// sessions are held, by a hash of their names, from the look at the Turns of a Session until one of them is bound.
	sessions [64]sync.Mutex
	seed     struct {
		sync.Mutex
		done bool
	}
	// queue of the controller, nil before it has started. Other controllers may start earlier and wake Turns.
	queue atomic.Pointer[turnQueue]
}

type turnQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// sessionSeed spreads Sessions over their locks.
var sessionSeed = maphash.MakeSeed()

// bindingsAtOnce is how many Turns are looked at side by side: each binding waits for one write.
const bindingsAtOnce = 8

// SetupWithManager registers the reconciler. A Turn is looked at when it appears, when its spec changes, when it has
// ended or was handed back, when its agent changes, when a ConfigMap that it waits for appears, when it is its turn in its
// Session, when somebody has decided about one of its calls (and from time to time while such a decision may not be used), when the Turn of a sub-agent that it waits for has ended, when the
// Turn that waits for it has, and when a place becomes free for it.
func (r *TurnReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.places = newPlaces(func(turn types.NamespacedName) { r.enqueue(reconcile.Request{NamespacedName: turn}) })
	options := retries()
	options.MaxConcurrentReconciles = bindingsAtOnce
	b := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Turn{}, builder.WithPredicates(turnNews())).
		Watches(&v1alpha1.Agent{}, handler.EnqueueRequestsFromMapFunc(r.waitersOf), builder.WithPredicates(agentNews())).
		Watches(&v1alpha1.Turn{}, handler.EnqueueRequestsFromMapFunc(r.matesOf), builder.WithPredicates(queueOfSessionNews())).
		Watches(&v1alpha1.Turn{}, handler.EnqueueRequestsFromMapFunc(r.relativesOf), builder.WithPredicates(concernsRelatives())).
		Watches(&v1alpha1.ToolApproval{}, handler.EnqueueRequestsFromMapFunc(turnOf), builder.WithPredicates(decisionMade())).
		Watches(&v1alpha1.Session{}, handler.EnqueueRequestsFromMapFunc(r.firstOf), builder.WithPredicates(sessionOpens())).
		WatchesRawSource(source.Func(func(_ context.Context, q turnQueue) error {
			r.queue.Store(&q)
			return nil
		})).
		WithOptions(options)
	if r.Recheck == 0 {
		b = b.Watches(&corev1.ConfigMap{}, users(r.Client, &v1alpha1.TurnList{}, indexTurnConfigMap), builder.OnlyMetadata, builder.WithPredicates(appears()))
	}
	return b.Complete(r)
}

func (r *TurnReconciler) enqueue(req reconcile.Request) {
	if q := r.queue.Load(); q != nil {
		(*q).Add(req)
	}
}

// waitersOf maps an agent to its Turns that are not bound.
func (r *TurnReconciler) waitersOf(ctx context.Context, o client.Object) []reconcile.Request {
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.InNamespace(o.GetNamespace()), client.MatchingFields{indexTurnAgent: o.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the turns of an agent", "agent", o.GetName())
		return nil
	}
	var waiting []request
	for i := range turns.Items {
		if t := &turns.Items[i]; t.BoundTo() == "" {
			waiting = append(waiting, requestOf(t))
		}
	}
	slices.SortFunc(waiting, request.compare) // the queue keeps the order
	requests := make([]reconcile.Request, 0, len(waiting))
	for _, w := range waiting {
		requests = append(requests, reconcile.Request{NamespacedName: w.turn})
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
			r.wrote.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !t.DeletionTimestamp.IsZero() {
		// Somebody's finalizer holds it; its executor has stopped.
		r.places.leave(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if r.wrote.missing(&t) {
		return ctrl.Result{RequeueAfter: staleInterval}, nil
	}
	if ref := t.Spec.SessionRef; ref != nil {
		lock := &r.sessions[maphash.String(sessionSeed, t.Namespace+"/"+ref.Name)%uint64(len(r.sessions))]
		lock.Lock()
		defer lock.Unlock()
	}
	v, d, err := r.judge(ctx, &t)
	if err != nil {
		r.places.pass(req.NamespacedName)
		return ctrl.Result{}, err
	}
	again := ctrl.Result{RequeueAfter: d.after}
	switch d.action {
	case admit:
		return r.admit(ctx, v, d)
	case wait:
		r.places.leave(req.NamespacedName)
		return written(again, r.wait(ctx, &t, d.reason, d.message))
	case park:
		r.places.leave(req.NamespacedName)
		return written(again, r.park(ctx, v, d))
	case gather: // which the watch then shows
		r.places.leave(req.NamespacedName)
		return written(again, r.gather(ctx, v))
	case cancel: // which the watch then shows
		return written(again, r.cancelTurn(ctx, &t))
	case settle:
		return r.settle(ctx, v, d)
	case end:
		r.places.leave(req.NamespacedName)
		return written(again, r.end(ctx, &t, d))
	case remove:
		r.places.leave(req.NamespacedName)
		return written(again, removeTurn(ctx, r.Client, &t))
	case observe:
		r.places.leave(req.NamespacedName)
		t.Status.ObservedGeneration = t.Generation
		return written(again, r.updateStatus(ctx, &t))
	case nothing:
		switch {
		case t.IsFinished():
			r.places.leave(req.NamespacedName)
		case t.BoundTo() != "":
			r.places.hold(&t)
		default:
			r.places.pass(req.NamespacedName)
		}
	}
	return again, nil
}

// seedPlaces notes, once, what was bound before this process started.
func (r *TurnReconciler) seedPlaces(ctx context.Context) error {
	r.seed.Lock()
	defer r.seed.Unlock()
	if r.seed.done {
		return nil
	}
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns); err != nil {
		return fmt.Errorf("failed to list the turns that are bound: %w", err)
	}
	for i := range turns.Items {
		if t := &turns.Items[i]; t.BoundTo() != "" && t.DeletionTimestamp.IsZero() {
			r.places.hold(t)
		}
	}
	r.seed.done = true
	return nil
}

func agentKey(t *v1alpha1.Turn) types.NamespacedName {
	return types.NamespacedName{Namespace: t.Namespace, Name: t.Spec.AgentRef.Name}
}

// judge gathers what a decision about a Turn is made from, and decides. A Turn that may be bound enters its Session first.
func (r *TurnReconciler) judge(ctx context.Context, t *v1alpha1.Turn) (view, decision, error) {
	v, err := r.view(ctx, t)
	if err != nil {
		return v, decision{}, err
	}
	d := decide(v)
	if d.action == admit {
		d, err = r.enter(ctx, v, d)
	}
	return v, d, err
}

// view gathers what a decision is made from.
func (r *TurnReconciler) view(ctx context.Context, t *v1alpha1.Turn) (view, error) {
	v := view{turn: t, ceiling: r.Ceiling, recheck: r.Recheck, journals: r.Executors.space.of(t.Namespace), now: r.Now()}
	if t.IsFinished() {
		return v, nil
	}
	var err error
	if v.abandoned, err = r.isAbandoned(ctx, t); err != nil {
		return v, err
	}
	if t.BoundTo() == "" {
		if v.waits, err = r.waits(ctx, t); err != nil {
			return v, err
		}
	}
	if name := t.BoundTo(); name != "" {
		if v.executorLives, err = r.Executors.lives(ctx, name); err != nil {
			return v, fmt.Errorf("failed to get the lease of executor %q: %w", name, err)
		}
	}
	var agent v1alpha1.Agent
	switch err := r.Client.Get(ctx, agentKey(t), &agent); {
	case err == nil:
		v.agent = translate.Bounded(&agent, t, r.Ceiling)
	case !apierrors.IsNotFound(err):
		return v, fmt.Errorf("failed to get agent %q: %w", t.Spec.AgentRef.Name, err)
	}
	if ref := t.Spec.SessionRef; ref != nil {
		if v.mates, err = sessionMates(ctx, r.Client, t.Namespace, ref.Name); err != nil {
			return v, err
		}
	}
	v.missing, err = missingConfigMap(ctx, r.Reader, t)
	return v, err
}

// admit binds a Turn if there is a place for it, by one write that claims it.
func (r *TurnReconciler) admit(ctx context.Context, v view, d decision) (ctrl.Result, error) {
	wanted := requestOf(v.turn)
	if m := v.agent.Spec.MaxParallelTurns; m != nil {
		wanted.most = int(*m)
	}
	r.places.look(wanted.turn)
	executors, err := r.Executors.live(ctx)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("failed to list executors: %w", err)
	}
	name, why := r.places.take(wanted, executors)
	if why != "" {
		return written(ctrl.Result{RequeueAfter: d.after}, r.wait(ctx, v.turn, queueReason(executors), why))
	}
	return r.bind(ctx, v, named(executors, name))
}

// named is the executor of a name.
func named(executors []ExecutorInfo, name string) ExecutorInfo {
	i := slices.IndexFunc(executors, func(e ExecutorInfo) bool { return e.Name == name })
	return executors[i]
}

// settle binds a Turn that is to end, so that its executor ends it with all that the journal holds. Where there is no
// executor, a Turn whose time is over still waits for one for a while, and any other ends here and now.
func (r *TurnReconciler) settle(ctx context.Context, v view, d decision) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(v.turn)
	r.places.look(key)
	executors, err := r.Executors.live(ctx)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("failed to list executors: %w", err)
	}
	if name := r.places.claim(requestOf(v.turn), executors); name != "" {
		return r.bind(ctx, v, named(executors, name))
	}
	if left := v.untilGivenUp(); left > 0 && d.reason == v1alpha1.TurnReasonDeadlineExceeded {
		// The Turn goes on looking: an executor that appears wakes it.
		return written(ctrl.Result{RequeueAfter: left}, r.wait(ctx, v.turn, v1alpha1.TurnReasonPending, "no executor is running"))
	}
	r.places.leave(key)
	return written(ctrl.Result{}, r.end(ctx, v.turn, d))
}

// bind writes that a Turn has its place, which claims it.
func (r *TurnReconciler) bind(ctx context.Context, v view, to ExecutorInfo) (ctrl.Result, error) {
	t, name := v.turn, to.Name
	translate.Unpark(t, v.now)
	translate.Wait(t, v1alpha1.TurnReasonRunning, fmt.Sprintf("bound to executor %q", name), v.now)
	translate.Start(t, v.now)
	t.Status.Executor = translate.Bind(t, v.agent, name, to.Store.ID, to.Store.Incarnation)
	meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionPrepared) // what an earlier run said of it
	switch err := r.updateStatus(ctx, t); {
	case err == nil:
		r.places.hold(t)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		r.places.leave(client.ObjectKeyFromObject(t))
		return written(ctrl.Result{}, err)
	default:
		// The write may have been done all the same, so the Turn keeps its place until it is looked at again.
		return ctrl.Result{}, fmt.Errorf("failed to bind the turn to executor %q: %w", name, err)
	}
	if name == r.Executors.Self {
		return ctrl.Result{}, nil
	}
	// If the executor's Lease runs out before the cache shows this binding, the Turn is not among those that are then
	// bound anew.
	return ctrl.Result{RequeueAfter: executor.LeaseDuration}, nil
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
	more := keepSessionOrder(t)
	if t.BoundTo() != "" {
		translate.Abandon(t.Status.Executor)
		t.Status.Executor.Name = ""
		more = true
	}
	if reason == v1alpha1.TurnReasonSuspended && t.Status.StartTime != nil {
		translate.Suspend(t) // its time starts anew when it goes on
		more = true
	}
	more = translate.PauseClock(t, false, r.Now()) || more
	if changed := translate.Wait(t, reason, message, r.Now()); !changed && !more {
		return nil
	}
	return r.updateStatus(ctx, t)
}

// updateStatus writes a status as it follows from what was read; it fails with a conflict if the Turn has changed since.
func (r *TurnReconciler) updateStatus(ctx context.Context, t *v1alpha1.Turn) error {
	if err := r.Client.Status().Update(ctx, t); err != nil {
		return err
	}
	r.wrote.note(t)
	return nil
}

// end ends a Turn that did not run, then tells people.
func (r *TurnReconciler) end(ctx context.Context, t *v1alpha1.Turn, d decision) error {
	if t.Status.Executor != nil {
		t.Status.Executor.Name = ""
	}
	meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionPrepared)
	translate.End(t, metav1.ConditionFalse, d.reason, d.message, r.Now())
	switch d.reason {
	case v1alpha1.TurnReasonCancelled:
		t.Status.StopReason = v1alpha1.StopCancelled
	case v1alpha1.TurnReasonDeadlineExceeded:
		t.Status.StopReason = v1alpha1.StopDeadline
	case v1alpha1.TurnReasonInvalidSpec:
		t.Status.StopReason = v1alpha1.StopInvalidSpec
	case v1alpha1.TurnReasonSessionClosed:
		t.Status.StopReason = v1alpha1.StopSessionClosed
	}
	if err := r.updateStatus(ctx, t); err != nil {
		return err
	}
	kind, reason := corev1.EventTypeWarning, v1alpha1.EventFailed
	if d.reason == v1alpha1.TurnReasonCancelled {
		kind, reason = corev1.EventTypeNormal, v1alpha1.EventCancelled
	}
	metrics.Ended(t, nil)
	r.Events.Eventf(t, nil, kind, reason, "End", "%s", translate.Summary(t))
	return nil
}
