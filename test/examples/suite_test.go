// Package examples_test applies every manifest that readers see, in examples/ and in the pages, to a real API
// server. It also reads them as the command line does. The example with tools runs to its end.
package examples_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
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
	ctrl.SetLogger(GinkgoLogr)
	klog.SetLogger(GinkgoLogr)
	apiConfig = harnesstest.ControlPlane(GinkgoTB(), harnesstest.Repository(root)).Config
	scheme, err := manager.Scheme()
	Expect(err).NotTo(HaveOccurred())
	apiClient, err = client.New(apiConfig, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
})
