package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
)

// TestMain lets the test's own executable play the program that a test starts: "serve ADDRESS" answers every
// request with 200 until SIGTERM, and "stubborn ADDRESS" ignores SIGTERM.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && (os.Args[1] == "serve" || os.Args[1] == "stubborn") {
		serve(os.Args[1] == "stubborn", os.Args[2])
	}
	goleak.VerifyTestMain(m)
}

func TestControlPlaneServesTheCRDsUntilStopped(t *testing.T) {
	dir := t.TempDir()
	s := New(dir, nil)
	t.Cleanup(func() { mustStop(t, s) })
	cluster, err := s.StartControlPlane(t.Context(), Install{CRDs: filepath.Join("..", "..", "config", "crd", "bases")})
	if err != nil {
		t.Fatalf("StartControlPlane: %v", err)
	}

	// Use the kubeconfig, as a user would.
	config, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig)
	if err != nil {
		t.Fatalf("the kubeconfig cannot be read: %v", err)
	}
	config.Timeout = 10 * time.Second
	if err := apiextensionsv1.AddToScheme(clientScheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: clientScheme})
	if err != nil {
		t.Fatal(err)
	}
	var crds apiextensionsv1.CustomResourceDefinitionList
	if err := c.List(t.Context(), &crds); err != nil {
		t.Fatalf("the API server does not list CRDs: %v", err)
	}
	var kinds []string
	for i := range crds.Items {
		kinds = append(kinds, crds.Items[i].Spec.Names.Kind)
	}
	slices.Sort(kinds)
	if diff := cmp.Diff([]string{"Agent", "Budget", "ModelProvider", "PromptProfile", "Session", "ToolApproval", "ToolServer", "Turn"},
		kinds); diff != "" {
		t.Errorf("kinds that the API server serves (-want +got):\n%s", diff)
	}

	testPolicyInstallation(t, cluster)

	info, err := os.Stat(cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig has mode %o, want 600: it holds an administrator's key", info.Mode().Perm())
	}
	mustStop(t, s)
	if err := c.List(t.Context(), &crds); err == nil {
		t.Error("the API server still answers after Stop")
	}
}

// testPolicyInstallation checks that installPolicy installs the policy of ToolApprovals, and that Capstan then uses
// ToolApprovals.
func testPolicyInstallation(t *testing.T, cluster *ControlPlane) {
	t.Helper()
	config := filepath.Join("..", "..", "config", "policy")
	if err := installPolicy(t.Context(), cluster.Config, config); err != nil {
		t.Fatal(err)
	}
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	check := approvals.NewPolicy(approvals.DefaultPolicy, clientset.AdmissionregistrationV1(), time.Now, logr.Discard()).Check
	made := []v1alpha1.ToolApproval{{ObjectMeta: metav1.ObjectMeta{
		Name:              "a",
		CreationTimestamp: metav1.NewTime(time.Now().Truncate(time.Second)),
	}}}
	if checked, why, err := check(t.Context(), made); len(checked) != 1 || why != "" || err != nil {
		t.Errorf("a decision that is made now is not used: %q, %v", why, err)
	}
	if err := installPolicy(t.Context(), cluster.Config, config); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("error %v, want one that says that the policy exists", err)
	}
	if err := installPolicy(t.Context(), cluster.Config, t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "failed to read the policy of ToolApprovals") {
		t.Errorf("error %v, want one about the files", err)
	}
}

func TestControlPlaneWithoutProgramsFailsWithAdvice(t *testing.T) {
	for name, assets := range map[string]string{"not set": "", "an empty directory": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(assetsVariable, assets)
			_, err := New(t.TempDir(), nil).StartControlPlane(t.Context(), Install{})
			if err == nil || !strings.Contains(err.Error(), "hack/controlplane/get.sh") {
				t.Errorf("error %v, want one that names hack/controlplane/get.sh", err)
			}
		})
	}
}

func TestProgramRunsFromReadyToStop(t *testing.T) {
	s, program := New(t.TempDir(), failOnExit(t)), testProgram(t, "serve")
	p, err := s.StartProgram(t.Context(), program)
	if err != nil {
		t.Fatalf("StartProgram: %v", err)
	}
	if !answers(t.Context(), http.DefaultClient, program.ReadyURL) {
		t.Error("the program does not answer although it was reported ready")
	}
	mustStop(t, s)
	mustStop(t, s)
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("signalling the stopped program: %v, want %v", err, syscall.ESRCH)
	}
	if diff := cmp.Diff([]string{p.Log}, s.Logs()); diff != "" {
		t.Errorf("logs (-want +got):\n%s", diff)
	}
	if tail := Tail(p.Log, 1); tail != "stopping" {
		t.Errorf("the log ends with %q, want the program's last line", tail)
	}
}

func TestProgramHasTheEnvironmentOfThisProcessAndItsOwn(t *testing.T) {
	t.Setenv("HARNESS_TEST_INHERITED", "inherited")
	t.Setenv("HARNESS_TEST_BOTH", "inherited")
	s := New(t.TempDir(), nil)
	p, err := s.StartProgram(t.Context(), Program{
		Name: "child", Path: "/bin/sh", Args: []string{"-c", "echo $HARNESS_TEST_INHERITED $HARNESS_TEST_BOTH $HARNESS_TEST_OWN"},
		Env: []string{"HARNESS_TEST_BOTH=both", "HARNESS_TEST_OWN=own"},
	})
	if err != nil {
		t.Fatalf("StartProgram: %v", err)
	}
	<-p.done
	if got, want := Tail(p.Log, 1), "inherited both own"; got != want {
		t.Errorf("the program's environment is %q, want %q", got, want)
	}
	mustStop(t, s)
}

func TestProgramThatIgnoresSIGTERMIsKilled(t *testing.T) {
	s, program := New(t.TempDir(), failOnExit(t)), testProgram(t, "stubborn")
	program.StopTimeout = 10 * time.Millisecond
	p, err := s.StartProgram(t.Context(), program)
	if err != nil {
		t.Fatalf("StartProgram: %v", err)
	}
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop: %v, want an error that says the program was killed", err)
	}
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("signalling the killed program: %v, want %v", err, syscall.ESRCH)
	}
}

func TestFailedStartIsExplained(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	taken := listener.Addr().String()
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))

	for name, tc := range map[string]struct {
		ctx     context.Context
		program Program
		want    []string
	}{
		"exits early": {
			t.Context(),
			Program{Path: "/bin/sh", Args: []string{"-c", "echo cannot open the store; exit 3"}, ReadyURL: "http://" + taken},
			[]string{"failed to start child", "exit status 3", "cannot open the store", "child.log"},
		},
		"no such file": {
			t.Context(), Program{Path: filepath.Join(t.TempDir(), "manager")}, []string{"failed to start child", "no such file"},
		},
		"address taken": {
			t.Context(), Program{Path: "/bin/false", Listen: []string{taken}}, []string{taken + " is taken", "lsof -i :"},
		},
		"never ready": {
			t.Context(),
			Program{
				Path: "/bin/sh", Args: []string{"-c", "exec sleep 600"}, ReadyURL: "http://127.0.0.1:1",
				StartTimeout: time.Millisecond,
			},
			[]string{"no 200 from http://127.0.0.1:1 within 1ms", "child.log is empty"},
		},
		"interrupted": {
			cancelled,
			Program{Path: "/bin/sh", Args: []string{"-c", "exec sleep 600"}, ReadyURL: "http://127.0.0.1:1"},
			[]string{"interrupted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(t.TempDir(), failOnExit(t))
			tc.program.Name = "child"
			_, err := s.StartProgram(tc.ctx, tc.program)
			if err == nil {
				t.Fatal("StartProgram succeeded")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			mustStop(t, s)
		})
	}
}

func TestProgramThatExitsByItselfIsReported(t *testing.T) {
	exits := make(chan error, 1)
	s := New(t.TempDir(), func(err error) { exits <- err })
	if _, err := s.StartProgram(t.Context(),
		Program{Name: "child", Path: "/bin/sh", Args: []string{"-c", "echo out of luck; exit 4"}}); err != nil {
		t.Fatalf("StartProgram: %v", err)
	}
	err := <-exits
	for _, want := range []string{"child exited unexpectedly", "exit status 4", "out of luck"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	mustStop(t, s)
}

func TestStopEndsProgramsInReverseOrderAndContinuesAfterAFailure(t *testing.T) {
	var order []string
	s := New(t.TempDir(), nil)
	for _, name := range []string{"etcd", "model", "manager"} {
		s.OnStop(func() error {
			order = append(order, name)
			return fmt.Errorf("%s is stuck", name)
		})
	}
	err := s.Stop()
	if diff := cmp.Diff([]string{"manager", "model", "etcd"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if want := "manager is stuck\nmodel is stuck\netcd is stuck"; err == nil || err.Error() != want {
		t.Errorf("Stop: %v, want %q", err, want)
	}
}

func TestTail(t *testing.T) {
	long := strings.Repeat("x", tailBytes) + "\nlast\n"
	for name, tc := range map[string]struct{ content, want string }{
		"empty":         {"", ""},
		"short":         {"one\n", "one"},
		"last lines":    {"one\ntwo\nthree\n", "two\nthree"},
		"a huge line":   {long, long[len(long)-tailBytes : len(long)-1]},
		"no final line": {"one\ntwo", "one\ntwo"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, Tail(path, 2)); diff != "" {
				t.Errorf("tail (-want +got):\n%s", diff)
			}
		})
	}
	if got := Tail(filepath.Join(t.TempDir(), "none"), 2); got != "" {
		t.Errorf("tail of a file that does not exist: %q, want nothing", got)
	}
}
