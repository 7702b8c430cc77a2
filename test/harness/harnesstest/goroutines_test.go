package harnesstest_test

import (
	"context"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// TestHaveLeakedIgnoresStoppedCaches stops a cache of one namespace before the API server has answered its first list.
func TestHaveLeakedIgnoresStoppedCaches(t *testing.T) {
	g := NewWithT(t)
	before := gleak.Goroutines()
	asked, release := make(chan struct{}, 10), make(chan struct{})
	t.Run("cache", func(t *testing.T) {
		g := NewWithT(t)
		url := harnesstest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/namespaces/a/configmaps" {
				http.NotFound(w, r)
				return
			}
			asked <- struct{}{}
			select {
			case <-r.Context().Done():
			case <-release:
			}
		}))
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
		c, err := cache.New(&rest.Config{Host: url}, cache.Options{
			DefaultNamespaces: map[string]cache.Config{"a": {}}, Mapper: mapper,
		})
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Start(ctx) }()
		informer, err := c.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{})
		g.Expect(err).NotTo(HaveOccurred())
		<-asked
		cancel()
		g.Expect(<-ended).To(Succeed())
		close(release)
	})
	http.DefaultClient.CloseIdleConnections()
	g.Eventually(gleak.Goroutines).ShouldNot(harnesstest.HaveLeaked(before))
}
