// Package harnesstest starts the parts of package harness for a test, and managers in the test's process. All parts
// stop at the end of the test, in the reverse order of their start. A part that cannot start or stop fails the test.
// For a Ginkgo spec or suite, use GinkgoTB().
package harnesstest

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

// On a busy machine, stopTimeout bounds the time until a manager has stopped, and accessTimeout the time until the API
// server applies a permission.
const stopTimeout, accessTimeout = 2 * time.Minute, 2 * time.Minute

// ControlPlane starts etcd and kube-apiserver.
func ControlPlane(tb testing.TB, install harness.Install) *harness.ControlPlane {
	tb.Helper()
	c, err := newHarness(tb).StartControlPlane(tb.Context(), install)
	must(tb, err)
	return c
}

// Repository returns an Install with the CRDs and the policy of the repository with this root directory.
func Repository(root string) harness.Install {
	return harness.Install{CRDs: filepath.Join(root, "config", "crd", "bases"), Policy: filepath.Join(root, "config", "policy")}
}

// Serve serves HTTP and returns the URL.
func Serve(tb testing.TB, handler http.Handler) (url string) {
	tb.Helper()
	url, err := newHarness(tb).Serve(tb.Context(), handler)
	must(tb, err)
	return url
}

// Model serves a fake model and returns the URL for spec.baseURL of a ModelProvider.
func Model(tb testing.TB, rules server.Config, options ...server.Option) (model *server.Server, baseURL string) {
	tb.Helper()
	model, baseURL, err := newHarness(tb).ServeModel(tb.Context(), rules, options...)
	must(tb, err)
	return model, baseURL
}

// DemoRules returns the rules of the demo's model without their delays and other faults. root is the root directory of
// the repository.
func DemoRules(tb testing.TB, root string) server.Config {
	tb.Helper()
	rules, err := server.LoadConfig(filepath.Join(root, "test", "fakemodel", "rules.yaml"))
	must(tb, err)
	for i := range rules.Rules {
		rules.Rules[i].Fault = server.Fault{}
	}
	return rules
}

// Tickets serves the tools of the tool server and returns the URL for spec.mcp.url of a ToolServer.
func Tickets(tb testing.TB) (desk *tickets.Desk, url string) {
	tb.Helper()
	desk, url, err := newHarness(tb).ServeTickets(tb.Context())
	must(tb, err)
	return desk, url
}

// Options returns the options of a manager that watches only this namespace and has its Leases there. The manager
// serves neither metrics nor probes nor the read API, and may call tools on this machine.
func Options(tb testing.TB, namespace string) manager.Options {
	tb.Helper()
	return manager.Options{
		DataDir: tb.TempDir(), Namespace: namespace, ExecutorName: namespace + "-0", WatchNamespaces: []string{namespace},
		MaxConcurrentTurns: 10, MetricsBindAddress: "0", HealthProbeBindAddress: "0", ReadBindAddress: "0",
		RecordRetention: time.Hour, MaxRecordsPerNamespace: 1000, AttachmentURLs: true,
		LogFormat: "json", LogLevel: "info", ProbeIntervalSeconds: 1, ToolAllowCIDRs: []string{"127.0.0.0/8", "::1/128"},
	}
}

// RunManager runs a manager in this process, with the permissions of user. It returns a function that stops the manager
// and waits until the manager has stopped. The end of the test calls this function, too. A manager that returns an
// error fails the test.
func RunManager(tb testing.TB, user *rest.Config, o manager.Options, log logr.Logger) (stop func()) {
	tb.Helper()
	must(tb, o.Validate())
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx, o, user, log) }()
	stop = sync.OnceFunc(func() {
		tb.Helper()
		cancel()
		timer := time.NewTimer(stopTimeout)
		defer timer.Stop()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				tb.Errorf("manager %s must stop without an error: %v", o.ExecutorName, err)
			}
		case <-timer.C:
			tb.Errorf("manager %s did not stop within %s", o.ExecutorName, stopTimeout)
		}
	})
	tb.Cleanup(stop)
	return stop
}

// newHarness returns a harness that stops at the end of the test.
func newHarness(tb testing.TB) *harness.Harness {
	tb.Helper()
	h := harness.New(tb.TempDir(), func(err error) { tb.Error(err) })
	tb.Cleanup(func() { must(tb, h.Stop()) })
	return h
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
