package executor

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// watch delivers events of Turns to the executor, as the cache would.
type watch struct {
	cache.ResourceEventHandler
	adoptions sync.WaitGroup
}

func newWatch(ctx context.Context, e *Executor) *watch {
	w := &watch{}
	w.ResourceEventHandler = e.handler(context.WithoutCancel(ctx), func(t *v1alpha1.Turn) { e.adopt(ctx, t, &w.adoptions) })
	return w
}

func TestAdoptClaimsBoundTurns(t *testing.T) {
	other := turnWith(boundTo("other", 3), func(t *v1alpha1.Turn) { t.Name, t.UID = "two", "uid-two" })
	// The API server is unavailable at first.
	e, store := newExecutor(t, failing(broken), append(surroundings(), turnWith(boundTo(me, 4)), other)...)
	before := stored(t, e)
	w := newWatch(t.Context(), e)
	w.OnAdd(before, true)
	w.OnAdd(other, true)
	w.OnUpdate(before, before) // as if a client had changed a label
	w.adoptions.Wait()
	claimed := stored(t, e)
	if claimed.Epoch() != 5 || len(store.entries(t)) > 0 {
		t.Fatalf("the Turn has %+v and %d entries, want it claimed, and not begun before the watch shows the claim",
			claimed.Status.Executor, len(store.entries(t)))
	}
	w.OnUpdate(before, claimed)
	e.all.Wait()
	if got := stored(t, e); got.Epoch() != 5 || got.StateReason() != v1alpha1.TurnReasonPrepared {
		t.Errorf("the Turn must be run with the next epoch: %+v", got.Status)
	}
	var untouched v1alpha1.Turn
	if err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(other), &untouched); err != nil || untouched.Epoch() != 3 {
		t.Errorf("the Turn of another executor must be left alone: %v, %v", untouched.Status.Executor, err)
	}
}

// TestAdoptedTurnThatOnlyAFinalizerKeeps checks that a Turn that was deleted while no process ran ends, so that nothing
// waits for it.
func TestAdoptedTurnThatOnlyAFinalizerKeeps(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(func(t *v1alpha1.Turn) {
		t.Finalizers = []string{"example.com/keep"}
	}))...)
	remove(t, e, stored(t, e))
	before := stored(t, e)
	w := newWatch(t.Context(), e)
	w.OnAdd(before, true)
	w.adoptions.Wait()
	w.OnUpdate(before, stored(t, e))
	e.all.Wait()
	if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonCancelled {
		t.Errorf("the Turn is %s, want %s", got.StateReason(), v1alpha1.TurnReasonCancelled)
	}
}

// TestHighestEpochIsNotClaimed checks that a Turn without a next epoch is handed back, so that the controller ends it.
func TestHighestEpochIsNotClaimed(t *testing.T) {
	e, store := newExecutor(t, failing(), append(surroundings(), turnWith(boundTo(me, v1alpha1.MaxEpoch)))...)
	w := newWatch(t.Context(), e)
	w.OnAdd(stored(t, e), true)
	w.adoptions.Wait()
	got := stored(t, e)
	w.OnUpdate(got, got)
	e.all.Wait()
	if got.BoundTo() != "" || got.Epoch() != v1alpha1.MaxEpoch || len(store.entries(t)) > 0 || e.adopted.Load() != 0 {
		t.Errorf("the Turn has %+v and %d entries, want it handed back with its epoch", got.Status.Executor, len(store.entries(t)))
	}
}

// TestClaimedTurnThatDisappearsIsNotRun checks that a Turn does not run if the watch shows its end, but
// never its claim.
func TestClaimedTurnThatDisappearsIsNotRun(t *testing.T) {
	e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith())...)
	w := newWatch(t.Context(), e)
	before := stored(t, e)
	w.OnAdd(before, true)
	w.adoptions.Wait()
	w.OnDelete(cache.DeletedFinalStateUnknown{Key: "helpdesk/one", Obj: before})
	e.all.Wait()
	if len(store.entries(t)) > 0 || len(e.runs) > 0 || len(e.done) > 0 {
		t.Errorf("%d entries, %d runs and %d entries in done, want none for a Turn that is gone",
			len(store.entries(t)), len(e.runs), len(e.done))
	}
}

// TestFailingClaimDelaysTheStartOnlyBriefly checks that a failing claim delays the start by at most LeaseDuration:
// before the start, the executor has no Lease and gets no Turns at all.
func TestFailingClaimDelaysTheStartOnlyBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var available atomic.Bool
		e, _ := newExecutor(t, interceptor.Funcs{
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
				opts ...client.SubResourceUpdateOption,
			) error {
				if !available.Load() {
					return broken
				}
				return c.SubResource(sub).Update(ctx, o, opts...)
			},
		}, turnWith())
		w := newWatch(t.Context(), e)
		w.OnAdd(stored(t, e), true)
		start := time.Now()
		e.awaitAdoptions(t.Context(), &w.adoptions)
		if waited := time.Since(start); waited != LeaseDuration {
			t.Errorf("the start took %s, want %s", waited, LeaseDuration)
		}
		available.Store(true)
		e.awaitAdoptions(t.Context(), &w.adoptions)
		if got := stored(t, e); got.Epoch() != 2 || time.Since(start) >= 2*LeaseDuration {
			t.Errorf("the Turn has epoch %d after %s, want it claimed as soon as that is possible", got.Epoch(), time.Since(start))
		}
	})
}

func TestAdoptEndsWithTheProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e, _ := newExecutor(t, interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			cancel()
			return broken
		},
	}, turnWith())
	w := newWatch(ctx, e)
	w.OnAdd(stored(t, e), true)
	w.adoptions.Wait()
	e.all.Wait()
	if got := stored(t, e); got.Epoch() != 1 {
		t.Errorf("the Turn has epoch %d, want it left as it was", got.Epoch())
	}
}

// TestStartClaimsFewTurnsAtTheSameTime checks that the start does not claim thousands of Turns of an earlier process at
// the same time.
func TestStartClaimsFewTurnsAtTheSameTime(t *testing.T) {
	const left = 100
	objects := surroundings()
	for i := range left {
		objects = append(objects, turnWith(func(t *v1alpha1.Turn) {
			t.Name, t.UID = fmt.Sprintf("left-%d", i), types.UID(fmt.Sprintf("uid-%d", i))
		}))
	}
	var current, most atomic.Int32
	e, _ := newExecutor(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption,
		) error {
			if n := current.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer current.Add(-1)
			runtime.Gosched()
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	}, objects...)
	var turns v1alpha1.TurnList
	if err := e.Client.List(t.Context(), &turns); err != nil {
		t.Fatal(err)
	}
	var adoptions sync.WaitGroup
	for i := range turns.Items {
		e.adopt(t.Context(), &turns.Items[i], &adoptions)
	}
	adoptions.Wait()
	if n := most.Load(); n > claimsAtOnce {
		t.Errorf("%d Turns were claimed at the same time, want at most %d", n, claimsAtOnce)
	}
	if err := e.Client.List(t.Context(), &turns); err != nil {
		t.Fatal(err)
	}
	for _, left := range turns.Items {
		if left.Epoch() != 2 {
			t.Errorf("Turn %q has epoch %d, want it claimed", left.Name, left.Epoch())
		}
	}
}
