// Package readapi_test reads journals from a manager's read API as people do. It uses tokens and permissions of a real
// API server, real HTTP, a real store, and the command line.
package readapi_test

import (
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/harness"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

const (
	// patience bounds the wait for a condition that should hold within moments, on a busy machine.
	patience = 90 * time.Second
	// polling is the time between two checks of a condition.
	polling = 20 * time.Millisecond
)

// The control plane of the suite. BeforeSuite sets the variables; no test changes them.
var (
	apiConfig *rest.Config
	apiClient client.Client
	clientset kubernetes.Interface
)

func TestReadAPI(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(polling)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "Read API")
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(GinkgoLogr)
	klog.SetLogger(GinkgoLogr)

	before := gleak.Goroutines()
	DeferCleanup(func() { // runs last, when the API server has closed all connections
		Eventually(gleak.Goroutines).ShouldNot(harnesstest.HaveLeaked(before), "all goroutines of the suite must have ended")
	})

	install := harness.Install{CRDs: filepath.Join("..", "..", "config", "crd", "bases")}
	apiConfig = harnesstest.ControlPlane(GinkgoTB(), install).Config
	scheme, err := manager.Scheme()
	Expect(err).NotTo(HaveOccurred())
	apiClient, err = client.New(apiConfig, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	clientset, err = kubernetes.NewForConfig(apiConfig)
	Expect(err).NotTo(HaveOccurred())
})
