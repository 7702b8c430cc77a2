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

// TestExecutorCount checks which executors count as sharing the limits of ModelProviders.
func TestExecutorCount(t *testing.T) {
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
	expect := func(n int, when string) {
		t.Helper()
		if got, err := count.alive(t.Context()); err != nil || got != n {
			t.Errorf("%s, %d executors share the limits (error %v), want %d", when, got, err, n)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expect(1, "without a Lease")
	kept := lease("", 10)
	kept.Name = executor.StoreLeaseName("a")
	must(c.Create(t.Context(), kept))
	one, two := lease("one", 10), lease("two", 10)
	for _, l := range []client.Object{one, two, lease("stopping", 0)} {
		must(c.Create(t.Context(), l))
	}
	expect(2, "with a third executor that stops")
	now = now.Add(9 * time.Second)
	one.Spec.RenewTime = new(metav1.NewMicroTime(now))
	must(c.Update(t.Context(), one))
	expect(2, "before the Lease of the second executor expires")
	now = now.Add(2 * time.Second)
	expect(1, "after the Lease of the second executor has expired")
	now = now.Add(time.Minute)
	expect(1, "when no executor is alive")
	must(c.Delete(t.Context(), two))
	one.Spec.RenewTime = new(metav1.NewMicroTime(now))
	must(c.Update(t.Context(), one))
	expect(1, "after the Lease of the second executor was deleted")
	again := two.DeepCopy() // counts as a new Lease if the deleted one was forgotten
	again.ResourceVersion = ""
	must(c.Create(t.Context(), again))
	expect(2, "after the Lease of the second executor was created again")
}
