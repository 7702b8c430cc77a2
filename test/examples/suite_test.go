// Package examples_test applies every manifest that readers see, in examples/ and in the pages, to a real API
// server. It also reads them as the command line does. The example with tools runs to its end.
package examples_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/harness"
)

// The control plane of the suite. BeforeSuite sets the variables; no test changes them.
var (
	apiConfig *rest.Config
	apiClient client.Client
)

func TestExamples(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Examples")
}

var _ = BeforeSuite(func() {
	Expect(os.Getenv("KUBEBUILDER_ASSETS")).NotTo(BeEmpty(),
		"KUBEBUILDER_ASSETS is not set: run `make test`, which gets an API server and sets it")
	controlPlane := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	ctrl.SetLogger(GinkgoLogr)
	klog.SetLogger(GinkgoLogr)
	var err error
	apiConfig, err = controlPlane.Start()
	Expect(err).NotTo(HaveOccurred(), "the control plane must start")
	DeferCleanup(func() { Expect(controlPlane.Stop()).To(Succeed()) })
	apiConfig.QPS = -1
	Expect(harness.InstallApprovalPolicy(context.Background(), apiConfig, filepath.Join(root, "config", "policy"))).To(Succeed())
	scheme, err := manager.Scheme()
	Expect(err).NotTo(HaveOccurred())
	apiClient, err = client.New(apiConfig, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
})
