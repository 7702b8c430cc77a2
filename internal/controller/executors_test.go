package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
)

func TestExecutorsComeAndGo(t *testing.T) {
	other := turnWith(boundTo("other"), func(t *v1alpha1.Turn) { t.Name, t.UID = "other-turn", "u1" })
	own := turnWith(boundTo("self"), func(t *v1alpha1.Turn) { t.Name, t.UID = "own-turn", "u2" })
	lost := turnWith(boundTo("lost"), func(t *v1alpha1.Turn) { t.Name, t.UID = "lost-turn", "u3" })
	b := newBench(t, interceptor.Funcs{}, other, own, lost, leaseOf("other", 3, now.Add(-10*time.Second)))
	b.turns.places.take(wants("waits", "agent", 0), nil)
	look := func(why string, after time.Duration, woken ...string) {
		t.Helper()
		b.woken = nil
		result, err := b.executors.Reconcile(t.Context(), reconcile.Request{
			NamespacedName: client.ObjectKey{Namespace: "capstan-system", Name: executor.LeasePrefix + "other"},
		})
		if err != nil || result.RequeueAfter != after {
			t.Errorf("%s: got %v, %v, want to look again after %s", why, result, err, after)
		}
		if diff := cmp.Diff(woken, b.woken); diff != "" {
			t.Errorf("%s: woke others (-want +got):\n%s", why, diff)
		}
	}
	look("an executor that appears takes those who wait, and those of the lost", 5*time.Second, "waits", "lost-turn")
	look("a renewal is no news", 5*time.Second)
	b.executors.Now = func() time.Time { return now.Add(5 * time.Second) }
	look("a Lease that has run out frees its Turns", 0, "other-turn")
	if lives, err := b.executors.lives(t.Context(), "self"); !lives || err != nil {
		t.Errorf("this process lives whatever its Lease says: %t, %v", lives, err)
	}
	if live, err := b.executors.live(t.Context()); len(live) != 0 || err != nil {
		t.Errorf("nobody without a Lease may get Turns: %v, %v", live, err)
	}
}

func TestExpiry(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*coordinationv1.Lease)
		want   time.Time
	}{
		"a renewed Lease":        {func(*coordinationv1.Lease) {}, now.Add(15 * time.Second)},
		"one that was never":     {func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }, time.Time{}},
		"one without a duration": {func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = nil }, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := leaseOf("e", 1, now)
			tc.change(l)
			if got := expiry(l); !got.Equal(tc.want) {
				t.Errorf("runs out at %s, want %s", got, tc.want)
			}
		})
	}
}
