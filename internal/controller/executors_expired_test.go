package controller

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

// cutOffEnv is a testEnv whose cache of Leases is never updated: it shows the Leases as they were at the start.
type cutOffEnv struct {
	*testEnv
	clock time.Time
	// apiDown means that the API server does not answer.
	apiDown bool
}

func newCutOffEnv(t *testing.T, objects ...client.Object) *cutOffEnv {
	t.Helper()
	w := &cutOffEnv{testEnv: newTestEnv(t, interceptor.Funcs{}, append(objects, agentWith(metav1.ConditionTrue, ""))...), clock: now}
	cached := map[client.ObjectKey]*coordinationv1.Lease{}
	var all coordinationv1.LeaseList
	if err := w.client.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		cached[client.ObjectKeyFromObject(&all.Items[i])] = &all.Items[i]
	}
	w.executors.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if lease, ok := o.(*coordinationv1.Lease); ok {
				cached[key].DeepCopyInto(lease)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if leases, ok := l.(*coordinationv1.LeaseList); ok {
				all.DeepCopyInto(leases)
				return nil
			}
			return c.List(ctx, l, opts...)
		},
	})
	w.executors.Live = interceptor.NewClient(w.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("an unreachable API server must not block the worker for all executors")
			}
			if w.apiDown {
				return broken
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	w.executors.Now = func() time.Time { return w.clock }
	return w
}

// after advances the clock and reconciles a Lease. It returns when to reconcile it again.
func (w *cutOffEnv) after(t *testing.T, d time.Duration, lease *coordinationv1.Lease) time.Duration {
	t.Helper()
	w.clock, w.woken = w.clock.Add(d), nil
	result, err := w.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(lease)})
	if err != nil {
		t.Fatal(err)
	}
	return result.RequeueAfter
}

func (w *cutOffEnv) renew(t *testing.T, lease *coordinationv1.Lease) {
	t.Helper()
	lease.Spec.RenewTime = new(metav1.NewMicroTime(w.clock))
	if err := w.client.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

func (w *cutOffEnv) isAlive(t *testing.T, name string) bool {
	t.Helper()
	alive, err := w.executors.isAlive(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return alive
}

// TestLeaseThatSeemsToHaveExpired checks that the API server decides whether a Lease has expired.
func TestLeaseThatSeemsToHaveExpired(t *testing.T) {
	renew := func(t *testing.T, w *cutOffEnv, l *coordinationv1.Lease) { w.renew(t, l) }
	for name, tc := range map[string]struct {
		reason string
		passes time.Duration
		change func(*testing.T, *cutOffEnv, *coordinationv1.Lease)
		alive  bool
		again  time.Duration
	}{
		"unchanged": {"the executor has not renewed it", 15 * time.Second, nil, false, scheduler.LeaseRetention - 15*time.Second},
		"renewed":   {"the watch was cut off", 15 * time.Second, renew, true, 15 * time.Second},
		"paused":    {"this process was paused, and the executor was not", time.Hour, renew, true, 15 * time.Second},
		"no answer": {
			"no executor is declared lost", 15 * time.Second,
			func(_ *testing.T, w *cutOffEnv, _ *coordinationv1.Lease) { w.apiDown = true }, true, leaseReadTimeout,
		},
		"gone": {"the cache shows a deleted Lease", 15 * time.Second, func(t *testing.T, w *cutOffEnv, l *coordinationv1.Lease) {
			if err := w.client.Delete(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			lease := leaseOf("other", 1, now)
			w := newCutOffEnv(t, turnWith(boundTo("other")), lease)
			w.after(t, 0, lease)
			w.clock = w.clock.Add(tc.passes)
			if !w.isAlive(t, "other") {
				t.Fatalf("%s: lost before the API server was asked", tc.reason)
			}
			if tc.change != nil {
				tc.change(t, w, lease)
			}
			if again := w.after(t, 0, lease); again != tc.again || slices.Contains(w.woken, "one") == tc.alive {
				t.Errorf("%s: requeued after %s, want %s; woke %v", tc.reason, again, tc.again, w.woken)
			}
			if alive := w.isAlive(t, "other"); alive != tc.alive {
				t.Errorf("%s: the executor is alive: %t, want %t", tc.reason, alive, tc.alive)
			}
			if _, err := w.reconcile(t, "one"); err != nil {
				t.Fatal(err)
			}
			if bound := w.turn(t, "one").BoundTo() == "other"; bound != tc.alive {
				t.Errorf("%s: the Turn is bound to its executor: %t, want %t", tc.reason, bound, tc.alive)
			}
		})
	}
}

// TestOutageRestartsAllLeaseDurations checks that no executor is declared lost in an outage. In an outage no executor
// can renew its Lease. So after each failed read, every Lease gets its whole duration again, except the Leases of
// executors that had been declared lost before.
func TestOutageRestartsAllLeaseDurations(t *testing.T) {
	lost, one, two := leaseOf("lost", 1, now), leaseOf("one", 1, now), leaseOf("two", 1, now)
	w := newCutOffEnv(t, lost, one, two)
	w.after(t, 0, one)
	w.after(t, 15*time.Second, lost)
	w.renew(t, one)
	w.renew(t, two)
	w.after(t, 0, one)
	w.after(t, 0, two)
	w.apiDown = true
	for range 10 {
		w.after(t, 15*time.Second, one)
	}
	if again := w.after(t, 0, two); again != 15*time.Second {
		t.Errorf("requeued after %s, want a whole Lease duration after the last read without an answer", again)
	}
	w.after(t, 0, lost)
	got := map[string]bool{"lost": w.isAlive(t, "lost"), "one": w.isAlive(t, "one"), "two": w.isAlive(t, "two")}
	if diff := cmp.Diff(map[string]bool{"lost": false, "one": true, "two": true}, got); diff != "" {
		t.Errorf("executors alive (-want +got):\n%s", diff)
	}
}

// TestDeadExecutorIsLostAfterOutage checks that an executor which died during an outage is declared lost soon after the
// outage, even if the outage was long and the cache never shows a change.
func TestDeadExecutorIsLostAfterOutage(t *testing.T) {
	lease := leaseOf("other", 1, now)
	w := newCutOffEnv(t, turnWith(boundTo("other")), lease)
	again := w.after(t, 0, lease)
	w.clock = w.clock.Add(time.Second)
	w.renew(t, lease) // the last renewal, which the cache does not show
	w.apiDown = true
	for range 10 {
		again = w.after(t, again, lease)
	}
	w.apiDown = false
	dead := w.clock
	for range 6 {
		again = w.after(t, again, lease)
		if !w.isAlive(t, "other") {
			break
		}
	}
	// At most 15 s pass until the Lease is read again. This read shows the last renewal, late, so the Lease gets
	// another 15 s. No further renewal comes.
	if took := w.clock.Sub(dead); w.isAlive(t, "other") || took > 30*time.Second {
		t.Errorf("after %s the executor is alive: %t, want it lost within 30 s", took, w.isAlive(t, "other"))
	}
	if !slices.Contains(w.woken, "one") {
		t.Errorf("woke %v, want its Turn", w.woken)
	}
}

// TestLeaseExpiredUnseen checks a Lease that expires and is renewed before it is reconciled. Meanwhile a Turn got no
// slot because no executor was running. The renewal must wake that Turn.
func TestLeaseExpiredUnseen(t *testing.T) {
	for name, turn := range map[string]*v1alpha1.Turn{
		"waits for a slot": turnWith(),
		"about to end":     turnWith(boundTo("lost"), started(90*time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			lease := leaseOf("other", 1, now)
			w := newCutOffEnv(t, turn, lease)
			w.executors.Client = w.client
			w.after(t, 0, lease)
			w.clock = w.clock.Add(16 * time.Second)
			if _, err := w.reconcile(t, "one"); err != nil || w.turn(t, "one").BoundTo() == "other" {
				t.Fatalf("%v; the Turn was bound, but no executor is alive", err)
			}
			w.renew(t, lease)
			w.after(t, 0, lease)
			if !slices.Contains(w.woken, "one") {
				t.Errorf("woke %v, want the Turn that was refused because no executor was running", w.woken)
			}
			w.clock = w.clock.Add(5 * time.Second)
			w.renew(t, lease)
			if w.after(t, 0, lease); len(w.woken) > 0 {
				t.Errorf("woke %v, want none: the next renewal changes nothing", w.woken)
			}
		})
	}
}
