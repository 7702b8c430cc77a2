package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestTurnEntersSessionAfterWatchShowsIt checks that a Turn is not bound before it is in the queue of its Session.
// Otherwise two Turns of a Session could be bound at the same time.
func TestTurnEntersSessionAfterWatchShowsIt(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionTurn("a", 0), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	b.turns.sessions.Forget("uid-a")
	if result, err := b.reconcile(t, "a"); err != nil || result.RequeueAfter != staleInterval || b.turn(t, "a").BoundTo() != "" {
		t.Fatalf("got %v, %v, want a requeue, because the watch has not shown the Turn yet", result, err)
	}
	b.turns.sessions.Observe(b.turn(t, "a"))
	if _, err := b.reconcile(t, "a"); err != nil || b.turn(t, "a").BoundTo() != "self" {
		t.Errorf("the Turn must be bound: %v", err)
	}
}

// TestBindingWithUnknownOutcomeBlocksOthers checks that, if the response to a binding was lost, no other Turn of the
// Session is bound until it is known whether the binding succeeded.
func TestBindingWithUnknownOutcomeBlocksOthers(t *testing.T) {
	b := newTestEnv(t, failStatusWrites(broken), sessionTurn("late", 0), sessionTurn("last", -time.Second),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	if _, err := b.reconcile(t, "late"); err == nil {
		t.Fatal("the write must fail")
	}
	early := sessionTurn("early", time.Second)
	early.ResourceVersion = ""
	if err := b.client.Create(t.Context(), early); err != nil {
		t.Fatal(err)
	}
	if result, err := b.reconcile(t, "early"); err != nil || result.RequeueAfter != staleInterval || b.turn(t, "early").BoundTo() != "" {
		t.Errorf("got %v, %v, want a requeue until the outcome of the binding is known", result, err)
	}
	b.turns.slots.Release(client.ObjectKeyFromObject(sessionTurn("late", 0))) // the binding did not succeed
	if _, err := b.reconcile(t, "early"); err != nil || b.turn(t, "early").BoundTo() != "self" {
		t.Errorf("the older Turn is not bound although the binding of the other Turn has failed: %v", err)
	}
}

// TestSessionEventsWakeAtMostTwoTurns checks that the end of a Turn wakes at most two other Turns, however many wait:
// the first Turn of the queue, and the Turn directly behind the one that ended.
func TestSessionEventsWakeAtMostTwoTurns(t *testing.T) {
	r := &TurnReconciler{}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	woken := func() (names []string) {
		for queue.Len() > 0 {
			request, _ := queue.Get()
			queue.Done(request)
			names = append(names, request.Name)
		}
		return names
	}
	handle := r.sessionEvents()
	const turns = 100
	all := make([]*v1alpha1.Turn, turns)
	for i := range all {
		all[i] = sessionTurn(fmt.Sprint("t", i), 0, storedAs(strconv.Itoa(1000+i)))
		handle.Create(t.Context(), event.CreateEvent{Object: all[i]}, queue)
	}
	if got := woken(); len(got) != turns {
		t.Fatalf("%d Turns were enqueued when they appeared, want all", len(got))
	}
	handle.Create(t.Context(), event.CreateEvent{Object: turnWith()}, queue)
	if got := woken(); got != nil {
		t.Errorf("woken: %v, want none: the reconciler's own watch enqueues a Turn without a Session", got)
	}
	bound := sessionTurn("t0", 0, storedAs("2000"), ordered(1000), boundTo("e"))
	handle.Update(t.Context(), event.UpdateEvent{ObjectOld: all[0], ObjectNew: bound}, queue)
	if got := woken(); got != nil {
		t.Errorf("woken by a binding: %v, want none", got)
	}
	handle.Delete(t.Context(), event.DeleteEvent{Object: bound}, queue)
	if got := woken(); !slices.Equal(got, []string{"t1"}) {
		t.Errorf("woken by the end of the first Turn: %v, want the next Turn", got)
	}
	handle.Delete(t.Context(), event.DeleteEvent{Object: all[50]}, queue)
	if got := woken(); !slices.Equal(got, []string{"t1", "t51"}) {
		t.Errorf("woken by the end of a Turn in the middle: %v, want the first Turn, and the Turn directly behind the one that ended", got)
	}
}

// TestTurnOfBurstIsWrittenOnceWhileWaiting checks that each Turn is written once while it waits and once to be
// bound, and that neither of these writes emits an Event.
func TestTurnOfBurstIsWrittenOnceWhileWaiting(t *testing.T) {
	writes := map[string]int{}
	b := newTestEnv(t, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string,
		o client.Object, opts ...client.SubResourceUpdateOption,
	) error {
		writes[o.GetName()]++
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 99, now))
	const turns = 20
	for i := range turns {
		turn := sessionTurn(fmt.Sprintf("t%02d", i), 0)
		turn.ResourceVersion = ""
		turn.Status.SessionOrder = int64(i + 1)
		if err := b.client.Create(t.Context(), turn); err != nil {
			t.Fatal(err)
		}
	}
	for i := range turns {
		name := fmt.Sprintf("t%02d", i)
		for range 2 { // reconciles all Turns: unchanged ones are not written
			for j := i; j < turns; j++ {
				if _, err := b.reconcile(t, fmt.Sprintf("t%02d", j)); err != nil {
					t.Fatal(err)
				}
			}
		}
		turn := b.turn(t, name)
		if turn.BoundTo() == "" {
			t.Fatalf("%s is %s, want it bound", name, turn.StateReason())
		}
		if err := b.client.Delete(t.Context(), turn); err != nil {
			t.Fatal(err)
		}
		if want := min(2, i+1); writes[name] != want {
			t.Errorf("the status of %s was written %d times, want %d", name, writes[name], want)
		}
		if i+1 < turns {
			if got := b.turns.affectedTurns(t.Context(), turn); len(got) != 1 || got[0].Name != fmt.Sprintf("t%02d", i+1) {
				t.Errorf("woken by the end of %s: %v, want only the next Turn", name, got)
			}
		}
	}
	if emitted := b.turns.Events.(*events.FakeRecorder).Events; len(emitted) != 0 {
		t.Errorf("an Event was emitted for a waiting Turn: %s", <-emitted)
	}
}
