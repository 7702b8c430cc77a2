package harness

import (
	"context"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestAPIServerKeepsItsObjectsAfterAnOutage(t *testing.T) {
	s := New(t.TempDir(), nil)
	t.Cleanup(func() { mustStop(t, s) })
	cluster, err := s.StartControlPlane(t.Context(), Install{})
	if err != nil {
		t.Fatalf("StartControlPlane: %v", err)
	}
	c, err := client.New(rest.CopyConfig(cluster.Config), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// read returns an error unless the API server answers within the time.
	read := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return c.Get(ctx, client.ObjectKey{Name: "kept"}, &corev1.Namespace{})
	}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}); err != nil {
		t.Fatal(err)
	}
	paused := func() (func() error, error) { return cluster.PauseAPIServer(t.Context()) }
	for name, begin := range map[string]func() (func() error, error){"Killed": cluster.KillAPIServer, "Paused": paused} {
		t.Run(name, func(t *testing.T) {
			end, err := begin()
			if err != nil {
				t.Fatal(err)
			}
			if read(300*time.Millisecond) == nil {
				t.Error("the API server answers during the outage")
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if err := read(30 * time.Second); err != nil {
				t.Errorf("the API server has lost objects or its certificates in the outage: %v", err)
			}
		})
	}
	certificates := cluster.certificates
	mustStop(t, s)
	if _, err := os.Stat(certificates); certificates == "" || !os.IsNotExist(err) {
		t.Errorf("the directory %q of the certificates must be removed, error %v", certificates, err)
	}
}
