// Package api_test tests the generated CRDs. It checks the rules of their schemas, and their behavior on a real API
// server.
package api_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// The control plane of the suite. BeforeSuite sets the variables; no test changes them.
var (
	controlPlane *harness.ControlPlane
	apiClient    client.Client
	crdWarnings  = &warnings{}
)

func TestAPI(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "API")
}

var _ = BeforeSuite(func() {
	controlPlane = harnesstest.ControlPlane(GinkgoTB(), harness.Install{})
	config := rest.CopyConfig(controlPlane.Config)
	config.WarningHandlerWithContext = crdWarnings
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		Paths:              []string{filepath.Join("..", "..", "config", "crd", "bases")},
		ErrorIfPathMissing: true,
	})
	Expect(err).NotTo(HaveOccurred(), "the CRDs must install")

	scheme := runtime.NewScheme()
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	apiClient, err = client.New(controlPlane.Config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
})

// warnings collects the warnings of an API server.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.texts
}

var _ = Describe("the CRDs", func() {
	It("install without a warning of the API server", func() {
		Expect(crdWarnings.all()).To(BeEmpty())
	})
})
