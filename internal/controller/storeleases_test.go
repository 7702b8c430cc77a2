package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

// storeLeaseOf returns the Lease of a store, written at the given time.
func storeLeaseOf(store string, position int64, written time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "capstan-system", Name: executor.StoreLeaseName(store),
			Labels: map[string]string{executor.LeaseLabel: executor.LeaseLabelValue},
			Annotations: map[string]string{
				executor.StoreAnnotation: store, executor.PositionAnnotation: strconv.FormatInt(position, 10),
			},
		},
		Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(written))},
	}
}

// withPosition returns the Lease of an executor with a position of its store.
func withPosition(l *coordinationv1.Lease, store string, position int64) *coordinationv1.Lease {
	l.Annotations[executor.StoreAnnotation] = store
	l.Annotations[executor.PositionAnnotation] = strconv.FormatInt(position, 10)
	return l
}

// released returns a Lease whose holder has released it, so that its executor counts as lost immediately.
func released(l *coordinationv1.Lease) *coordinationv1.Lease {
	l.Spec.HolderIdentity = nil
	return l
}

func (b *testEnv) leases(t *testing.T) []coordinationv1.Lease {
	t.Helper()
	var all coordinationv1.LeaseList
	if err := b.client.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	return all.Items
}

func (b *testEnv) hasLease(t *testing.T, name string) bool {
	t.Helper()
	return slices.ContainsFunc(b.leases(t), func(l coordinationv1.Lease) bool { return l.Name == name })
}

// storeLeases returns the positions in the Leases of stores, by the name of the Lease.
func (b *testEnv) storeLeases(t *testing.T) map[string]int64 {
	t.Helper()
	positions := map[string]int64{}
	all := b.leases(t)
	for i := range all {
		if executor.IsStoreLease(all[i].Name) {
			published, _ := executor.PublishedBy(&all[i])
			positions[all[i].Name] = published.Position
		}
	}
	return positions
}

// published returns the position with which a process that starts compares its store.
func (b *testEnv) published(t *testing.T, store string) int64 {
	t.Helper()
	var objects []runtime.Object
	all := b.leases(t)
	for i := range all {
		objects = append(objects, &all[i])
	}
	position, err := executor.PublishedPosition(t.Context(), fake.NewClientset(objects...), "capstan-system", store)
	if err != nil {
		t.Fatal(err)
	}
	return position
}

// reconcileLease reconciles the Lease with this name.
func (b *testEnv) reconcileLease(t *testing.T, name string) (reconcile.Result, error) {
	t.Helper()
	key := client.ObjectKey{Namespace: "capstan-system", Name: name}
	return b.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
}

// setClocks sets both clocks of the controller.
func (b *testEnv) setClocks(at time.Time) {
	b.executors.Now = func() time.Time { return at }
	b.executors.ServerNow = b.executors.Now
}

// TestPositionIsNeverLost makes each request fail that replaces the Lease of a dead executor by the Lease of its store.
// At any time a Lease has the position, and the next attempt succeeds.
func TestPositionIsNeverLost(t *testing.T) {
	leaseResource := coordinationv1.Resource("leases")
	dead := executor.LeasePrefix + "dead"
	changed := apierrors.NewConflict(leaseResource, dead, errors.New("changed"))
	for name, tc := range map[string]struct {
		reason string
		// last is the Lease of the store before; it may be nil.
		last *coordinationv1.Lease
		// failure is the error of the first request of this kind. The request takes effect all the same if happens.
		request string
		failure error
		happens bool
		// reported means that the reconciliation fails.
		reported bool
		// kept is the position in the Lease of the store after the first attempt; 0 means that there is no such Lease.
		kept int64
	}{
		"create fails":            {"the API server refuses it", nil, "create", broken, false, true, 0},
		"create has no answer":    {"it may have happened", nil, "create", context.DeadlineExceeded, true, true, 10},
		"created by another":      {"it has just appeared", nil, "create", apierrors.NewAlreadyExists(leaseResource, "a"), false, true, 0},
		"read fails":              {"a later position may exist", storeLeaseOf("a", 12, now), "get", broken, false, true, 12},
		"update fails":            {"the API server refuses it", storeLeaseOf("a", 9, now), "update", broken, false, true, 9},
		"update conflicts":        {"another leader has written it", storeLeaseOf("a", 9, now), "update", changed, false, true, 9},
		"update has no answer":    {"it may have happened", storeLeaseOf("a", 9, now), "update", context.DeadlineExceeded, true, true, 10},
		"deletion fails":          {"the leader may be lost then", nil, "delete", broken, false, true, 10},
		"deletion conflicts":      {"the executor is back", nil, "delete", changed, false, false, 10},
		"already deleted":         {"somebody has deleted it", nil, "delete", apierrors.NewNotFound(leaseResource, dead), true, false, 10},
		"deletion without answer": {"it may have happened", nil, "delete", context.DeadlineExceeded, true, true, 10},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{released(withPosition(leaseOf("dead", 1, now), "a", 10))}
			if tc.last != nil {
				objects = append(objects, tc.last)
			}
			b := newTestEnv(t, interceptor.Funcs{}, objects...)
			b.setClocks(now)
			if _, err := b.reconcileLease(t, dead); err != nil {
				t.Fatal(err)
			}
			b.setClocks(now.Add(scheduler.LeaseRetention))
			inMemory := b.client
			fail := func(request string, do func() error) error {
				if request != tc.request {
					return do()
				}
				tc.request = "" // only the first request fails
				if tc.happens {
					if err := do(); err != nil {
						t.Fatal(err)
					}
				}
				return tc.failure
			}
			failing := interceptor.NewClient(inMemory, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					return fail("create", func() error { return c.Create(ctx, o, opts...) })
				},
				Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
					return fail("update", func() error { return c.Update(ctx, o, opts...) })
				},
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					kept := storeLeaseOf("a", 0, now)
					err := c.Get(ctx, client.ObjectKeyFromObject(kept), kept)
					if published, _ := executor.PublishedBy(kept); err != nil || published.Position < 10 {
						t.Errorf("the executor's Lease is deleted before the Lease of the store has its position: %+v, %v", published, err)
					}
					return fail("delete", func() error { return c.Delete(ctx, o, opts...) })
				},
			})
			b.executors.Client = failing
			b.executors.Live = interceptor.NewClient(inMemory, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if _, bounded := ctx.Deadline(); !bounded {
						t.Error("an unreachable API server must not block the worker for all executors")
					}
					return fail("get", func() error { return c.Get(ctx, key, o, opts...) })
				},
			})
			_, err := b.reconcileLease(t, dead)
			if (err != nil) != tc.reported || err != nil && !errors.Is(err, tc.failure) {
				t.Errorf("%s: the reconciliation fails with %v, want an error: %t", tc.reason, err, tc.reported)
			}
			if got := b.storeLeases(t)[executor.StoreLeaseName("a")]; got != tc.kept {
				t.Errorf("%s: the Lease of the store has position %d, want %d", tc.reason, got, tc.kept)
			}
			if got, want := b.published(t, "a"), max(10, tc.kept); got != want {
				t.Errorf("%s: the published position is %d, want %d", tc.reason, got, want)
			}
			if _, err := b.reconcileLease(t, dead); err != nil {
				t.Errorf("the next attempt: %v", err)
			}
			if got, want := b.published(t, "a"), max(10, tc.kept); got != want || b.hasLease(t, dead) {
				t.Errorf("then the published position is %d, want %d; the executor's Lease exists: %t", got, want, b.hasLease(t, dead))
			}
		})
	}
}

// TestLeaseOfStoreKeepsLatestPosition checks what the Lease of a store says after an executor at position 10 of store a
// was lost.
func TestLeaseOfStoreKeepsLatestPosition(t *testing.T) {
	name := executor.StoreLeaseName("a")
	edited := storeLeaseOf("other", 20, now)
	edited.Name = name
	damaged := storeLeaseOf("a", 0, now)
	damaged.Labels, damaged.Annotations = nil, nil
	for why, tc := range map[string]struct {
		last *coordinationv1.Lease
		want int64
	}{
		"an earlier position is replaced":                {storeLeaseOf("a", 9, now), 10},
		"the same position stays":                        {storeLeaseOf("a", 10, now), 10},
		"a later position stays":                         {storeLeaseOf("a", 11, now), 11},
		"a position of another store is not comparable":  {edited, 10},
		"a Lease without a label is not found otherwise": {damaged, 10},
	} {
		t.Run(why, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{}, released(withPosition(leaseOf("dead", 1, now), "a", 10)), tc.last)
			for _, at := range []time.Time{now, now.Add(scheduler.LeaseRetention)} {
				b.setClocks(at)
				if _, err := b.reconcileLease(t, executor.LeasePrefix+"dead"); err != nil {
					t.Fatal(err)
				}
			}
			if got := b.published(t, "a"); got != tc.want {
				t.Errorf("the published position is %d, want %d: %s", got, tc.want, why)
			}
			leases := b.leases(t)
			want := storeLeaseOf("a", tc.want, now.Add(scheduler.LeaseRetention))
			if len(leases) != 1 || leases[0].Name != name || cmp.Diff(want.Labels, leases[0].Labels) != "" ||
				cmp.Diff(want.Annotations, leases[0].Annotations) != "" || !leases[0].Spec.RenewTime.Equal(want.Spec.RenewTime) ||
				leases[0].Spec.HolderIdentity != nil {
				t.Errorf("the Leases are %+v, want only %+v", leases, want)
			}
		})
	}
}

// TestLeasesOfStoresDisappear checks when a leader deletes the Lease of store a, which has position 10. The leader has
// just started.
func TestLeasesOfStoresDisappear(t *testing.T) {
	const hour = time.Hour
	for name, tc := range map[string]struct {
		why  string
		self *coordinationv1.Lease
		// age is the age of the Lease by the clock of the API server. local is the error of this machine's clock.
		age, local time.Duration
		// after is the time until the next check; 0 means that the Lease is deleted.
		after time.Duration
	}{
		"covered":        {"an executor has the position", withPosition(leaseOf("self", 1, now), "a", 10), 0, 0, 0},
		"behind":         {"the executor has an earlier position", withPosition(leaseOf("self", 1, now), "a", 9), 0, 0, 5 * time.Minute},
		"another store":  {"the executor has another store", withPosition(leaseOf("self", 1, now), "b", 10), 0, 0, 5 * time.Minute},
		"lost executor":  {"the executor is gone", released(withPosition(leaseOf("self", 1, now), "a", 10)), 0, 0, 5 * time.Minute},
		"almost over":    {"the rest of the time is left", leaseOf("self", 1, now), 24*hour - time.Minute, 0, time.Minute},
		"over":           {"a new leader does not start the time again", leaseOf("self", 1, now), 24 * hour, 0, 0},
		"machine ahead":  {"only the API server's clock counts", leaseOf("self", 1, now.Add(48*hour)), hour, 48 * hour, 5 * time.Minute},
		"machine behind": {"only the API server's clock counts", leaseOf("self", 1, now.Add(-48*hour)), 24 * hour, -48 * hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			kept := storeLeaseOf("a", 10, now.Add(-tc.age))
			b := newTestEnv(t, interceptor.Funcs{}, tc.self, kept)
			b.executors.Now = func() time.Time { return now.Add(tc.local) }
			b.woken = nil
			result, err := b.reconcileLease(t, kept.Name)
			if err != nil || result.RequeueAfter != tc.after || b.hasLease(t, kept.Name) != (tc.after > 0) {
				t.Errorf("requeued after %s (error %v), want %s; the Lease exists: %t: %s", result.RequeueAfter, err, tc.after,
					b.hasLease(t, kept.Name), tc.why)
			}
			if len(b.woken) > 0 {
				t.Errorf("woke %v, want none: no executor has changed", b.woken)
			}
			if result, err := b.reconcileLease(t, executor.StoreLeaseName("gone")); err != nil || result.RequeueAfter != 0 {
				t.Errorf("a deleted Lease: %+v, %v; want nothing to do", result, err)
			}
		})
	}
}

// TestClockOfStoreLeaseIsSetBack checks a Lease of a store with a time in the future, which was written before the
// clock of the API server was set back. It must not stay forever, and must not be deleted early.
func TestClockOfStoreLeaseIsSetBack(t *testing.T) {
	kept := storeLeaseOf("a", 10, now.Add(1000*time.Hour))
	b := newTestEnv(t, interceptor.Funcs{}, kept)
	for _, check := range []struct {
		at     time.Duration
		exists bool
	}{{0, true}, {23 * time.Hour, true}, {24*time.Hour - time.Second, true}, {24 * time.Hour, false}} {
		b.setClocks(now.Add(check.at))
		if _, err := b.reconcileLease(t, kept.Name); err != nil {
			t.Fatal(err)
		}
		if got := b.hasLease(t, kept.Name); got != check.exists {
			t.Fatalf("%s after the clock was set back, the Lease exists: %t, want %t", check.at, got, check.exists)
		}
	}
}

// TestChangedStoreLeaseIsNotDeleted checks that the Lease of a store stays if it was written after the leader has read
// it.
func TestChangedStoreLeaseIsNotDeleted(t *testing.T) {
	kept := storeLeaseOf("a", 10, now.Add(-24*time.Hour))
	var precondition client.DeleteOptions
	b := newTestEnv(t, interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
			precondition.ApplyOptions(opts)
			return conflict
		},
	}, kept)
	if _, err := b.reconcileLease(t, kept.Name); err != nil {
		t.Errorf("error %v, want none: the watch will show the change", err)
	}
	if p := precondition.Preconditions; p == nil || p.UID == nil || p.ResourceVersion == nil || *p.ResourceVersion == "" {
		t.Errorf("the precondition of the deletion is %+v, want the version that was read", p)
	}
}

// TestNumberOfStoreLeasesIsLimited checks that the oldest Lease of a store is deleted when there are too many.
func TestNumberOfStoreLeasesIsLimited(t *testing.T) {
	objects := []client.Object{released(withPosition(leaseOf("dead", 1, now), "new", 10))}
	want := map[string]int64{executor.StoreLeaseName("new"): 10}
	for i := range scheduler.MaxStoreLeases {
		l := storeLeaseOf(fmt.Sprintf("s%03d", i), 10, now.Add(-time.Hour+time.Duration(i)*time.Second))
		objects = append(objects, l)
		if i > 0 {
			want[l.Name] = 10
		}
	}
	b := newTestEnv(t, interceptor.Funcs{}, objects...)
	for _, at := range []time.Time{now, now.Add(scheduler.LeaseRetention)} {
		b.setClocks(at)
		if _, err := b.reconcileLease(t, executor.LeasePrefix+"dead"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.storeLeases(t))) {
		if _, err := b.reconcileLease(t, name); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, b.storeLeases(t)); diff != "" {
		t.Errorf("positions in Leases of stores, without the oldest (-want +got):\n%s", diff)
	}
}

// TestLeaseOfStoreIsNoExecutor checks that no Turn is bound to a store, and that no executor counts as lost because a
// Lease of a store has no holder.
func TestLeaseOfStoreIsNoExecutor(t *testing.T) {
	kept := storeLeaseOf("a", 10, now)
	kept.Annotations[executor.CapacityAnnotation] = "5"
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(boundTo("self")), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now), kept)
	for _, exclusive := range []bool{false, true} {
		b.executors.Exclusive, b.woken = exclusive, nil
		if _, err := b.reconcileLease(t, kept.Name); err != nil {
			t.Fatal(err)
		}
		live, err := b.executors.aliveExecutors(t.Context())
		if diff := cmp.Diff([]scheduler.Executor{{Name: "self", Capacity: 1}}, live); diff != "" || err != nil {
			t.Errorf("executors: %v (-want +got):\n%s", err, diff)
		}
		if len(b.woken) > 0 {
			t.Errorf("woke %v, want none", b.woken)
		}
	}
}
