// Package controller_test runs whole managers against a real API server and a model server over real HTTP. It
// checks everything that users and their tools can see. Most specs wait for real times to pass, so make test runs
// them in several processes with one control plane. A spec that counts the requests to the API server, or changes
// what other specs see of the cluster, is Serial.
package controller_test

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

const (
	// patience bounds the wait for a condition that should hold immediately, on a machine whose host takes most of its
	// CPU time. A test that passes never waits that long.
	patience = 90 * time.Second
	// polling is the time between two checks of a condition.
	polling = 20 * time.Millisecond
)

// The control plane, which all processes of the suite share. The first process starts it. The functions before the
// suite set the variables; no test changes them.
var (
	kubeconfig string
	apiConfig  *rest.Config
	apiClient  client.WithWatch
	// libraryLogs holds the logs of Kubernetes libraries that do not belong to a manager.
	libraryLogs = &logs{}
)

func TestController(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(polling)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "Controller")
}

// startControlPlane starts the control plane in the first process, and returns the path of its kubeconfig.
func startControlPlane() []byte {
	prepareProcess()
	// The control plane stops when all other processes have exited.
	return []byte(harnesstest.ControlPlane(GinkgoTB(), harnesstest.Repository(filepath.Join("..", ".."))).Kubeconfig)
}

// prepareProcess prepares a process of the suite. It must be called before the process starts anything. At the end, all
// that the process started must have stopped.
var prepareProcess = sync.OnceFunc(func() {
	ctrl.SetLogger(libraryLogs.logger())
	klog.SetLogger(libraryLogs.logger())
	before := gleak.Goroutines()
	DeferCleanup(func() { // runs last
		Eventually(gleak.Goroutines).ShouldNot(harnesstest.HaveLeaked(before), "all that the suite started must have stopped")
	})
})

var _ = SynchronizedBeforeSuite(startControlPlane, func(path []byte) {
	prepareProcess()
	kubeconfig = string(path)
	var err error
	apiConfig, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	apiConfig.QPS = -1
	transport, err := rest.TransportFor(apiConfig)
	Expect(err).NotTo(HaveOccurred())
	// All clients of the process share their connections. The API server outlives all processes but the first.
	DeferCleanup(func() { utilnet.CloseIdleConnectionsFor(transport) })

	scheme, err := manager.Scheme()
	Expect(err).NotTo(HaveOccurred())
	apiClient, err = client.NewWithWatch(apiConfig, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
})
