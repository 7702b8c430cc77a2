package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// queueModel does the same as sessionQueues by searching all Turns each time.
type queueModel map[types.UID]*v1alpha1.Turn

func (m queueModel) show(t *v1alpha1.Turn) {
	if old := m[t.UID]; old != nil && sessionVersion(t) < sessionVersion(old) {
		return
	}
	m[t.UID] = t
	if t.IsFinished() {
		delete(m, t.UID)
	}
}

func (m queueModel) wrote(t *v1alpha1.Turn) {
	if m[t.UID] != nil {
		m.show(t)
	}
}

func sessionVersion(t *v1alpha1.Turn) int {
	n, err := strconv.Atoi(t.ResourceVersion)
	if err != nil {
		panic(err)
	}
	return n
}

// order returns the queue of a Session without one Turn.
func (m queueModel) order(session client.ObjectKey, without types.UID) []*v1alpha1.Turn {
	var turns []*v1alpha1.Turn
	for _, t := range m {
		if sessionKey(t) == session && blocksSession(t) && t.UID != without {
			turns = append(turns, t)
		}
	}
	slices.SortFunc(turns, compareInSession)
	return turns
}

func (m queueModel) ahead(t *v1alpha1.Turn) (last *v1alpha1.Turn) {
	for _, o := range m.order(sessionKey(t), t.UID) {
		if compareInSession(o, t) < 0 {
			last = o
		}
	}
	return last
}

func (m queueModel) first(session client.ObjectKey, t *v1alpha1.Turn) (first, next *v1alpha1.Turn) {
	if all := m.order(session, ""); len(all) > 0 {
		first = all[0]
	}
	for _, o := range m.order(session, t.UID) {
		if next == nil && compareInSession(o, t) > 0 {
			next = o
		}
	}
	return first, next
}

// TestSessionQueuesAgreeWithAModel checks that the queues give the same result as a search of all Turns, even if
// events come late, twice or out of order.
func TestSessionQueuesAgreeWithAModel(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		queues, model, versions := &sessionQueues{}, queueModel{}, []*v1alpha1.Turn{}
		for step := range 600 {
			turn := someTurn(random, step)
			versions = append(versions, turn)
			if random.IntN(4) == 0 {
				turn = versions[random.IntN(len(versions))] // a version that a newer one has overtaken
			}
			switch random.IntN(8) {
			case 0:
				queues.forget(turn.UID)
				delete(model, turn.UID)
			case 1:
				queues.updateWritten(turn)
				model.wrote(turn)
			default:
				queues.observe(turn)
				model.show(turn)
			}
			asked := someTurn(random, step)
			if got, want := queues.ahead(asked), model.ahead(asked); nameOf(got) != nameOf(want) {
				t.Fatalf("seed %d, step %d: ahead of %s is %q, want %q", seed, step, asked.Name, nameOf(got), nameOf(want))
			}
			first, next := queues.first(sessionKey(asked), asked)
			wantFirst, wantNext := model.first(sessionKey(asked), asked)
			if nameOf(first) != nameOf(wantFirst) || nameOf(next) != nameOf(wantNext) {
				t.Fatalf("seed %d, step %d: first and next after %s are %q and %q, want %q and %q",
					seed, step, asked.Name, nameOf(first), nameOf(next), nameOf(wantFirst), nameOf(wantNext))
			}
		}
		for uid := range model {
			queues.forget(uid)
		}
		if len(queues.turns)+len(queues.queues) != 0 {
			t.Fatalf("seed %d: %d Turns and %d queues remain after all Turns were deleted", seed, len(queues.turns), len(queues.queues))
		}
	}
}

// someTurn returns one of a few Turns of two Sessions, in a random state.
func someTurn(random *rand.Rand, version int) *v1alpha1.Turn {
	n := random.IntN(16)
	turn := sessionTurn(fmt.Sprint("t", n), time.Duration(n/4)*time.Second, storedAs(strconv.Itoa(1000+version)))
	turn.Spec.SessionRef = &v1alpha1.ObjectReference{Name: fmt.Sprint("talk", n%2)}
	states := []func(*v1alpha1.Turn){
		func(*v1alpha1.Turn) {}, func(*v1alpha1.Turn) {}, ordered(int64(n)), boundTo("e"), wasBound, deleted, finished(0),
		desires(v1alpha1.DesiredStateCancelled), desires(v1alpha1.DesiredStateSuspended),
	}
	states[random.IntN(len(states))](turn)
	return turn
}

func nameOf(t *v1alpha1.Turn) string {
	if t == nil {
		return ""
	}
	return t.Name + "@" + t.ResourceVersion
}

// TestTurnEntersSessionAfterWatchShowsIt checks this because two Turns that their queue does not have could
// be bound at the same time.
func TestTurnEntersSessionAfterWatchShowsIt(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, sessionTurn("a", 0), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
	b.turns.queues.forget("uid-a")
	if result, err := b.reconcile(t, "a"); err != nil || result.RequeueAfter != staleInterval || b.turn(t, "a").BoundTo() != "" {
		t.Fatalf("got %v, %v, want a requeue for when the watch is up to date", result, err)
	}
	b.turns.queues.observe(b.turn(t, "a"))
	if _, err := b.reconcile(t, "a"); err != nil || b.turn(t, "a").BoundTo() != "self" {
		t.Errorf("the Turn must be bound: %v", err)
	}
}

// TestBindingWithUnknownOutcomeBlocksOthers checks this while the watch does not show whether the binding
// succeeded.
func TestBindingWithUnknownOutcomeBlocksOthers(t *testing.T) {
	b := newTestEnv(t, failing(broken), sessionTurn("late", 0), sessionTurn("last", -time.Second),
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
	b.turns.slots.Release(client.ObjectKeyFromObject(sessionTurn("late", 0))) // it did not succeed
	if _, err := b.reconcile(t, "early"); err != nil || b.turn(t, "early").BoundTo() != "self" {
		t.Errorf("the older Turn must be bound then: %v", err)
	}
}

// TestSessionEventsWakeOnlyNextTurn checks that the end of a Turn wakes one other Turn, however many wait.
func TestSessionEventsWakeOnlyNextTurn(t *testing.T) {
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
		t.Errorf("woken by the end of the first: %v, want the next Turn", got)
	}
	handle.Delete(t.Context(), event.DeleteEvent{Object: all[50]}, queue)
	if got := woken(); !slices.Equal(got, []string{"t1", "t51"}) {
		t.Errorf("woken by the end of a middle one: %v, want the first, and the one that waited for it", got)
	}
}

// TestTurnOfBurstIsWrittenOnceWhileWaiting checks that each Turn is written once while it waits and once to be
// bound, and that neither emits an Event.
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

// BenchmarkReconcileInBurst measures the reconciliation of the last of many Turns of a Session. It searches for the
// Turn ahead, and for the Turns that an event about it concerns.
func BenchmarkReconcileInBurst(b *testing.B) {
	for _, turns := range []int{100, 5000} {
		queues, list := &sessionQueues{}, []v1alpha1.Turn{}
		for i := range turns {
			turn := sessionTurn(fmt.Sprint("t", i), 0, storedAs(strconv.Itoa(1000+i)))
			queues.observe(turn)
			list = append(list, *turn)
		}
		last := &list[turns-1]
		b.Run(fmt.Sprintf("list of %d", turns), func(b *testing.B) {
			for b.Loop() {
				others := slices.Clone(list) // as the cache reothers them
				if turnAhead(last, others) == nil {
					b.Fatal("no Turn is ahead")
				}
			}
		})
		b.Run(fmt.Sprintf("queue of %d", turns), func(b *testing.B) {
			for b.Loop() {
				if queues.ahead(last) == nil {
					b.Fatal("no Turn is ahead")
				}
			}
		})
		b.Run(fmt.Sprintf("end and creation among %d", turns), func(b *testing.B) {
			for b.Loop() {
				queues.forget(list[0].UID)
				queues.observe(&list[0])
			}
		})
	}
}
