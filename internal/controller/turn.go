package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/fairqueue"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/scheduler"
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

	// Limits bound what one namespace takes.
	Limits scheduler.Limits

	slots *scheduler.Slots
	// entering is held while Turns are told what their Session says, and locked while a Session is deleted that none names.
	entering sync.RWMutex
	wrote    scheduler.Expectations
	// waiting are the Turns that wait for something but people and sub-agents.
	waiting waitingTurns
	// queues order the unfinished Turns of each Session. sessions are those of which a Turn is being bound: see enterAlone.
	queues   sessionQueues
	sessions sync.Map
	seed     struct {
		sync.Mutex
		done bool
	}
	// queue of the controller, nil before it has started. Other controllers may start earlier and wake Turns.
	queue atomic.Pointer[turnQueue]
}

type turnQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// bindingsAtOnce is how many Turns are looked at side by side: each binding waits for one write. Of one namespace it is fewer, so
// that no namespace takes all workers.
const (
	bindingsAtOnce      = 16
	bindingsOfNamespace = 12
)

// SetupWithManager registers the reconciler. A Turn is looked at when it appears, when its spec changes, when it has
// ended or was handed back, when a change of its Agent bears on it, when a ConfigMap that it waits for appears, when it is its
// turn in its Session, when somebody has decided about one of its calls (and from time to time while such a decision may not be
// used), when the Turn of a sub-agent that it waits for has ended, when the Turn that waits for it has, and when it has got a slot.
func (r *TurnReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.slots = scheduler.New(r.Limits, r.wake)
	metrics.Waiting(r.waiting.counted)
	b := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Turn{}, builder.WithPredicates(turnNews(), appearsAlone())).
		Watches(&v1alpha1.Turn{}, r.slotEvents()).
		Watches(&v1alpha1.Agent{}, r.agentEvents()).
		Watches(&v1alpha1.Turn{}, r.sessionEvents()).
		Watches(&v1alpha1.Turn{}, handler.EnqueueRequestsFromMapFunc(r.relativesOf), builder.WithPredicates(concernsRelatives())).
		Watches(&v1alpha1.ToolApproval{}, handler.EnqueueRequestsFromMapFunc(turnOf), builder.WithPredicates(decisionMade())).
		Watches(&v1alpha1.Session{}, handler.EnqueueRequestsFromMapFunc(r.firstOf), builder.WithPredicates(sessionOpens())).
		WatchesRawSource(source.Func(func(_ context.Context, q turnQueue) error {
			r.queue.Store(&q)
			return nil
		})).
		WithOptions(inTurn(bindingsAtOnce, bindingsOfNamespace))
	if r.Recheck == 0 {
		b = b.Watches(&corev1.ConfigMap{}, users(r.Client, &v1alpha1.TurnList{}, indexTurnConfigMap), builder.OnlyMetadata, builder.WithPredicates(appears()))
	}
	return b.Complete(r)
}

// wake brings a Turn back for the scheduler.
func (r *TurnReconciler) wake(turn scheduler.Key, urgent bool) {
	if urgent {
		r.enqueue(turn, fairqueue.Urgent)
	} else {
		r.enqueue(turn, fairqueue.Normal)
	}
}

func (r *TurnReconciler) enqueue(turn scheduler.Key, priority int) {
	q := r.queue.Load()
	if q == nil {
		return
	}
	request := reconcile.Request{NamespacedName: turn}
	if fair, ok := (*q).(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		fair.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, request)
	} else {
		(*q).Add(request)
	}
}

// Reconcile looks at one Turn, decides, and acts. What an action means for the Turn's slot, the action says.
func (r *TurnReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.seedSlots(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var t v1alpha1.Turn
	if err := r.Client.Get(ctx, req.NamespacedName, &t); err != nil {
		if apierrors.IsNotFound(err) {
			r.slots.Release(req.NamespacedName)
			r.wrote.Forget(req.NamespacedName)
			r.waiting.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !t.DeletionTimestamp.IsZero() {
		r.slots.Release(req.NamespacedName) // a finalizer holds the Turn; its executor has stopped
		r.waiting.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if r.wrote.IsStale(&t) {
		return ctrl.Result{RequeueAfter: staleInterval}, nil
	}
	v, d, leave, err := r.judge(ctx, &t)
	defer leave()
	if err != nil {
		r.useSlot(&t, deferSlot)
		return ctrl.Result{}, err
	}
	if use := d.action.slot(); use != reserveSlot {
		r.useSlot(&t, use)
		result, err := r.act(ctx, v, d)
		return r.noteWait(&t, v.agent, result, err)
	}
	result, use, err := r.schedule(ctx, v, d)
	r.useSlot(&t, use)
	return r.noteWait(&t, v.agent, result, err)
}

// useSlot tells the scheduler what becomes of the slot of a Turn.
func (r *TurnReconciler) useSlot(t *v1alpha1.Turn, use slotUse) {
	switch key := client.ObjectKeyFromObject(t); use {
	case releaseSlot:
		r.slots.Release(key)
	case deferSlot:
		r.slots.Defer(key)
	case confirmSlot:
		r.slots.Confirm(requestOf(t), t.BoundTo())
	case keepSlot, reserveSlot:
	}
}

// act does what was decided, where that needs no slot.
func (r *TurnReconciler) act(ctx context.Context, v view, d decision) (ctrl.Result, error) {
	t, again := v.turn, ctrl.Result{RequeueAfter: d.after}
	switch d.action {
	case wait:
		return written(again, r.wait(ctx, t, d.reason, d.message))
	case park:
		return written(again, r.park(ctx, v, d))
	case gather: // which the watch then shows
		return written(again, r.gather(ctx, v))
	case cancel: // which the watch then shows
		return written(again, r.cancelTurn(ctx, t))
	case end:
		return written(again, r.end(ctx, t, d))
	case remove:
		return written(again, removeTurn(ctx, r.Client, t))
	case observe:
		t.Status.ObservedGeneration = t.Generation
		return written(again, r.updateStatus(ctx, t))
	case nothing, follow, hold, admit, settle:
	}
	return again, nil
}

// seedSlots notes, once, what was bound before this process started.
func (r *TurnReconciler) seedSlots(ctx context.Context) error {
	r.seed.Lock()
	defer r.seed.Unlock()
	if r.seed.done {
		return nil
	}
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("failed to list the turns that are bound: %w", err)
	}
	for i := range turns.Items {
		if t := &turns.Items[i]; t.BoundTo() != "" && t.DeletionTimestamp.IsZero() {
			r.slots.Confirm(requestOf(t), t.BoundTo())
		}
	}
	r.seed.done = true
	return nil
}

// requestOf is the request of a Turn of whose Agent nothing is said.
func requestOf(t *v1alpha1.Turn) scheduler.Request {
	return scheduler.Request{
		Turn: client.ObjectKeyFromObject(t), Agent: scheduler.Agent{Key: agentKey(t)}, Since: t.CreationTimestamp.Time,
		Admitted: t.Epoch() > 0 || t.StateReason() == v1alpha1.TurnReasonQueued,
	}
}

func agentKey(t *v1alpha1.Turn) client.ObjectKey {
	return client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.AgentRef.Name}
}

// judge gathers what a decision about a Turn is made from, and decides. A Turn that may be bound enters its Session first. leave
// must be called when the decision has been acted on.
func (r *TurnReconciler) judge(ctx context.Context, t *v1alpha1.Turn) (v view, d decision, leave func(), err error) {
	leave = func() {}
	if v, err = r.view(ctx, t); err != nil {
		return v, decision{}, leave, err
	}
	if d = decide(v); d.action != admit {
		return v, d, leave, nil
	}
	if t.Spec.SessionRef != nil {
		return r.enterAlone(ctx, v)
	}
	return v, d, leave, nil
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
	if t.Spec.SessionRef != nil {
		v.mates = r.matesAhead(t)
	}
	v.missing, err = missingConfigMap(ctx, r.Reader, t)
	return v, err
}

// schedule asks for a slot for a Turn and binds it, and says what becomes of the slot.
func (r *TurnReconciler) schedule(ctx context.Context, v view, d decision) (ctrl.Result, slotUse, error) {
	// An executor that appears while they are listed wakes the Turn.
	r.slots.AwaitExecutor(client.ObjectKeyFromObject(v.turn))
	executors, err := r.Executors.live(ctx)
	if err != nil {
		return ctrl.Result{}, deferSlot, fmt.Errorf("failed to list executors: %w", err)
	}
	if d.action == settle {
		return r.settle(ctx, v, d, executors)
	}
	return r.admit(ctx, v, d, executors)
}

// admit binds a Turn if there is a slot for it, by one write that claims it.
func (r *TurnReconciler) admit(ctx context.Context, v view, d decision, executors []scheduler.Executor) (ctrl.Result, slotUse, error) {
	wanted := requestOf(v.turn)
	wanted.Agent = agentInfo(v.agent)
	switch verdict := r.slots.Reserve(wanted, executors); verdict.Cause {
	case scheduler.NoCause:
		return r.bind(ctx, v, named(executors, verdict.Executor), false)
	case scheduler.QueueFull:
		full := decision{action: end, reason: v1alpha1.TurnReasonQueueFull, message: verdict.Message}
		result, err := written(ctrl.Result{}, r.end(ctx, v.turn, full))
		return result, releaseSlot, err
	case scheduler.NoExecutor:
		if v.turn.StateReason() == v1alpha1.TurnReasonQueued {
			return ctrl.Result{RequeueAfter: d.after}, keepSlot, nil // as while the only executor starts again: it waits on
		}
		result, err := written(ctrl.Result{RequeueAfter: d.after}, r.wait(ctx, v.turn, v1alpha1.TurnReasonPending, verdict.Message))
		return result, keepSlot, err
	default:
		result, err := written(ctrl.Result{RequeueAfter: d.after}, r.wait(ctx, v.turn, v1alpha1.TurnReasonQueued, verdict.Message))
		return result, keepSlot, err
	}
}

// agentInfo is what the scheduler learns of an Agent.
func agentInfo(a *v1alpha1.Agent) scheduler.Agent {
	info := scheduler.Agent{Key: client.ObjectKeyFromObject(a), Version: 1}
	if version, err := strconv.ParseInt(a.ResourceVersion, 10, 64); err == nil {
		info.Version = version
	}
	if most := a.Spec.MaxParallelTurns; most != nil {
		info.Most = int(*most)
	}
	return info
}

// named is the executor of a name.
func named(executors []scheduler.Executor, name string) scheduler.Executor {
	i := slices.IndexFunc(executors, func(e scheduler.Executor) bool { return e.Name == name })
	return executors[i]
}

// settle binds a Turn that is to end, so that its executor ends it with all that the journal holds, and charges its Session. Where there
// is no executor, the Turn waits for one, as long as untilGivenUp says. Then it ends with what its status knows.
func (r *TurnReconciler) settle(ctx context.Context, v view, d decision, executors []scheduler.Executor) (ctrl.Result, slotUse, error) {
	if name := r.slots.ReserveOverLimit(requestOf(v.turn), executors); name != "" {
		overdue := d.reason == v1alpha1.TurnReasonDeadlineExceeded && v.turn.Status.StartTime == nil
		return r.bind(ctx, v, named(executors, name), overdue)
	}
	if left := v.untilGivenUp(); left > 0 {
		// The Turn goes on looking: an executor that appears wakes it.
		result, err := written(ctrl.Result{RequeueAfter: left}, r.wait(ctx, v.turn, v1alpha1.TurnReasonPending, "no executor is running"))
		return result, keepSlot, err
	}
	result, err := written(ctrl.Result{}, r.end(ctx, v.turn, d))
	return result, releaseSlot, err
}

// bind writes that a Turn has its slot, which claims it. overdue says that it is bound to be ended, because it waited too long for its
// start after a suspension.
func (r *TurnReconciler) bind(ctx context.Context, v view, to scheduler.Executor, overdue bool) (ctrl.Result, slotUse, error) {
	t, name := v.turn, to.Name
	first, waited := t.Epoch() == 0, v.now.Sub(t.WaitingSince())
	translate.Unpark(t, v.now)
	translate.Wait(t, v1alpha1.TurnReasonRunning, fmt.Sprintf("bound to executor %q", name), v.now)
	translate.Start(t, v.now)
	t.Status.Executor = translate.Bind(t, v.agent, name, to.Store.ID, to.Store.Incarnation)
	t.Status.Executor.Overdue = t.Status.Executor.Overdue || overdue
	meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionPrepared) // what an earlier run said of it
	switch err := r.updateStatus(ctx, t); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		result, err := written(ctrl.Result{}, err)
		return result, releaseSlot, err
	case err != nil:
		// The write may have been done all the same, so the Turn keeps its slot until it is looked at again.
		return ctrl.Result{}, keepSlot, fmt.Errorf("failed to bind the turn to executor %q: %w", name, err)
	}
	if first {
		metrics.Bound(t.Namespace, waited)
	}
	if name == r.Executors.Self {
		return ctrl.Result{}, confirmSlot, nil
	}
	// If the executor's Lease runs out before the cache shows this binding, the Turn is not among those that are then
	// bound anew.
	return ctrl.Result{RequeueAfter: executor.LeaseDuration}, confirmSlot, nil
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
	r.wrote.Expect(t)
	r.queues.wrote(t)
	return nil
}

// end ends a Turn that did not run, then tells people.
func (r *TurnReconciler) end(ctx context.Context, t *v1alpha1.Turn, d decision) error {
	if t.Status.Executor != nil {
		t.Status.Executor.Name = ""
	}
	meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionPrepared)
	translate.EndUnread(t, d.reason, d.message, r.Now())
	switch d.reason {
	case v1alpha1.TurnReasonCancelled:
		t.Status.StopReason = v1alpha1.StopCancelled
	case v1alpha1.TurnReasonDeadlineExceeded:
		t.Status.StopReason = v1alpha1.StopDeadline
	case v1alpha1.TurnReasonInvalidSpec:
		t.Status.StopReason = v1alpha1.StopInvalidSpec
	case v1alpha1.TurnReasonSessionClosed:
		t.Status.StopReason = v1alpha1.StopSessionClosed
	case v1alpha1.TurnReasonQueueFull:
		t.Status.StopReason = v1alpha1.StopQueueFull
	}
	if err := r.updateStatus(ctx, t); err != nil {
		return err
	}
	kind, reason := corev1.EventTypeWarning, v1alpha1.EventFailed
	if d.reason == v1alpha1.TurnReasonCancelled {
		kind, reason = corev1.EventTypeNormal, v1alpha1.EventCancelled
	}
	metrics.Ended(t, nil)
	r.Events.Eventf(t, nil, kind, reason, "End", "%s", translate.EndNote(t))
	return nil
}
