package manager

import (
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/internal/executor"
)

// TestExecutorsThatShareLimits checks which executors count for the shares of limits.
func TestExecutorsThatShareLimits(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	lease := func(name string, capacity int) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "capstan", Name: executor.LeasePrefix + name,
				Annotations: map[string]string{executor.CapacityAnnotation: strconv.Itoa(capacity)},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &name, LeaseDurationSeconds: new(int32(10)), RenewTime: new(metav1.NewMicroTime(now)),
			},
		}
	}
	c := fake.NewClientBuilder().Build()
	count := &executorCount{leases: c, namespace: "capstan", now: func() time.Time { return now }}
	want := func(n int, when string) {
		t.Helper()
		if got, err := count.alive(t.Context()); err != nil || got != n {
			t.Errorf("%s, %d executors share the limits (error %v), want %d", when, got, err, n)
		}
	}
	change := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	want(1, "without a Lease")
	one, two := lease("one", 10), lease("two", 10)
	for _, l := range []client.Object{one, two, lease("stopping", 0)} {
		change(c.Create(t.Context(), l))
	}
	want(2, "with a third one that stops")
	now = now.Add(9 * time.Second)
	one.Spec.RenewTime = new(metav1.NewMicroTime(now))
	change(c.Update(t.Context(), one))
	want(2, "before the Lease of the second one expires")
	now = now.Add(2 * time.Second)
	want(1, "after the Lease of the second one has expired")
	now = now.Add(time.Minute)
	want(1, "when none is alive")
}
