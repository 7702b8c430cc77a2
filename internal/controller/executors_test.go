package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

func TestExecutorsAppearAndDisappear(t *testing.T) {
	other := turnWith(boundTo("other"), func(t *v1alpha1.Turn) { t.Name, t.UID = "other-turn", "u1" })
	own := turnWith(boundTo("self"), func(t *v1alpha1.Turn) { t.Name, t.UID = "own-turn", "u2" })
	lost := turnWith(boundTo("lost"), func(t *v1alpha1.Turn) { t.Name, t.UID = "lost-turn", "u3" })
	lease := leaseOf("other", 3, now.Add(-10*time.Second))
	b := newTestEnv(t, interceptor.Funcs{}, other, own, lost, lease)
	b.turns.slots.Reserve(requestNamed("waits", "agent"), nil)
	clock := now
	b.executors.Now = func() time.Time { return clock }
	check := func(why string, after time.Duration, woken ...string) {
		t.Helper()
		b.woken = nil
		result, err := b.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(lease)})
		if err != nil || result.RequeueAfter != after {
			t.Errorf("%s: got %v, %v, want a requeue after %s", why, result, err, after)
		}
		if diff := cmp.Diff(woken, b.woken); diff != "" {
			t.Errorf("%s: woken (-want +got):\n%s", why, diff)
		}
	}
	change := func(f func()) {
		t.Helper()
		f()
		if err := b.client.Update(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
	}
	check("an executor that appears wakes waiting Turns and the Turns of lost executors", 15*time.Second, "waits", "lost-turn")
	clock = clock.Add(5 * time.Second)
	check("an unchanged Lease is not a renewal", 10*time.Second)
	change(func() { lease.Spec.RenewTime = new(metav1.NewMicroTime(clock)) })
	check("a renewal wakes no Turn", 15*time.Second)
	change(func() { lease.Annotations[executor.CapacityAnnotation] = "4" })
	check("more capacity wakes the Turns of lost executors, and the other Turn has a slot already", 15*time.Second, "lost-turn")
	clock = clock.Add(15 * time.Second)
	check("an expired Lease wakes its Turns, and is kept for a while", scheduler.LeaseRetention-15*time.Second, "other-turn")
	if alive, err := b.executors.isAlive(t.Context(), "self"); !alive || err != nil {
		t.Errorf("this process must be alive, whatever its Lease says: %t, %v", alive, err)
	}
	if live, err := b.executors.aliveExecutors(t.Context()); len(live) != 0 || err != nil {
		t.Errorf("an executor without a valid Lease must not get Turns: %v, %v", live, err)
	}
	change(func() { lease.Spec.RenewTime = new(metav1.NewMicroTime(clock)) })
	check("an executor that is back wakes waiting Turns", 15*time.Second, "waits", "lost-turn")
	if err := b.client.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	check("a deleted Lease wakes its Turns immediately", 0, "other-turn")
	if alive, err := b.executors.isAlive(t.Context(), "other"); alive || err != nil {
		t.Errorf("an executor without a Lease must not be alive: %t, %v", alive, err)
	}
	lease.ResourceVersion = ""
	clock = clock.Add(time.Hour)
	if err := b.client.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	check("a Lease that appears was just created, whatever its times are", 15*time.Second, "waits", "lost-turn")

	clock = clock.Add(scheduler.LeaseRetention)
	check("a Lease that was not renewed for minutes is deleted", 0, "other-turn")
	if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); !apierrors.IsNotFound(err) {
		t.Errorf("the Lease of an executor lost long ago: %v, want it deleted", err)
	}
}

// TestProcessWithoutExecutor checks that, in a process without an executor, the empty name Self matches no executor.
func TestProcessWithoutExecutor(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, leaseOf("other", 3, now))
	b.executors.Self = ""
	live, err := b.executors.aliveExecutors(t.Context())
	if diff := cmp.Diff([]scheduler.Executor{{Name: "other", Capacity: 3}}, live); diff != "" || err != nil {
		t.Errorf("executors: %v (-want +got):\n%s", err, diff)
	}
	if alive, err := b.executors.isAlive(t.Context(), "gone"); alive || err != nil {
		t.Errorf("an executor without a Lease must not be alive: %t, %v", alive, err)
	}
}

// TestExclusiveLeaderDeclaresOthersLost checks executors with journals in SQLite. They work only while they
// lead, so the winner of an election need not wait for the Leases of the others to expire.
func TestExclusiveLeaderDeclaresOthersLost(t *testing.T) {
	lease := leaseOf("other", 3, now)
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(boundTo("other")), agentWith(metav1.ConditionTrue, ""), lease, leaseOf("self", 2, now))
	b.executors.Exclusive = true
	if alive, err := b.executors.isAlive(t.Context(), "other"); alive || err != nil {
		t.Errorf("the executor of another process is alive: %t, %v; want it lost, whatever its Lease says", alive, err)
	}
	if alive, err := b.executors.isAlive(t.Context(), "self"); !alive || err != nil {
		t.Errorf("this process must be alive: %t, %v", alive, err)
	}
	live, err := b.executors.aliveExecutors(t.Context())
	if diff := cmp.Diff([]scheduler.Executor{{Name: "self", Capacity: 2}}, live); diff != "" || err != nil {
		t.Errorf("executors that may get Turns: %v (-want +got):\n%s", err, diff)
	}
	if _, err := b.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(lease)}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one"}, b.woken); diff != "" {
		t.Errorf("woken, want the Turn of the other executor (-want +got):\n%s", diff)
	}
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one").BoundTo(); got != "self" {
		t.Errorf("the Turn is bound to %q, want self without waiting for the Lease to expire", got)
	}
}

// TestLeasesOfDeadExecutorsDisappear checks that the Lease of a dead executor is deleted within minutes. If no living
// executor has the same store, at the same or a later position, the Lease of the store keeps the position, which shows
// whether a restored copy of the store has lost entries.
func TestLeasesOfDeadExecutorsDisappear(t *testing.T) {
	leaseWith := func(name, store, position string) *coordinationv1.Lease {
		l := leaseOf(name, 1, now)
		l.Annotations[executor.StoreAnnotation], l.Annotations[executor.PositionAnnotation] = store, position
		return l
	}
	for name, tc := range map[string]struct {
		self, dead *coordinationv1.Lease
		// kept is the position in the Lease of store a; 0 means that there is no such Lease. published is the position
		// with which the process compares a copy of store a.
		kept, published int64
	}{
		"the same store":      {leaseWith("self", "a", "10"), leaseWith("dead", "a", "10"), 0, 10},
		"a later position":    {leaseWith("self", "a", "11"), leaseWith("dead", "a", "9"), 0, 11},
		"an earlier position": {leaseWith("self", "a", "9"), leaseWith("dead", "a", "10"), 10, 10},
		"another store":       {leaseWith("self", "b", "11"), leaseWith("dead", "a", "10"), 10, 10},
		"no other store":      {leaseWith("self", "", ""), leaseWith("dead", "a", "10"), 10, 10},
		"unknown store":       {leaseWith("self", "", ""), leaseWith("dead", "", ""), 0, 0},
		"invalid position":    {leaseWith("self", "a", "many"), leaseWith("dead", "a", "few"), 0, 0},
		"unmarked store":      {leaseWith("self", "b", "11"), leaseWith("dead", "a", "0"), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{}, tc.self, tc.dead)
			clock := now
			b.executors.Now = func() time.Time { return clock }
			reconcileAfter := func(after time.Duration) {
				t.Helper()
				clock = clock.Add(after)
				tc.self.Spec.RenewTime = new(metav1.NewMicroTime(clock))
				if err := b.client.Update(t.Context(), tc.self); err != nil {
					t.Fatal(err)
				}
				for _, l := range []*coordinationv1.Lease{tc.self, tc.dead} {
					if _, err := b.executors.Reconcile(t.Context(),
						reconcile.Request{NamespacedName: client.ObjectKeyFromObject(l)}); err != nil {
						t.Fatal(err)
					}
				}
			}
			reconcileAfter(0)
			reconcileAfter(time.Minute)
			if !b.hasLease(t, tc.dead.Name) || len(b.storeLeases(t)) > 0 {
				t.Fatal("the Lease was deleted after a minute, before people could look for it")
			}
			reconcileAfter(scheduler.LeaseRetention - time.Minute)
			if b.hasLease(t, tc.dead.Name) {
				t.Errorf("after %s the Lease still exists", scheduler.LeaseRetention)
			}
			want := map[string]int64{}
			if tc.kept > 0 {
				want[executor.StoreLeaseName("a")] = tc.kept
			}
			if diff := cmp.Diff(want, b.storeLeases(t)); diff != "" {
				t.Errorf("positions in Leases of stores (-want +got):\n%s", diff)
			}
			if got := b.published(t, "a"); got != tc.published {
				t.Errorf("the published position of store a is %d, want %d", got, tc.published)
			}
		})
	}
}

// TestCutOffExecutorGetsNoTurns checks that an executor that alone has lost its store gets no new Turns, and that all
// executors may get Turns if nothing shows that the store works for one of them.
func TestCutOffExecutorGetsNoTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		// Each has the ID of the store and what the Lease says about it.
		a, b [2]string
		want []string
	}{
		"one is cut off":              {[2]string{"s", "false"}, [2]string{"s", "true"}, []string{"b"}},
		"the store fails for all":     {[2]string{"s", "false"}, [2]string{"s", "false"}, []string{"a", "b"}},
		"the other is not certain":    {[2]string{"s", "false"}, [2]string{"s", ""}, []string{"a", "b"}},
		"the other has another store": {[2]string{"s", "false"}, [2]string{"other", "true"}, []string{"a", "b"}},
		"no store is known":           {[2]string{"", "false"}, [2]string{"", "true"}, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := leaseOf("a", 3, now), leaseOf("b", 3, now)
			a.Annotations[executor.StoreAnnotation], a.Annotations[executor.StoreReachableAnnotation] = tc.a[0], tc.a[1]
			b.Annotations[executor.StoreAnnotation], b.Annotations[executor.StoreReachableAnnotation] = tc.b[0], tc.b[1]
			env := newTestEnv(t, interceptor.Funcs{}, a, b)
			live, err := env.executors.aliveExecutors(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range live {
				got = append(got, e.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("executors that may get Turns (-want +got):\n%s", diff)
			}
			if alive, err := env.executors.isAlive(t.Context(), "a"); !alive || err != nil {
				t.Errorf("an executor without its store must keep its Turns: %t, %v", alive, err)
			}
		})
	}
}
