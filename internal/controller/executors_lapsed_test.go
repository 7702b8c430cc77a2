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
)

// watched is a bench whose cache of Leases is cut off: it shows them as they were at the start.
type watched struct {
	*bench
	clock time.Time
	// away is whether the API server gives no answer.
	away bool
}

func newWatched(t *testing.T, objects ...client.Object) *watched {
	t.Helper()
	w := &watched{bench: newBench(t, interceptor.Funcs{}, append(objects, agentWith(metav1.ConditionTrue, ""))...), clock: now}
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
				t.Error("an API server that is away must not hold up all executors")
			}
			if w.away {
				return broken
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	w.executors.Now = func() time.Time { return w.clock }
	return w
}

// after lets time pass and looks at a Lease. It returns when to look again.
func (w *watched) after(t *testing.T, d time.Duration, lease *coordinationv1.Lease) time.Duration {
	t.Helper()
	w.clock, w.woken = w.clock.Add(d), nil
	result, err := w.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(lease)})
	if err != nil {
		t.Fatal(err)
	}
	return result.RequeueAfter
}

func (w *watched) renews(t *testing.T, lease *coordinationv1.Lease) {
	t.Helper()
	lease.Spec.RenewTime = new(metav1.NewMicroTime(w.clock))
	if err := w.client.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

func (w *watched) lives(t *testing.T, name string) bool {
	t.Helper()
	lives, err := w.executors.lives(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return lives
}

// TestALeaseThatSeemsToHaveRunOut: the API server has the last word on it.
func TestALeaseThatSeemsToHaveRunOut(t *testing.T) {
	renew := func(t *testing.T, w *watched, l *coordinationv1.Lease) { w.renews(t, l) }
	for name, tc := range map[string]struct {
		reason string
		passes time.Duration
		change func(*testing.T, *watched, *coordinationv1.Lease)
		lives  bool
		again  time.Duration
	}{
		"unchanged": {"nobody has renewed it", 15 * time.Second, nil, false, coveredLeaseKept - 15*time.Second},
		"renewed":   {"the watch was cut off", 15 * time.Second, renew, true, 15 * time.Second},
		"paused":    {"this process was, and the executor was not", leaseKept, renew, true, 15 * time.Second},
		"no answer": {"nobody is judged", 15 * time.Second, func(_ *testing.T, w *watched, _ *coordinationv1.Lease) { w.away = true }, true, liveTimeout},
		"gone": {"the cache shows a Lease that is deleted", 15 * time.Second, func(t *testing.T, w *watched, l *coordinationv1.Lease) {
			if err := w.client.Delete(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			lease := leaseOf("other", 1, now)
			w := newWatched(t, turnWith(boundTo("other")), lease)
			w.after(t, 0, lease)
			w.clock = w.clock.Add(tc.passes)
			if !w.lives(t, "other") {
				t.Fatalf("%s: lost before anybody has asked the API server", tc.reason)
			}
			if tc.change != nil {
				tc.change(t, w, lease)
			}
			if again := w.after(t, 0, lease); again != tc.again || slices.Contains(w.woken, "one") == tc.lives {
				t.Errorf("%s: looks again after %s, want %s; woke %v", tc.reason, again, tc.again, w.woken)
			}
			if lives := w.lives(t, "other"); lives != tc.lives {
				t.Errorf("%s: the executor lives: %t, want %t", tc.reason, lives, tc.lives)
			}
			if _, err := w.look(t, "one"); err != nil {
				t.Fatal(err)
			}
			if bound := w.turn(t, "one").BoundTo() == "other"; bound != tc.lives {
				t.Errorf("%s: the Turn is its executor's: %t, want %t", tc.reason, bound, tc.lives)
			}
		})
	}
}

// TestAnOutageGivesAllExecutorsTheirTimeAnew: none could renew, so none is lost. One that was lost before stays so.
func TestAnOutageGivesAllExecutorsTheirTimeAnew(t *testing.T) {
	lost, one, two := leaseOf("lost", 1, now), leaseOf("one", 1, now), leaseOf("two", 1, now)
	w := newWatched(t, lost, one, two)
	w.after(t, 0, one)
	w.after(t, 15*time.Second, lost)
	w.renews(t, one)
	w.renews(t, two)
	w.after(t, 0, one)
	w.after(t, 0, two)
	w.away = true
	for range 10 {
		w.after(t, 15*time.Second, one)
	}
	if again := w.after(t, 0, two); again != 15*time.Second {
		t.Errorf("looks again after %s, want the time of a Lease from the last look that got no answer", again)
	}
	w.after(t, 0, lost)
	got := map[string]bool{"lost": w.lives(t, "lost"), "one": w.lives(t, "one"), "two": w.lives(t, "two")}
	if diff := cmp.Diff(map[string]bool{"lost": false, "one": true, "two": true}, got); diff != "" {
		t.Errorf("others live (-want +got):\n%s", diff)
	}
}

// TestADeadExecutorIsLostWhenTheAPIServerAnswers: however long it was away, and though the cache never shows anything new.
func TestADeadExecutorIsLostWhenTheAPIServerAnswers(t *testing.T) {
	lease := leaseOf("other", 1, now)
	w := newWatched(t, turnWith(boundTo("other")), lease)
	again := w.after(t, 0, lease)
	w.clock = w.clock.Add(time.Second)
	w.renews(t, lease) // the last time, and the cache has not seen it
	w.away = true
	for range 10 {
		again = w.after(t, again, lease)
	}
	w.away = false
	dead := w.clock
	for range 6 {
		again = w.after(t, again, lease)
		if !w.lives(t, "other") {
			break
		}
	}
	// What is left of the time after the outage, then one duration from the renewal that was seen late.
	if took := w.clock.Sub(dead); w.lives(t, "other") || took > 30*time.Second {
		t.Errorf("after %s the executor lives: %t, want it lost within 30 s", took, w.lives(t, "other"))
	}
	if !slices.Contains(w.woken, "one") {
		t.Errorf("woke %v, want its Turn", w.woken)
	}
}

// TestALeaseThatRanOutUnseen: it was renewed before anybody looked at it, and a Turn was told meanwhile that there is no
// executor.
func TestALeaseThatRanOutUnseen(t *testing.T) {
	for name, turn := range map[string]*v1alpha1.Turn{
		"waits for a place": turnWith(),
		"is to be ended":    turnWith(boundTo("lost"), started(90*time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			lease := leaseOf("other", 1, now)
			w := newWatched(t, turn, lease)
			w.executors.Client = w.client
			w.after(t, 0, lease)
			w.clock = w.clock.Add(16 * time.Second)
			if _, err := w.look(t, "one"); err != nil || w.turn(t, "one").BoundTo() == "other" {
				t.Fatalf("%v; nobody lives who could take the Turn", err)
			}
			w.renews(t, lease)
			w.after(t, 0, lease)
			if !slices.Contains(w.woken, "one") {
				t.Errorf("woke %v, want the Turn that was told that no executor runs", w.woken)
			}
			w.clock = w.clock.Add(5 * time.Second)
			w.renews(t, lease)
			if w.after(t, 0, lease); len(w.woken) > 0 {
				t.Errorf("woke %v, want nobody: the next renewal is no news", w.woken)
			}
		})
	}
}
