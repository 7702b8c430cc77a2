package executor

import (
	"testing"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/store"
)

// TestAnExecutorThatStopsTellsThatItTakesNoMore: and its heartbeat, which may write at the same time, does not undo it.
func TestAnExecutorThatStopsTellsThatItTakesNoMore(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: "capstan-system", Name: LeasePrefix + me, Annotations: map[string]string{CapacityAnnotation: "10"},
	}}
	clientset := fake.NewClientset(lease)
	updates := 0
	clientset.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		updates++
		return updates == 1, nil, conflict
	})
	stores := store.NewTracker(&journaltest.Memory{})
	id, err := stores.Ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := &heldLease{executor: &Executor{Name: me, Namespace: "capstan-system", Capacity: 10, Leases: clientset, Store: stores, Log: logr.Discard()}}
	h.taking.Store(true)
	h.withdraw(t.Context())
	got, err := clientset.CoordinationV1().Leases("capstan-system").Get(t.Context(), LeasePrefix+me, metav1.GetOptions{})
	if err != nil || got.Annotations[CapacityAnnotation] != "0" {
		t.Errorf("the Lease says %v, %v; want a capacity of 0", got.Annotations, err)
	}
	if got.Annotations[StoreAnnotation] != id.ID || got.Annotations[IncarnationAnnotation] != id.Incarnation {
		t.Errorf("the Lease says %v, want the store %+v", got.Annotations, id)
	}
	h.describe(lease)
	if lease.Annotations[CapacityAnnotation] != "0" {
		t.Errorf("the next renewal says %v, want a capacity of 0", lease.Annotations)
	}
}
