// Package gitops_test checks that GitOps tools work well with Capstan's objects:
//
//  1. Flux's own code and the health script for Argo CD read every state of every kind correctly.
//  2. An apply that changes nothing has no effect.
//  3. The check of examples/gitops finds a changed prompt.
//
// The objects and states come from a real API server and a real manager.
package gitops_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/harness"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

const (
	root = "../.."
	// patience bounds the wait for a state that should be reached within moments, on a busy machine.
	patience = 2 * time.Minute
	polling  = 50 * time.Millisecond
)

// The control plane of the tests, and the command line. TestMain sets the variables.
var (
	apiConfig *rest.Config
	apiClient client.Client
	capstan   string
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) (status int) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	dir, err := os.MkdirTemp("", "capstan-gitops-")
	if err != nil {
		return printError(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // because it is a temporary directory
	s := harness.New(dir, nil)
	defer func() {
		if err := s.Stop(); err != nil {
			status = printError(err)
		}
	}()
	controlPlane, err := s.StartControlPlane(context.Background(), harnesstest.Repository(root))
	if err != nil {
		return printError(err)
	}
	apiConfig = controlPlane.Config
	scheme, err := manager.Scheme()
	if err != nil {
		return printError(err)
	}
	if apiClient, err = client.New(apiConfig, client.Options{Scheme: scheme}); err != nil {
		return printError(err)
	}
	if capstan, err = harness.Build(context.Background(), root, filepath.Join(dir, "bin"), "capstan"); err != nil {
		return printError(err)
	}
	return m.Run()
}

// printError prints an error and returns the exit code of a failure.
func printError(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// testEnv is a namespace with a model and a tool server.
type testEnv struct {
	t                *testing.T
	namespace        string
	modelURL, mcpURL string
	dataDir          string
}

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "gitops-"}}
	if err := apiClient.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	_, modelURL := harnesstest.Model(t, harnesstest.DemoRules(t, root))
	_, mcpURL := harnesstest.Tickets(t)
	return &testEnv{t: t, namespace: namespace.Name, modelURL: modelURL, mcpURL: mcpURL, dataDir: t.TempDir()}
}

// runManager starts a manager of the namespace, and returns a function that stops it and waits for its end. The end
// of the test stops it, too.
func (s *testEnv) runManager() (stop func()) {
	s.t.Helper()
	o := harnesstest.Options(s.t, s.namespace)
	o.DataDir = s.dataDir
	return harnesstest.RunManager(s.t, apiConfig, o, logr.Discard())
}

// get reads the current state of an object.
func (s *testEnv) get(kind, name string) *unstructured.Unstructured {
	s.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("capstan.dev/v1alpha1")
	o.SetKind(kind)
	if err := apiClient.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, o); err != nil {
		s.t.Fatal(err)
	}
	return o
}

// reason returns the reason of an object's main condition, or an empty string if the newest spec has none yet.
func reason(o *unstructured.Unstructured) string {
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	if observed != o.GetGeneration() {
		return ""
	}
	main := "Ready"
	if o.GetKind() == "Turn" {
		main = "Succeeded"
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == main {
			text, _ := c["reason"].(string)
			return text
		}
	}
	return ""
}

// waitForState waits until an object has a state, which is the reason of its main condition.
func (s *testEnv) waitForState(kind, name, want string) *unstructured.Unstructured {
	s.t.Helper()
	tick := time.NewTicker(polling)
	defer tick.Stop()
	late := time.After(patience)
	for {
		o := s.get(kind, name)
		if reason(o) == want {
			return o
		}
		select {
		case <-tick.C:
		case <-late:
			s.t.Fatalf("%s %s is %q, want %q: %v", kind, name, reason(o), want, o.Object["status"])
		}
	}
}
