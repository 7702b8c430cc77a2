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

func TestExecutorsComeAndGo(t *testing.T) {
	other := turnWith(boundTo("other"), func(t *v1alpha1.Turn) { t.Name, t.UID = "other-turn", "u1" })
	own := turnWith(boundTo("self"), func(t *v1alpha1.Turn) { t.Name, t.UID = "own-turn", "u2" })
	lost := turnWith(boundTo("lost"), func(t *v1alpha1.Turn) { t.Name, t.UID = "lost-turn", "u3" })
	lease := leaseOf("other", 3, now.Add(-10*time.Second))
	b := newBench(t, interceptor.Funcs{}, other, own, lost, lease)
	b.turns.slots.Reserve(wants("waits", "agent"), nil)
	clock := now
	b.executors.Now = func() time.Time { return clock }
	look := func(why string, after time.Duration, woken ...string) {
		t.Helper()
		b.woken = nil
		result, err := b.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(lease)})
		if err != nil || result.RequeueAfter != after {
			t.Errorf("%s: got %v, %v, want to look again after %s", why, result, err, after)
		}
		if diff := cmp.Diff(woken, b.woken); diff != "" {
			t.Errorf("%s: woke others (-want +got):\n%s", why, diff)
		}
	}
	change := func(f func()) {
		t.Helper()
		f()
		if err := b.client.Update(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
	}
	look("an executor that appears takes those who wait, and those of the lost", 15*time.Second, "waits", "lost-turn")
	clock = clock.Add(5 * time.Second)
	look("what has not changed is no renewal", 10*time.Second)
	change(func() { lease.Spec.RenewTime = new(metav1.NewMicroTime(clock)) })
	look("a renewal is no news", 15*time.Second)
	change(func() { lease.Annotations[executor.CapacityAnnotation] = "4" })
	look("one that takes more Turns is, and who waited has a slot already", 15*time.Second, "lost-turn")
	clock = clock.Add(15 * time.Second)
	look("a Lease that has run out frees its Turns, and is kept for a while", coveredLeaseKept-15*time.Second, "other-turn")
	if lives, err := b.executors.lives(t.Context(), "self"); !lives || err != nil {
		t.Errorf("this process lives whatever its Lease says: %t, %v", lives, err)
	}
	if live, err := b.executors.live(t.Context()); len(live) != 0 || err != nil {
		t.Errorf("nobody without a Lease may get Turns: %v, %v", live, err)
	}
	change(func() { lease.Spec.RenewTime = new(metav1.NewMicroTime(clock)) })
	look("an executor that is back takes those who wait", 15*time.Second, "waits", "lost-turn")
	if err := b.client.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	look("a Lease that is gone frees its Turns at once", 0, "other-turn")
	if lives, err := b.executors.lives(t.Context(), "other"); lives || err != nil {
		t.Errorf("an executor without a Lease does not live: %t, %v", lives, err)
	}
	lease.ResourceVersion = ""
	clock = clock.Add(time.Hour)
	if err := b.client.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	look("a Lease that appears was just made, whatever it says", 15*time.Second, "waits", "lost-turn")

	clock = clock.Add(leaseKept)
	look("nobody has renewed it for long", 0, "other-turn")
	if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); !apierrors.IsNotFound(err) {
		t.Errorf("the Lease of an executor that is gone for long: %v, want it to be gone, too", err)
	}
}

// TestAProcessWithoutAnExecutorHasNone: its own name is empty then, and no executor is called so.
func TestAProcessWithoutAnExecutorHasNone(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, leaseOf("other", 3, now))
	b.executors.Self = ""
	live, err := b.executors.live(t.Context())
	if diff := cmp.Diff([]scheduler.Executor{{Name: "other", Capacity: 3}}, live); diff != "" || err != nil {
		t.Errorf("the executors are others: %v (-want +got):\n%s", err, diff)
	}
	if lives, err := b.executors.lives(t.Context(), "gone"); lives || err != nil {
		t.Errorf("an executor without a Lease does not live: %t, %v", lives, err)
	}
}

// TestWhoLeadsAloneKnowsThatAllOthersAreGone: with a journal in SQLite an executor works only while it leads, so that whoever wins
// the election need not wait for the Leases of others.
func TestWhoLeadsAloneKnowsThatAllOthersAreGone(t *testing.T) {
	lease := leaseOf("other", 3, now)
	b := newBench(t, interceptor.Funcs{}, turnWith(boundTo("other")), agentWith(metav1.ConditionTrue, ""), lease, leaseOf("self", 2, now))
	b.executors.Exclusive = true
	if lives, err := b.executors.lives(t.Context(), "other"); lives || err != nil {
		t.Errorf("the executor of another process lives: %t, %v; want it gone, whatever its Lease says", lives, err)
	}
	if lives, err := b.executors.lives(t.Context(), "self"); !lives || err != nil {
		t.Errorf("this process lives: %t, %v", lives, err)
	}
	live, err := b.executors.live(t.Context())
	if diff := cmp.Diff([]scheduler.Executor{{Name: "self", Capacity: 2}}, live); diff != "" || err != nil {
		t.Errorf("the executors that may get Turns: %v (-want +got):\n%s", err, diff)
	}
	if _, err := b.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(lease)}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one"}, b.woken); diff != "" {
		t.Errorf("woke others than the Turn of the other executor (-want +got):\n%s", diff)
	}
	if _, err := b.look(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one").BoundTo(); got != "self" {
		t.Errorf("the Turn is bound to %q, want this process at once", got)
	}
}

// TestLeasesOfDeadExecutorsDisappear within minutes where another executor has reached the position of their store. The last one that knows the
// position stays longer: a copy of the store that is restored is compared with it.
func TestLeasesOfDeadExecutorsDisappear(t *testing.T) {
	in := func(name, store, position string) *coordinationv1.Lease {
		l := leaseOf(name, 1, now)
		l.Annotations[executor.StoreAnnotation], l.Annotations[executor.PositionAnnotation] = store, position
		return l
	}
	for name, tc := range map[string]struct {
		self, dead *coordinationv1.Lease
		gone       bool
	}{
		"the same store":         {in("self", "a", "10"), in("dead", "a", "10"), true},
		"a later position":       {in("self", "a", "11"), in("dead", "a", "9"), true},
		"an earlier position":    {in("self", "a", "9"), in("dead", "a", "10"), false},
		"another store":          {in("self", "b", "11"), in("dead", "a", "10"), false},
		"no store is known":      {in("self", "", ""), in("dead", "", ""), false},
		"a position that is not": {in("self", "a", "many"), in("dead", "a", "few"), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, tc.self, tc.dead)
			clock := now
			b.executors.Now = func() time.Time { return clock }
			looks := func(after time.Duration) {
				t.Helper()
				clock = clock.Add(after)
				tc.self.Spec.RenewTime = new(metav1.NewMicroTime(clock))
				if err := b.client.Update(t.Context(), tc.self); err != nil {
					t.Fatal(err)
				}
				for _, l := range []*coordinationv1.Lease{tc.self, tc.dead} {
					if _, err := b.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(l)}); err != nil {
						t.Fatal(err)
					}
				}
			}
			isGone := func() bool {
				err := b.client.Get(t.Context(), client.ObjectKeyFromObject(tc.dead), &coordinationv1.Lease{})
				return apierrors.IsNotFound(err)
			}
			looks(0)
			looks(time.Minute)
			if isGone() {
				t.Fatal("the Lease is gone after a minute, before people could look for it")
			}
			looks(coveredLeaseKept - time.Minute)
			if isGone() != tc.gone {
				t.Errorf("after %s the Lease is gone: %t, want %t", coveredLeaseKept, isGone(), tc.gone)
			}
			looks(leaseKept - coveredLeaseKept)
			if !isGone() {
				t.Errorf("after %s the Lease is still there", leaseKept)
			}
		})
	}
}
