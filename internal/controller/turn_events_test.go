package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairqueue"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// schedulerHarness is the Turn reconciler with the queue of the controller, in which many Turns wait.
type schedulerHarness struct {
	*testEnv
	queue *fairqueue.Queue
	turns []*v1alpha1.Turn
	// writes counts the status writes by Turn.
	writes map[string]int
	// lagging means that the watch does not show status writes. If failure is not nil, status writes fail with it.
	lagging bool
	failure error
}

// newSchedulerHarness creates Turns of one Agent, a millisecond apart, and reconciles each once.
func newSchedulerHarness(t *testing.T, turns, capacity int) *schedulerHarness {
	t.Helper()
	objects := []client.Object{agentWith(metav1.ConditionTrue, ""), leaseOf("self", capacity, now)}
	c := &schedulerHarness{writes: map[string]int{}}
	for i := range turns {
		turn := turnWith(func(turn *v1alpha1.Turn) {
			turn.Name, turn.UID = fmt.Sprintf("turn-%05d", i), types.UID(fmt.Sprint(i))
			turn.CreationTimestamp = metav1.NewTime(now.Add(-time.Duration(turns-i) * time.Millisecond))
		})
		c.turns = append(c.turns, turn)
		objects = append(objects, turn)
	}
	c.testEnv = newTestEnv(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, api client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption,
		) error {
			c.writes[o.GetName()]++
			if c.failure != nil {
				return c.failure
			}
			if !c.lagging {
				defer c.queue.Observe(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
			}
			return api.SubResource(sub).Update(ctx, o, opts...)
		},
	}, objects...)
	c.queue = fairqueue.New("turn", retryOptions().RateLimiter, maxReconcilesOfNamespace)
	t.Cleanup(c.queue.ShutDown)
	queue := turnQueue(c.queue)
	c.testEnv.turns.queue.Store(&queue)
	c.testEnv.turns.slots = scheduler.New(scheduler.Limits{}, c.testEnv.turns.wake)
	for _, turn := range c.turns {
		c.queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(turn)})
	}
	c.reconcileNext(t, c.queue.Len())
	return c
}

// reconcileNext reconciles the next n Turns of the queue.
func (c *schedulerHarness) reconcileNext(t *testing.T, n int) {
	t.Helper()
	for range n {
		r, shutdown := c.queue.Get()
		if shutdown {
			t.Fatal("the queue is shut down")
		}
		if _, err := c.testEnv.turns.Reconcile(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		c.queue.Done(r)
	}
}

// bound returns the Turns that are bound.
func (c *schedulerHarness) bound(t *testing.T) (all []v1alpha1.Turn) {
	t.Helper()
	var turns v1alpha1.TurnList
	if err := c.client.List(t.Context(), &turns); err != nil {
		t.Fatal(err)
	}
	for _, turn := range turns.Items {
		if turn.BoundTo() != "" {
			all = append(all, turn)
		}
	}
	return all
}

// TestTurnsOfALostExecutorOvertake checks that the Turns of a lost executor are reconciled even before Turns with a
// reserved slot, except for the Turns that are already next in line.
func TestTurnsOfALostExecutorOvertake(t *testing.T) {
	const capacity, turns = 5, 50
	c := newSchedulerHarness(t, turns, capacity)
	bound := c.bound(t)
	if len(bound) != capacity {
		t.Fatalf("%d Turns are bound, want %d", len(bound), capacity)
	}
	lost := map[string]bool{}
	for i := range bound {
		lost[bound[i].Name] = true
	}
	for _, wake := range []func() error{
		func() error { return c.executors.wakeTurnsOf(t.Context(), bound[0].BoundTo()) },
		func() error {
			c.executors.Self, c.executors.capacities = "", nil
			return c.executors.wakeTurnsOfLost(t.Context())
		},
	} {
		for _, turn := range slices.Backward(c.turns) {
			c.testEnv.turns.wake(client.ObjectKeyFromObject(turn), true)
		}
		if err := wake(); err != nil {
			t.Fatal(err)
		}
		for i := range turns {
			r, _ := c.queue.Get()
			if i >= maxReconcilesOfNamespace && i < maxReconcilesOfNamespace+capacity && !lost[r.Name] {
				t.Errorf("request %d is for Turn %s, want a Turn of the lost executor", i, r.Name)
			}
			c.queue.Done(r)
		}
	}
}

// TestSlotsAreFilledDespiteLongQueue checks that the watch event for the end of a Turn gives its slot to another Turn,
// and that this other Turn overtakes the whole queue of the reconciler.
func TestSlotsAreFilledDespiteLongQueue(t *testing.T) {
	const capacity, turns = 25, 200
	c := newSchedulerHarness(t, turns, capacity)
	first := c.bound(t)
	if len(first) != capacity {
		t.Fatalf("%d Turns are bound, want %d", len(first), capacity)
	}
	for _, turn := range c.turns { // as after a change of their Agent
		c.queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(turn)})
	}
	events := c.testEnv.turns.slotEvents()
	for i := range first {
		turn := &first[i]
		if err := c.client.Delete(t.Context(), turn); err != nil {
			t.Fatal(err)
		}
		events.Delete(t.Context(), event.DeleteEvent{Object: turn}, c.queue)
	}
	if running, queued := c.testEnv.turns.slots.Counts(); running != capacity || queued != turns-2*capacity {
		t.Fatalf("%d Turns hold slots and %d wait before any reconciliation; want all %d slots taken", running, queued, capacity)
	}
	c.reconcileNext(t, capacity+maxReconcilesOfNamespace) // the Turns that were already next in line go first
	second := c.bound(t)
	if got := len(second); got != capacity {
		t.Errorf("%d Turns are bound while %d are in the queue, want all %d slots in use", got, c.queue.Len(), capacity)
	}
	for _, turn := range first {
		if n := c.writes[turn.Name]; n != 1 {
			t.Errorf("%s did not wait, and was written %d times until it was bound, want once", turn.Name, n)
		}
	}
	for _, turn := range second {
		if n := c.writes[turn.Name]; n != 2 {
			t.Errorf("%s waited once, and was written %d times until it was bound, want twice", turn.Name, n)
		}
	}
}

// TestPatchedAgentWakesNoWaitingTurn checks that a change of an Agent that stays ready does not enqueue its
// Turns that wait for a slot.
func TestPatchedAgentWakesNoWaitingTurn(t *testing.T) {
	c := newSchedulerHarness(t, 100, 3)
	events := c.testEnv.turns.agentEvents()
	agent := agentWith(metav1.ConditionTrue, "")
	for i := range 40 {
		patched := agent.DeepCopy()
		patched.Generation++
		patched.ResourceVersion = fmt.Sprint(1000 + 2*i)
		events.Update(t.Context(), event.UpdateEvent{ObjectOld: agent, ObjectNew: patched}, c.queue)
		checked := patched.DeepCopy()
		checked.Status.Conditions[0].ObservedGeneration = checked.Generation
		checked.ResourceVersion = fmt.Sprint(1001 + 2*i)
		events.Update(t.Context(), event.UpdateEvent{ObjectOld: patched, ObjectNew: checked}, c.queue)
		agent = checked
	}
	if n := c.queue.Len(); n != 0 {
		t.Errorf("40 patches enqueued %d Turns, want none: nothing that affects the Turns has changed", n)
	}
}

// TestAgentWakesConcernedTurns checks which changes of an Agent enqueue a Turn, and that the Turn is enqueued once.
func TestAgentWakesConcernedTurns(t *testing.T) {
	newer := func(a *v1alpha1.Agent) {
		a.Generation++
		a.Status.Conditions[0].ObservedGeneration++
	}
	labelled := func(a *v1alpha1.Agent) { a.Labels = map[string]string{"team": "a"} }
	waitsFor := func(why string) *v1alpha1.Turn {
		return turnWith(waitsAs(v1alpha1.TurnReasonWaitingForAgent, 0), func(t *v1alpha1.Turn) { t.Status.Conditions[0].Message = why })
	}
	notReady := agentWith(metav1.ConditionFalse, "no profile")
	ready := agentWith(metav1.ConditionTrue, "")
	for name, tc := range map[string]struct {
		reason        string
		turn          *v1alpha1.Turn
		before, after *v1alpha1.Agent
		want          bool
	}{
		"it is ready": {"the Turn may continue", waitsFor(`Agent "support" is not ready: no profile`), notReady, ready, true},
		"it appears": {
			"the Turn may continue",
			waitsFor(`Agent "support" does not exist in namespace "helpdesk"`), nil, ready, true,
		},
		"the fault is another one": {
			"the Turn's message changes", waitsFor(`Agent "support" is not ready: no profile`),
			notReady, agentWith(metav1.ConditionFalse, "no model"), true,
		},
		"the fault is the same": {
			"the Turn has this message already",
			waitsFor(`Agent "support" is not ready: no profile`), agentWith(metav1.ConditionTrue, ""), notReady, false,
		},
		"it is no longer ready": {
			"a queued Turn's message changes", turnWith(waitsAs(v1alpha1.TurnReasonQueued, 0)),
			ready, notReady, true,
		},
		"it is not checked yet": {
			"it will be checked in a moment", turnWith(waitsAs(v1alpha1.TurnReasonQueued, 0)),
			ready, agentWith(metav1.ConditionTrue, "", func(a *v1alpha1.Agent) { a.Generation++ }), false,
		},
		"other limits": {
			"the deadline of the Turn changes", turnWith(waitsAs(v1alpha1.TurnReasonQueued, 0)), ready,
			agentWith(metav1.ConditionTrue, "", newer, func(a *v1alpha1.Agent) {
				a.Spec.Limits = &v1alpha1.Limits{StartingDeadlineSeconds: new(int32(1))}
			}), true,
		},
		"other labels": {
			"a Budget may no longer select the Agent", turnWith(waitsAs(v1alpha1.TurnReasonWaitingForBudget, 0)), ready,
			agentWith(metav1.ConditionTrue, "", labelled), true,
		},
		"it appears with other labels": {
			"a Budget may not select the new Agent", turnWith(waitsAs(v1alpha1.TurnReasonWaitingForBudget, 0)), nil,
			agentWith(metav1.ConditionTrue, "", labelled), true,
		},
		"other labels of a checked Agent": {
			"the Turn waits for a slot", turnWith(waitsAs(v1alpha1.TurnReasonQueued, 0)), ready,
			agentWith(metav1.ConditionTrue, "", labelled), false,
		},
		"another readiness": {
			"the Turn waits for a Budget", turnWith(waitsAs(v1alpha1.TurnReasonWaitingForBudget, 0)), notReady, ready, false,
		},
		"it was deleted": {"the Turn's message changes", turnWith(waitsAs(v1alpha1.TurnReasonQueued, 0)), ready, nil, true},
		"the Turn is suspended": {
			"it waits for another change", turnWith(waitsAs(v1alpha1.TurnReasonSuspended, 0)),
			notReady, ready, false,
		},
		"the Turn is bound": {"its executor acts", turnWith(boundTo("self")), notReady, ready, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{}, tc.turn)
			events, ctx := b.turns.agentEvents(), context.Background()
			switch {
			case tc.before == nil:
				events.Create(ctx, event.CreateEvent{Object: tc.after}, nil)
			case tc.after == nil:
				events.Delete(ctx, event.DeleteEvent{Object: tc.before}, nil)
			default:
				events.Update(ctx, event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}, nil)
			}
			if got := len(b.woken) == 1; got != tc.want || len(b.woken) > 1 {
				t.Errorf("woken: %v, want the Turn woken: %t, because %s", b.woken, tc.want, tc.reason)
			}
		})
	}
}

// TestBurstInSessionBlocksNoWorker checks that a Turn is requeued while another Turn of its Session is
// being bound.
func TestBurstInSessionBlocksNoWorker(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(inSession), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	unlock, _ := b.turns.sessions.TryLock(scheduler.SessionKey(turnWith(inSession)))
	if result, err := b.reconcile(t, "one"); err != nil || result.RequeueAfter != staleInterval {
		t.Fatalf("got %v, %v; want a quick requeue", result, err)
	}
	if b.turn(t, "one").BoundTo() != "" {
		t.Error("the Turn was bound at the same time as another Turn of its Session")
	}
	unlock()
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn was not bound after the lock was released: %v", err)
	}
}

// TestWatchReleasesSlot checks that an event which shows that a Turn no longer runs releases its slot, unless the event
// is older than the last write of this process.
func TestWatchReleasesSlot(t *testing.T) {
	bound := turnWith(boundTo("self"), func(t *v1alpha1.Turn) { t.ResourceVersion = "5" })
	change := func(version string, f func(*v1alpha1.Turn)) *v1alpha1.Turn {
		after := bound.DeepCopy()
		after.ResourceVersion = version
		f(after)
		return after
	}
	unbind := func(t *v1alpha1.Turn) { t.Status.Executor.Name = "" }
	for name, tc := range map[string]struct {
		after *v1alpha1.Turn
		holds bool
	}{
		"it ends": {change("6",
			func(t *v1alpha1.Turn) { turnstatus.Finish(t, &turn.Result{Stop: turn.StopCompleted}, now) }), false},
		"it is unbound":           {change("6", unbind), false},
		"it is being deleted":     {change("6", func(t *v1alpha1.Turn) { t.DeletionTimestamp = new(metav1.NewTime(now)) }), true},
		"it still runs":           {change("6", func(*v1alpha1.Turn) {}), true},
		"it has been bound again": {change("4", unbind), true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{})
			b.turns.expectations.Expect(bound)
			b.turns.slots.Confirm(requestOf(bound), "self")
			b.turns.slotEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: bound, ObjectNew: tc.after}, nil)
			if got := b.turns.slots.HasSlot(client.ObjectKeyFromObject(bound)); got != tc.holds {
				t.Errorf("it holds its slot: %t, want %t", got, tc.holds)
			}
		})
	}
}

// create creates a Turn and enqueues it.
func (c *schedulerHarness) create(t *testing.T, namespace, name string) {
	t.Helper()
	turn := turnWith(func(turn *v1alpha1.Turn) {
		turn.Namespace, turn.Name, turn.UID = namespace, name, types.UID(namespace+name)
	})
	if err := c.client.Create(t.Context(), turn); err != nil {
		t.Fatal(err)
	}
	c.queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(turn)})
}

// burst creates Turns of a namespace while the watch lags, and reconciles as many as the queue hands out.
func burst(t *testing.T, turns int) *schedulerHarness {
	t.Helper()
	c := newSchedulerHarness(t, 0, 2*turns)
	c.lagging = true
	for i := range turns {
		c.create(t, "helpdesk", fmt.Sprint("busy-", i))
	}
	const unobserved, nextInLine = 32, maxReconcilesOfNamespace - 1
	c.reconcileNext(t, unobserved+nextInLine)
	return c
}

// TestBurstDoesNotOutrunTheWatch checks that the Turns of a namespace wait while the watch does not show its last
// bindings, that a Turn of another namespace does not wait, and which events let the namespace continue.
func TestBurstDoesNotOutrunTheWatch(t *testing.T) {
	const turns = 100
	changed := func(change func(*v1alpha1.Turn)) func(*schedulerHarness, *v1alpha1.Turn) {
		return func(c *schedulerHarness, bound *v1alpha1.Turn) {
			before, after := bound.DeepCopy(), bound.DeepCopy()
			before.Status.Executor = nil
			change(after)
			c.testEnv.turns.slotEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, c.queue)
		}
	}
	for name, show := range map[string]func(*schedulerHarness, *v1alpha1.Turn){
		"it is bound":     changed(func(*v1alpha1.Turn) {}),
		"it is suspended": changed(func(t *v1alpha1.Turn) { t.Spec.DesiredState = v1alpha1.DesiredStateSuspended }),
		"its executor is lost or restarts, and it is unbound": changed(func(t *v1alpha1.Turn) { t.Status.Executor.Name = "" }),
		"it is cancelled": changed(func(t *v1alpha1.Turn) {
			turnstatus.End(t, v1alpha1.TurnReasonCancelled, "", now)
		}),
		"it is being deleted":                       changed(func(t *v1alpha1.Turn) { t.DeletionTimestamp = new(metav1.NewTime(now)) }),
		"it is recreated during a gap of the watch": changed(func(t *v1alpha1.Turn) { t.UID, t.Status.Executor = "new", nil }),
		"it is deleted": func(c *schedulerHarness, bound *v1alpha1.Turn) {
			c.testEnv.turns.slotEvents().Delete(t.Context(), event.DeleteEvent{Object: bound}, c.queue)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := burst(t, turns)
			first := c.bound(t)
			agent := agentWith("", "", func(a *v1alpha1.Agent) { a.Namespace = "other" })
			if err := c.client.Create(t.Context(), agent); err != nil {
				t.Fatal(err)
			}
			agent.Status = agentWith(metav1.ConditionTrue, "").Status
			if err := c.client.Status().Update(t.Context(), agent); err != nil {
				t.Fatal(err)
			}
			c.create(t, "other", "calm")
			c.reconcileNext(t, 1)
			if got := c.bound(t); len(got) != len(first)+1 || got[len(got)-1].Namespace != "other" {
				t.Fatalf("%d Turns are bound, after %d before; want one more, the Turn of the other namespace", len(got), len(first))
			}
			for i := range first {
				show(c, &first[i])
			}
			c.lagging = false
			c.reconcileNext(t, turns-len(first))
			if got := len(c.bound(t)); got != turns+1 {
				t.Errorf("%d Turns are bound, want all %d", got, turns+1)
			}
		})
	}
}

// TestFailedWriteIsNotAwaited checks that a namespace does not wait for the watch to show writes that have failed.
func TestFailedWriteIsNotAwaited(t *testing.T) {
	c := newSchedulerHarness(t, 0, 1)
	c.lagging, c.failure = true, broken
	for i := range 100 {
		c.create(t, "helpdesk", fmt.Sprint("turn-", i))
	}
	for range 100 {
		r, _ := c.queue.Get()
		if _, err := c.testEnv.turns.Reconcile(t.Context(), r); err == nil {
			t.Fatal("Reconcile returned no error although the status write failed")
		}
		c.queue.Done(r)
	}
}
