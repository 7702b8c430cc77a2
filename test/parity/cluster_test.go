package parity_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// cluster is a real API server with a manager.
type cluster struct {
	*harness.ControlPlane
	// dataDir is the data directory of the manager, with its journal.
	dataDir string
}

func startCluster(t *testing.T) cluster {
	t.Helper()
	c := cluster{ControlPlane: harnesstest.ControlPlane(t, harnesstest.Repository(root))}
	c.must(t, "create", "namespace", "capstan-system")
	o := harnesstest.Options(t, "capstan-system")
	o.WatchNamespaces, o.ProbeIntervalSeconds, c.dataDir = nil, 60, o.DataDir
	harnesstest.RunManager(t, c.Config, o, logr.Discard())
	return c
}

// run applies a directory in a namespace of its own, approves pending calls, and returns the only Turn after it has
// ended.
func (c cluster) run(t *testing.T, namespace, dir string) *v1alpha1.Turn {
	t.Helper()
	// Without a cluster, the Turn is in the namespace default. The name of the namespace does not affect the outcome.
	c.must(t, "create", "namespace", namespace)
	c.must(t, "apply", "--namespace", namespace, "-f", dir)
	name := strings.TrimSpace(c.must(t, "get", "-f", filepath.Join(dir, "turn.yaml"), "--namespace", namespace, "-o", "name"))
	agents, err := os.ReadFile(filepath.Join(dir, "agents.yaml"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if bytes.Contains(agents, []byte("requireApproval")) {
		c.must(t, "wait", "--namespace", namespace, "--for=jsonpath={.status.pendingApprovals}", name, "--timeout=60s")
		_, turnName, _ := strings.Cut(name, "/")
		capstan(t, "approve", turnName, "-y", "--without-arguments", "--namespace", namespace, "--kubeconfig", c.Kubeconfig)
	}
	c.must(t, "wait", "--namespace", namespace, "--for=jsonpath={.status.completionTime}", name, "--timeout=60s")
	return read[v1alpha1.Turn](t, []byte(c.must(t, "get", name, "--namespace", namespace, "-o", "json")))
}

func (c cluster) must(t *testing.T, args ...string) string {
	t.Helper()
	stdout, _, err := c.RunKubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout
}
