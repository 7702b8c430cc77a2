// Package parity_test runs each example in a cluster and without one, and compares.
package parity_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/fakemodel/server"
	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/manager"
)

// outcome is what must be the same: all but times, names of executors, and what they are hashed into.
type outcome struct {
	Reason     string
	StopReason v1alpha1.StopReason
	Result     *v1alpha1.TurnResult
	Usage      *v1alpha1.Usage
	Decision   *v1alpha1.Decision
	Steps      *v1alpha1.StepCounts
	Prepared   v1alpha1.Preparation
}

func outcomeOf(t *v1alpha1.Turn) outcome {
	o := outcome{
		Reason: t.StateReason(), StopReason: t.Status.StopReason, Result: t.Status.Result, Usage: t.Status.Usage,
		Decision: t.Status.Decision, Steps: t.Status.Steps,
	}
	if p := t.Status.Preparation; p != nil {
		o.Prepared = *p
		o.Prepared.PromptHash = ""              // it covers the time of day
		o.Prepared.PromptProfile.Generation = 0 // there is none without a cluster
	}
	return o
}

func TestExamplesEndAlikeWithAndWithoutACluster(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run `make test`")
	}
	rules, err := server.LoadConfig("../../hack/fakemodel/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fake, err := server.New(rules)
	if err != nil {
		t.Fatal(err)
	}
	model := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		model.Close()
	})
	c := startCluster(t)
	turns, err := filepath.Glob("../../examples/*/turn.yaml")
	if err != nil || len(turns) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, turn := range turns {
		folder := filepath.Dir(turn)
		name := filepath.Base(folder)
		t.Run(name, func(t *testing.T) {
			dir := copyOf(t, folder, model.URL+"/v1")
			without := outcomeOf(runWithout(t, dir))
			with := outcomeOf(c.run(t, name, dir))
			if diff := cmp.Diff(with, without); diff != "" {
				t.Errorf("the same manifests end otherwise: -cluster +capstan run:\n%s", diff)
			}
			if with.Prepared.PromptRenderHash == "" {
				t.Error("the Turn has no promptRenderHash")
			}
		})
	}
}

// copyOf copies manifests with the address of a model server into a new folder.
func copyOf(t *testing.T, folder, baseURL string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests in %s: %v", folder, err)
	}
	dir := t.TempDir()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "http://127.0.0.1:8089/v1", baseURL)
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runWithout runs the one Turn of a folder by the command line.
func runWithout(t *testing.T, dir string) *v1alpha1.Turn {
	t.Helper()
	var out, errOut bytes.Buffer
	code := cli.Execute(t.Context(), cli.Environment{
		Program: "capstan", In: strings.NewReader(""), Out: &out, Err: &errOut, LookupEnv: os.LookupEnv, Now: time.Now,
	}, []string{"run", "-f", dir, "-o", "json"})
	if code != 0 {
		t.Fatalf("capstan run ended with %d:\n%s", code, &errOut)
	}
	return read(t, out.Bytes())
}

func read(t *testing.T, data []byte) *v1alpha1.Turn {
	t.Helper()
	var turn v1alpha1.Turn
	if err := json.Unmarshal(data, &turn); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return &turn
}

// cluster is a real API server with a manager.
type cluster struct {
	kubectl interface {
		Run(args ...string) (stdout, stderr io.Reader, err error)
	}
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
	c := cluster{kubectl: kubectl}
	c.must(t, "create", "namespace", "capstan-system")
	runManager(t, cfg)
	return c
}

func runManager(t *testing.T, cfg *rest.Config) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	options := manager.Options{
		DataDir: t.TempDir(), Namespace: "capstan-system", ExecutorName: "capstan-0", MaxConcurrentTurns: 10,
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", LogFormat: "json", LogLevel: "info", ProbeIntervalSeconds: 60,
	}
	go func() { done <- manager.Run(ctx, options, cfg, logr.Discard()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("manager: %v", err)
		}
	})
}

// run applies a folder in a namespace of its own and returns its one Turn when that has ended.
func (c cluster) run(t *testing.T, namespace, dir string) *v1alpha1.Turn {
	t.Helper()
	// The command line takes objects without a namespace to be in default; the name does not bear on the outcome.
	c.must(t, "create", "namespace", namespace)
	c.must(t, "apply", "--namespace", namespace, "-f", dir)
	c.must(t, "wait", "--namespace", namespace, "--for=jsonpath={.status.completionTime}", "turn", "--all", "--timeout=60s")
	name := strings.TrimSpace(c.must(t, "get", "turn", "--namespace", namespace, "-o", "name"))
	return read(t, []byte(c.must(t, "get", name, "--namespace", namespace, "-o", "json")))
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
