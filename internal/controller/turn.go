package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/capstan-dev/capstan/internal/budgets"
	"github.com/capstan-dev/capstan/internal/fairqueue"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/tracing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// TurnReconciler binds Turns to executors, and ends Turns that no executor ends. While a Turn is bound, its executor
// owns its status.
//
// The reconciler's cache holds only unfinished Turns. If a Turn is not found, it has finished or was deleted. Both
// mean the same to the Turns that wait for its slot. FinishedTurns handles Turns after their end.
type TurnReconciler struct {
	Client    client.Client
	Events    events.EventRecorder
	Executors *ExecutorReconciler
	Now       func() time.Time
	// ServerClock returns the time by the API server's clock as it is now, for age.
	ServerClock func() time.Time
	// Reader reads the metadata of ConfigMaps that Turns name: from the cache, or from the API server if ConfigMaps
	// may not be watched.
	Reader client.Reader
	// Memories keeps the memories of Turns that are deleted because their time to live is over. It may be nil.
	Memories MemoryKeeper
	// Live reads from the API server.
	Live client.Reader
	// Ceiling holds the highest limits of all Turns, whatever a Turn and its Agent say. If Ceiling is nil, there is no
	// ceiling. Executors have the same ceiling.
	Ceiling *v1alpha1.Limits
	// RefuseURLs is true if Turns must not have attachments from URLs. Executors refuse them as well.
	RefuseURLs bool
	// Approvals reports which decisions about calls may be used.
	Approvals approvals.Check
	// Requesters reports whether the API server has checked the requester of a Turn. If Requesters is nil, no requester
	// counts as checked.
	Requesters approvals.RequesterCheck
	// Recheck is the interval at which the reconciler looks for ConfigMaps that Turns wait for, where ConfigMaps
	// may not be watched. If Recheck is 0, the reconciler watches ConfigMaps.
	Recheck time.Duration

	// Limits are the limits of the slots and the queue of one namespace.
	Limits scheduler.Limits

	// Traces exports the ends of Turns as spans. If Traces is nil, nothing is exported.
	Traces *tracing.Provider

	// Circuits holds the open circuits of all executors. It may be nil.
	Circuits *OpenCircuits

	// Sharing checks whether objects of other namespaces may be used.
	Sharing *sharing.Checker

	// Budgets are the Budgets of all namespaces. It may be nil.
	Budgets *budgets.Set

	slots *scheduler.Slots
	// modelsDownMu is locked while the models of an Agent are checked and the result is passed to slots.
	modelsDownMu sync.Mutex
	// sessions orders the unfinished Turns of each Session. A Session is locked there while a Turn enters it, and while
	// it is deleted because its time is over.
	sessions     scheduler.Sessions
	expectations scheduler.Expectations
	// waiting holds the Turns that wait, except those that wait for people or sub-agents.
	waiting waitingTurns
	// seed records whether the slots of the Turns that were bound before this process started are confirmed.
	seed struct {
		sync.Mutex
		done bool
	}
	// queue is the queue of the controller, or nil before the controller has started. Other controllers may start
	// earlier and wake Turns.
	queue atomic.Pointer[turnQueue]
}

type turnQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// maxReconciles is the number of workers for Turns, and of workers for Sessions. A worker mostly waits until it may
// write (see package fairgate), or for the API server. maxReconcilesOfNamespace is far lower, because a namespace whose
// writes wait must leave workers to other namespaces.
const (
	maxReconciles            = 64
	maxReconcilesOfNamespace = 16
)

// maxTimer is the longest timer of an unfinished Turn that waits for a time. Deadlines, the expiry of approvals
// and the periods of Budgets are times of the API server's clock, but timers run by the monotonic clock of this
// machine, which may stand while the machine sleeps. So after a jump of the API server's clock, a wait ends late by at
// most maxTimer.
const maxTimer = 5 * time.Minute

// denialRetry is the time after which a cancellation that admission denies is tried again.
const denialRetry = time.Minute

// SetupWithManager registers the reconciler. These events reconcile a Turn:
//
//  1. The Turn appears, its spec changes, it ends, or its executor hands it back or is lost.
//  2. Its Agent changes in a way that affects the Turn, or a ConfigMap that it waits for appears.
//  3. It becomes the first of its Session, or the Turn directly ahead of it in the Session changes.
//  4. A person decides about one of its calls. While such a decision may not be used, the Turn is also reconciled
//     at intervals.
//  5. The Turn of a sub-agent that it waits for ends, or its parent Turn ends.
//  6. It gets a slot.
//  7. A Budget of its namespace changes, is deleted, or is no longer exceeded, or the labels of its Agent change, while
//     the Turn waits for a Budget.
//  8. The journals have space again, and the Turn waits for that.
func (r *TurnReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.slots = scheduler.New(r.Limits, r.wake)
	metrics.SetWaitingCount(r.waiting.countsByCause)
	metrics.SetWaitingForSlots(r.slots.WaitingForSlots)
	r.Budgets.OnChange(r.budgetChanged)
	b := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Turn{}, builder.WithPredicates(turnChanged(), createdWithoutSession())).
		Watches(&v1alpha1.Turn{}, r.slotEvents()).
		Watches(&v1alpha1.Agent{}, r.agentEvents()).
		Watches(&v1alpha1.Turn{}, r.sessionEvents()).
		Watches(&v1alpha1.Turn{}, handler.EnqueueRequestsFromMapFunc(r.relativesOf), builder.WithPredicates(relativesChanged())).
		Watches(&v1alpha1.ToolApproval{}, handler.EnqueueRequestsFromMapFunc(turnOf), builder.WithPredicates(approvalCreated())).
		Watches(&v1alpha1.Session{}, handler.EnqueueRequestsFromMapFunc(r.firstTurnOf), builder.WithPredicates(sessionMayOpen())).
		WatchesRawSource(source.Func(func(_ context.Context, q turnQueue) error {
			r.queue.Store(&q)
			return nil
		})).
		WithOptions(fairOptions(maxReconciles, maxReconcilesOfNamespace))
	if r.Recheck == 0 {
		b = b.Watches(&corev1.ConfigMap{}, referrers(r.Client, &v1alpha1.TurnList{}, indexTurnConfigMap),
			builder.OnlyMetadata, builder.WithPredicates(isCreated()))
	}
	return b.Complete(r)
}

// wake enqueues a Turn for the scheduler.
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

// fairQueue returns the queue of the controller, or nil before the controller has started.
func (r *TurnReconciler) fairQueue() *fairqueue.Queue {
	q := r.queue.Load()
	if q == nil {
		return nil
	}
	fair, _ := (*q).(*fairqueue.Queue)
	return fair
}

// Reconcile decides what to do about one Turn, reports to the scheduler what happens to its slot, and acts.
func (r *TurnReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.seedSlots(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var t v1alpha1.Turn
	if err := r.Client.Get(ctx, req.NamespacedName, &t); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.expectations.IsStale(&t) {
		return ctrl.Result{RequeueAfter: staleInterval}, nil
	}
	v, d, leave, err := r.evaluate(ctx, &t)
	defer leave()
	if err == nil && d.action.slot() == reserveSlot {
		d, err = r.assign(ctx, v, d)
	}
	r.useSlot(&t, d.action.slot())
	if err != nil {
		return ctrl.Result{}, err
	}
	result, err := r.act(ctx, v, d)
	return r.warnLongWait(&t, v.agent, result, err)
}

// forget drops a Turn that has finished or was deleted.
func (r *TurnReconciler) forget(key client.ObjectKey) {
	r.slots.Release(key)
	r.expectations.Forget(key)
	r.waiting.forget(key)
}

// useSlot reports to the scheduler what happens to the slot of a Turn.
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

// act carries out an action. Its effect on the slot has already been reported, because a write may take long.
func (r *TurnReconciler) act(ctx context.Context, v snapshot, d decision) (ctrl.Result, error) {
	t := v.turn
	var changed bool // whether the status must be written
	var err error
	switch d.action {
	case wait, queue:
		changed = turnstatus.Wait(t, d.reason, d.message, scheduler.SessionOrder(t), r.Now())
	case park:
		changed = turnstatus.StayParked(t, d.reason, d.message, v.pausedSince(), v.now)
	case observe:
		changed = turnstatus.Observe(t)
	case cancelSubAgents: // the watch shows the change
		d.after, err = r.cancelSubAgents(ctx, v, d)
	case cancel: // the watch shows the change
		d.after, err = r.cancelOrphan(ctx, v, d)
	case end:
		err = r.endTurn(ctx, t, d)
	case remove:
		err = removeTurn(ctx, r.Client, r.Live, r.Memories, t, r.Now())
	case nothing, follow, hold, stay, schedule, endFromJournal:
	}
	switch {
	case changed:
		err = r.updateStatus(ctx, t)
	case d.action == wait, d.action == queue, d.action == park, d.action == observe:
		r.waiting.accepted(client.ObjectKeyFromObject(t)) // the API server has this status already
	}
	return resultAfterWrite(ctrl.Result{RequeueAfter: min(d.after, maxTimer)}, err)
}

// evaluate collects the facts about a Turn and decides. A Turn that may be bound enters its Session first. The caller
// must call leave after it has carried out the decision.
func (r *TurnReconciler) evaluate(ctx context.Context, t *v1alpha1.Turn) (v snapshot, d decision, leave func(), err error) {
	leave = func() {}
	if v, err = r.snapshot(ctx, t); err != nil {
		return v, decision{action: hold}, leave, err
	}
	if d = decide(v); d.action != schedule {
		return v, d, leave, nil
	}
	if t.Spec.SessionRef != nil {
		return r.enterExclusively(ctx, v)
	}
	return v, d, leave, nil
}

// snapshot collects the facts that a decision about a Turn depends on.
func (r *TurnReconciler) snapshot(ctx context.Context, t *v1alpha1.Turn) (snapshot, error) {
	v := snapshot{
		turn: t, ceiling: r.Ceiling, recheck: r.Recheck, journals: r.Executors.space.verdictFor(t.Namespace),
		now: r.Now(), server: r.ServerClock(),
	}
	if t.IsFinished() {
		return v, nil
	}
	var err error
	if v.orphaned, err = r.isOrphaned(ctx, t); err != nil {
		return v, err
	}
	if name := t.BoundTo(); name != "" {
		if v.executorAlive, err = r.Executors.isAlive(ctx, name); err != nil {
			return v, fmt.Errorf("failed to get the lease of executor %q: %w", name, err)
		}
	}
	if v.startupLeft, err = r.Executors.startupLeft(ctx); err != nil {
		return v, fmt.Errorf("failed to list the leases of executors: %w", err)
	}
	if v.agent, v.refusedAgent, err = r.agentOf(ctx, t); err != nil {
		return v, err
	}
	if v.agent == nil {
		v.withoutAgent = r.waiting.withoutAgent(t, v.now)
	}
	if t.BoundTo() == "" {
		if v.awaited, err = r.waitProgress(ctx, t, v.agent); err != nil {
			return v, err
		}
	}
	if t.Spec.SessionRef != nil {
		v.ahead = r.sessions.Ahead(t)
	}
	if v.refused, err = r.refusedAttachments(ctx, t, v.agent); err != nil {
		return v, err
	}
	v.budgets = r.budgetVerdict(v)
	v.missing, err = missingConfigMap(ctx, r.Reader, t)
	return v, err
}

// agentOf returns the Agent of a Turn, with its limits within the ceiling. It returns nil if the Agent does not exist
// or may not be used; in the second case, refused says why.
func (r *TurnReconciler) agentOf(ctx context.Context, t *v1alpha1.Turn) (a *v1alpha1.Agent, refused string, err error) {
	a, err = r.Sharing.Agent(ctx, sharing.From(r.Client), t.Spec.AgentRef, t.Namespace)
	if err == nil && t.IsOfForeignAgent() {
		if a, err = translate.Foreign(a); err != nil {
			return nil, fmt.Sprintf("Agent %q cannot be used in another namespace: %s", t.Spec.AgentRef, err), nil
		}
	}
	why, isRefused := errors.AsType[*sharing.RefusedError](err)
	switch {
	case err == nil:
		return translate.WithinCeiling(a, t, r.Ceiling), "", nil
	case isRefused:
		return nil, why.Error(), nil
	case apierrors.IsNotFound(err):
		return nil, "", nil
	}
	return nil, "", fmt.Errorf("failed to get agent %q: %w", t.Spec.AgentRef, err)
}

// updateStatus writes a status that was computed from the Turn as it was read. If the Turn has changed since, it
// fails with a conflict. While there are many writes of a namespace that the watch has not shown yet, further Turns of
// the namespace wait (see fairqueue.Queue.Expect).
func (r *TurnReconciler) updateStatus(ctx context.Context, t *v1alpha1.Turn) error {
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(t)}
	r.fairQueue().Expect(request)
	if err := r.Client.Status().Update(ctx, t); err != nil {
		r.fairQueue().Observe(request) // the write failed: do not wait for an event
		r.warnRejected(t, err)
		return err
	}
	r.waiting.accepted(request.NamespacedName)
	r.expectWritten(t)
	return nil
}

// expectWritten records a Turn as written, until the watch shows it.
func (r *TurnReconciler) expectWritten(t *v1alpha1.Turn) {
	r.expectations.Expect(t)
	r.sessions.ObserveWrite(t)
}

// endTurn ends a Turn without an executor, and then emits an Event.
func (r *TurnReconciler) endTurn(ctx context.Context, t *v1alpha1.Turn, d decision) error {
	turnstatus.End(t, d.reason, d.message, r.Now())
	if err := r.updateStatus(ctx, t); err != nil {
		stored := r.storedEnd(ctx, t, err)
		if stored == nil {
			return err
		}
		t = stored
		r.expectWritten(t)
	}
	kind, reason := corev1.EventTypeWarning, v1alpha1.EventFailed
	if d.reason == v1alpha1.TurnReasonCancelled {
		kind, reason = corev1.EventTypeNormal, v1alpha1.EventCancelled
	}
	metrics.Ended(t, nil)
	r.Traces.End(t, time.Time{})
	r.Events.Eventf(t, nil, kind, reason, "End", "%s", translate.EndNote(t))
	return nil
}

// storedEnd returns a Turn from the API server if it has the end that was sent, although the write has failed with
// this error. It returns nil otherwise. The cache has only unfinished Turns, so no later reconciliation would count
// the end or emit its Event. The most common cause is a restart of the API server, so storedEnd tries for some seconds
// to read the Turn.
func (r *TurnReconciler) storedEnd(ctx context.Context, sent *v1alpha1.Turn, failure error) *v1alpha1.Turn {
	// A client that repeats a request by itself receives a conflict with its own first write.
	if writeerror.ChangedNothing(failure) && !apierrors.IsConflict(failure) {
		return nil
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.Multiplier = 200*time.Millisecond, 2
	stored, err := backoff.Retry(ctx, func() (*v1alpha1.Turn, error) {
		var t v1alpha1.Turn
		err := r.Live.Get(ctx, client.ObjectKeyFromObject(sent), &t)
		if apierrors.IsNotFound(err) {
			err = backoff.Permanent(err)
		}
		return &t, err
	}, backoff.WithBackOff(wait), backoff.WithMaxTries(5)) // about 3 seconds, because it holds a worker
	if err != nil || !turnstatus.IsWritten(stored, sent) {
		return nil
	}
	return stored
}
