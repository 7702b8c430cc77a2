package parity_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/harness"
)

// cluster is a real API server with a manager.
type cluster struct {
	kubectl interface {
		Run(args ...string) (stdout, stderr io.Reader, err error)
	}
	// kubeconfig is the path of a kubeconfig with administrator rights.
	kubeconfig string
	// dataDir is the data folder of the manager, with its journal.
	dataDir string
}

func startCluster(t *testing.T) cluster {
	t.Helper()
	environment := &envtest.Environment{CRDDirectoryPaths: []string{"../../config/crd/bases"}, ErrorIfCRDPathMissing: true}
	cfg, err := environment.Start()
	if err != nil {
		t.Fatalf("failed to start the control plane: %v", err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Errorf("failed to stop the control plane: %v", err)
		}
	})
	admin, err := environment.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := admin.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	config, err := admin.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{kubectl: kubectl, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), dataDir: t.TempDir()}
	if err := os.WriteFile(c.kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	c.must(t, "create", "namespace", "capstan-system")
	if err := harness.InstallApprovalPolicy(t.Context(), cfg, "../../config/policy"); err != nil {
		t.Fatal(err)
	}
	runManager(t, cfg, c.dataDir)
	return c
}

func runManager(t *testing.T, cfg *rest.Config, dataDir string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	options := manager.Options{
		DataDir: dataDir, Namespace: "capstan-system", ExecutorName: "capstan-0", MaxConcurrentTurns: 10,
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", LogFormat: "json", LogLevel: "info", ProbeIntervalSeconds: 60,
		ToolAllowCIDRs: []string{"127.0.0.0/8", "::1/128"},
	}
	go func() { done <- manager.Run(ctx, options, cfg, logr.Discard()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("manager: %v", err)
		}
	})
}

// run applies a folder in a namespace of its own, approves pending calls, and returns the only Turn after it has
// ended.
func (c cluster) run(t *testing.T, namespace, dir string) *v1alpha1.Turn {
	t.Helper()
	// The command line assumes the namespace default for objects without one. The name does not affect the outcome.
	c.must(t, "create", "namespace", namespace)
	c.must(t, "apply", "--namespace", namespace, "-f", dir)
	name := strings.TrimSpace(c.must(t, "get", "-f", filepath.Join(dir, "turn.yaml"), "--namespace", namespace, "-o", "name"))
	if strings.Contains(text(t, open(t, filepath.Join(dir, "agents.yaml"))), "requireApproval") {
		c.must(t, "wait", "--namespace", namespace, "--for=jsonpath={.status.pendingApprovals}", name, "--timeout=60s")
		_, bare, _ := strings.Cut(name, "/")
		capstan(t, "approve", bare, "-y", "--without-arguments", "--namespace", namespace, "--kubeconfig", c.kubeconfig)
	}
	c.must(t, "wait", "--namespace", namespace, "--for=jsonpath={.status.completionTime}", name, "--timeout=60s")
	return read[v1alpha1.Turn](t, []byte(c.must(t, "get", name, "--namespace", namespace, "-o", "json")))
}

// open returns the content of a file, or no content if the file does not exist.
func open(t *testing.T, path string) io.Reader {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return bytes.NewReader(data)
}

func (c cluster) must(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, err := c.kubectl.Run(args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, text(t, stderr))
	}
	return text(t, stdout)
}

func text(t *testing.T, r io.Reader) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
