package executor

import (
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// TestRunsNoMoreTurnsThanItsCapacity checks that an executor hands back the Turns that are bound to it beyond its
// capacity: every client that may write a status can bind Turns. A Turn that only has to end needs no place. A place is
// free again before the status of the Turn that had it is written, because that write lets the controller bind the next
// Turn.
func TestRunsNoMoreTurnsThanItsCapacity(t *testing.T) {
	const turns, capacity = 5, 2
	synctest.Test(t, func(t *testing.T) {
		e, slow, get := slowTurns(t, turns, func(n int, t *v1alpha1.Turn) {
			if n == turns-1 {
				t.Spec.DesiredState = v1alpha1.DesiredStateCancelled
			}
		})
		e.Capacity = capacity
		for n := range turns {
			e.observe(t.Context(), get(n))
			synctest.Wait() // so the first Turns get the places
		}
		if n := slow.inside.Load(); n != capacity+1 {
			t.Errorf("%d Turns run at the same time, want %d and the cancelled one", n, capacity)
		}
		for n := capacity; n < turns-1; n++ {
			e.mu.Lock()
			refused := e.runs[get(n).UID]
			e.mu.Unlock()
			refused.stopSoon() // end the wait before the Turn is handed back
		}
		synctest.Wait()
		for n := range turns {
			got, isRefused := get(n), n >= capacity && n < turns-1
			if handedBack := got.BoundTo() == ""; handedBack != isRefused || handedBack && got.StateReason() != v1alpha1.TurnReasonPending {
				t.Errorf("Turn %d is bound to %q and %s; want it handed back: %t", n, got.BoundTo(), got.StateReason(), isRefused)
			}
		}
		close(slow.release)
		e.all.Wait()
		if !e.places.TryAcquire(capacity) {
			t.Error("places are taken after all Turns have ended")
		} else {
			e.places.Release(capacity)
		}
		for n, want := range []string{v1alpha1.TurnReasonPrepared, v1alpha1.TurnReasonPrepared} {
			if got := get(n).StateReason(); got != want {
				t.Errorf("Turn %d is %s, want %s", n, got, want)
			}
		}
		if got := get(turns - 1).StateReason(); got != v1alpha1.TurnReasonCancelled {
			t.Errorf("the cancelled Turn is %s, want it to end without a place", got)
		}
		refused := get(capacity)
		e.observe(t.Context(), refused)
		refused.Status.Executor.Name, refused.Status.Executor.Epoch = me, 2
		if err := e.Client.Status().Update(t.Context(), refused); err != nil {
			t.Fatal(err)
		}
		e.observe(t.Context(), get(capacity))
		e.all.Wait()
		if got := get(capacity).StateReason(); got != v1alpha1.TurnReasonPrepared {
			t.Errorf("the Turn that was handed back is %s after the next binding, want %s", got, v1alpha1.TurnReasonPrepared)
		}
	})
}

// TestWaitForPlaceEnds checks that a Turn that is cancelled, or whose time is over, while it waits for a place ends
// without one.
func TestWaitForPlaceEnds(t *testing.T) {
	for want, end := range map[string]func(r *run){
		v1alpha1.TurnReasonCancelled:        func(r *run) { r.cancel() },
		v1alpha1.TurnReasonDeadlineExceeded: func(*run) { time.Sleep(2 * time.Second) },
	} {
		t.Run(want, func(t *testing.T) {
			second := turnWith(boundTo(me, 10), func(t *v1alpha1.Turn) { // with this epoch, it waits for a place for 10 s
				t.Name, t.UID, t.Spec.Limits = "two", "uid-two", &v1alpha1.Limits{TimeoutSeconds: new(int32(2))}
			})
			synctest.Test(t, func(t *testing.T) {
				e, journals := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(), second)...)
				begun := time.Now()
				e.Now = func() time.Time { return now.Add(time.Since(begun)) }
				e.Capacity = 1
				places := e.runPlaces()
				if !places.TryAcquire(1) {
					t.Fatal("no place is free")
				}
				var two v1alpha1.Turn
				key := client.ObjectKey{Namespace: "helpdesk", Name: "two"}
				if err := e.Reader.Get(t.Context(), key, &two); err != nil {
					t.Fatal(err)
				}
				e.observe(t.Context(), &two)
				synctest.Wait()
				if all, err := journal.Collect(t.Context(), &journals.Store, "uid-two"); err != nil || len(all) > 0 {
					t.Fatalf("%d entries, error %v; want none before the Turn has a place", len(all), err)
				}
				e.mu.Lock()
				r := e.runs["uid-two"]
				e.mu.Unlock()
				end(r)
				synctest.Wait()
				if err := e.Reader.Get(t.Context(), key, &two); err != nil || two.StateReason() != want {
					t.Errorf("the Turn is %s (error %v), want %s", two.StateReason(), err, want)
				}
				e.all.Wait()
			})
		})
	}
}
