package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/internal/executor"
)

// storeLeaseOf returns the Lease of a store at position 10, written at the given time.
func storeLeaseOf(store string, written time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:        executor.StoreLeaseName(store),
			Annotations: map[string]string{executor.StoreAnnotation: store, executor.PositionAnnotation: "10"},
		},
		Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(written))},
	}
}

// TestKeepStoreFor checks how long the Lease of a store is kept.
func TestKeepStoreFor(t *testing.T) {
	for name, tc := range map[string]struct {
		why      string
		position string
		age      time.Duration
		// newer and older are the numbers of the Leases of other stores.
		newer, older int
		want         time.Duration
		validTime    bool
	}{
		"new":          {"an executor may cover it later", "10", 0, 0, 0, 5 * time.Minute, true},
		"almost over":  {"the rest of the time is left", "10", 24*time.Hour - time.Minute, 0, 0, time.Minute, true},
		"over":         {"the retention is over", "10", 24 * time.Hour, 0, 0, 0, true},
		"clock ahead":  {"a step of the clock is a passage of time", "10", 1000 * time.Hour, 0, 0, 0, true},
		"clock behind": {"clocks of API servers may differ", "10", -time.Minute, 0, 0, 5 * time.Minute, true},
		"far behind":   {"its time must be written again", "10", -time.Hour, 0, 0, 5 * time.Minute, false},
		"no position":  {"it proves nothing", "many", 0, 0, 0, 0, true},
		"not too many": {"the number is at the limit", "10", time.Minute, MaxStoreLeases - 1, 0, 5 * time.Minute, true},
		"too many":     {"this is the oldest", "10", time.Minute, MaxStoreLeases, 0, 0, true},
		"older ones":   {"older ones are deleted first", "10", time.Minute, 0, 2 * MaxStoreLeases, 5 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			lease := storeLeaseOf("this", now.Add(-tc.age))
			lease.Annotations[executor.PositionAnnotation] = tc.position
			stores := []coordinationv1.Lease{*lease}
			for i := range tc.newer {
				stores = append(stores, *storeLeaseOf(fmt.Sprintf("newer-%d", i), now.Add(time.Second-tc.age)))
			}
			for i := range tc.older {
				stores = append(stores, *storeLeaseOf(fmt.Sprintf("older-%d", i), now.Add(-time.Second-tc.age)))
			}
			if got := KeepStoreFor(lease, stores, now); got != tc.want {
				t.Errorf("KeepStoreFor = %s, want %s: %s", got, tc.want, tc.why)
			}
			if got := HasValidTime(lease, now); got != tc.validTime {
				t.Errorf("HasValidTime = %t, want %t: %s", got, tc.validTime, tc.why)
			}
		})
	}
}

func TestStoreLeaseWithoutTime(t *testing.T) {
	lease := storeLeaseOf("this", now)
	lease.Spec.RenewTime = nil
	if HasValidTime(lease, now) {
		t.Error("a Lease without a time has a valid time")
	}
}

// TestMostStoreLeases checks that exactly the newest Leases are kept, even if all were written at the same time.
func TestMostStoreLeases(t *testing.T) {
	for name, step := range map[string]time.Duration{"one after another": time.Second, "at the same time": 0} {
		t.Run(name, func(t *testing.T) {
			const surplus = 30
			var stores []coordinationv1.Lease
			for i := range MaxStoreLeases + surplus {
				stores = append(stores, *storeLeaseOf(fmt.Sprintf("s%03d", i), now.Add(time.Duration(i)*step)))
			}
			var deleted []int
			for i := range stores {
				if KeepStoreFor(&stores[i], stores, now.Add(time.Hour)) == 0 {
					deleted = append(deleted, i)
				}
			}
			if len(deleted) != surplus || slices.Max(deleted) != surplus-1 {
				t.Errorf("deleted %v, want the oldest %d", deleted, surplus)
			}
		})
	}
}
