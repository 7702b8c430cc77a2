package charts_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/installation"
)

// checkOptions parses the arguments of the Pod of helm test, as the manager's command check does. The test fails if the
// command does not know one of them.
func checkOptions(t *testing.T, pod *corev1.Pod) installation.Options {
	t.Helper()
	var o installation.Options
	parseCommand(t, "check", pod.Spec.Containers[0].Args, o.AddFlags)
	return o
}

func TestHelmTestChecksTheInstallation(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	withReadAPI := "readAPI.enabled=true,readAPI.tlsSecret=read"
	single := []string{"capstan"}
	for name, tc := range map[string]struct {
		values []string
		want   installation.Options
	}{
		"one Deployment":     {nil, installation.Options{Deployments: single, LeaderElection: true}},
		"no leader election": {[]string{"leaderElection.enabled=false"}, installation.Options{Deployments: single}},
		"separate executors": {
			[]string{storeURL, "executor.separate=true"},
			installation.Options{Deployments: []string{"capstan", "capstan-executor"}, LeaderElection: true},
		},
		"a read API": {
			[]string{withReadAPI},
			installation.Options{Deployments: single, LeaderElection: true, ReadURL: "https://capstan-read.capstan-system.svc"},
		},
		"a read API that admits some addresses": {
			[]string{withReadAPI, "readAPI.from[0].ipBlock.cidr=10.0.0.0/8"},
			installation.Options{Deployments: single, LeaderElection: true},
		},
		"a read API without a NetworkPolicy": {
			[]string{withReadAPI, "networkPolicy.enabled=false"},
			installation.Options{Deployments: single, LeaderElection: true, ReadURL: "https://capstan-read.capstan-system.svc"},
		},
		"a user ID that the platform chooses": {
			[]string{"runAsUser=null", "podDisruptionBudget.enabled=true", "watchNamespaces={a}", "podAnnotations.a=b"},
			installation.Options{Deployments: single, LeaderElection: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			hooks, objects := renderHooks(t, "test", tc.values...), renderChart(t, tc.values...)
			pod := one[*corev1.Pod](t, hooks)
			tc.want.Namespace, tc.want.Timeout = "capstan-system", 2*time.Minute
			if diff := cmp.Diff(tc.want, checkOptions(t, pod)); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if deadline := time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second; deadline <= tc.want.Timeout ||
				deadline >= 5*time.Minute {
				t.Errorf("activeDeadlineSeconds allows %s, want more than the command's time-out of %s and less than helm test's of 5m",
					deadline, tc.want.Timeout)
			}
			for _, hook := range hooks {
				object := hook.(client.Object)
				_, isPod := hook.(*corev1.Pod)
				// For each hook, helm test --logs reads the log of the Pod with the hook's name, and fails without such
				// a Pod.
				if object.GetName() != pod.Name {
					t.Errorf("%T has the name %s, want that of the Pod, %s", hook, object.GetName(), pod.Name)
				}
				weight, deletion := "-1", "before-hook-creation,hook-succeeded"
				if isPod {
					weight, deletion = "0", "before-hook-creation"
				}
				if a := object.GetAnnotations(); a["helm.sh/hook-weight"] != weight || a["helm.sh/hook-delete-policy"] != deletion {
					t.Errorf("annotations of %T = %v, want weight %s and deletion %s: "+
						"permissions are created before the Pod and deleted after it",
						hook, a, weight, deletion)
				}
			}
			restricted := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
			if result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec)); !result.Allowed {
				t.Errorf("restricted Pod Security rejects the Pod: %s", result.ForbiddenDetail())
			}
			if r := pod.Spec.Containers[0].Resources; r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() ||
				r.Limits.Memory().IsZero() {
				t.Errorf("resources = %v, want requests and a memory limit", r)
			}
			deployment := every[*appsv1.Deployment](objects)[0]
			if got, want := pod.Spec.Containers[0].Image, deployment.Spec.Template.Spec.Containers[0].Image; got != want {
				t.Errorf("image = %s, want that of the manager, %s", got, want)
			}
			for _, s := range every[*corev1.Service](objects) {
				if selects(s.Spec.Selector, pod.Labels) {
					t.Errorf("Service %s sends requests to the Pod of the test", s.Name)
				}
			}
			for _, b := range every[*policyv1.PodDisruptionBudget](objects) {
				if selects(b.Spec.Selector.MatchLabels, pod.Labels) {
					t.Errorf("the budget %s counts the Pod of the test", b.Name)
				}
			}
			want := []rbacv1.PolicyRule{
				{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "list"}},
				{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "list"}},
			}
			if diff := cmp.Diff(want, one[*rbacv1.Role](t, hooks).Rules); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if account := one[*corev1.ServiceAccount](t, hooks).Name; pod.Spec.ServiceAccountName != account ||
				one[*rbacv1.RoleBinding](t, hooks).Subjects[0].Name != account {
				t.Errorf("the Pod has the account %s, want %s for the Pod and the RoleBinding", pod.Spec.ServiceAccountName, account)
			}
		})
	}
	if hooks := renderHooks(t, "test", "rbac.create=false"); len(hooks) != 0 {
		t.Errorf("got %d hooks with rbac.create=false, want none: without permissions, the test could check nothing", len(hooks))
	}
}

// checkHelmTest runs the command of helm test, with the permissions of its Pod, on a release whose manager runs in the
// process of this test. No controller creates Pods here, so the test replaces the controller of the Deployment.
func (c cluster) checkHelmTest(t *testing.T, readAddress string) {
	t.Helper()
	hooks := renderHooks(t, "test")
	for _, hook := range hooks {
		if _, isPod := hook.(*corev1.Pod); !isPod {
			c.apply(t, hook)
		}
	}
	pod := one[*corev1.Pod](t, hooks)
	clients, err := kubernetes.NewForConfig(c.as("system:serviceaccount:capstan-system:" + pod.Spec.ServiceAccountName))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	o := checkOptions(t, pod)
	o.ReadURL = "https://" + readAddress
	check := func(o installation.Options) (string, error) {
		var report strings.Builder
		err := installation.Check(context.Background(), clients, o, &report)
		return report.String(), err
	}
	deployments := admin.AppsV1().Deployments(o.Namespace)
	setStatus := func(status appsv1.DeploymentStatus) {
		t.Helper()
		d, err := deployments.Get(t.Context(), "capstan", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status.ObservedGeneration = d.Generation
		d.Status = status
		if _, err := deployments.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	// The command must report both the checks that pass and the ones that fail.
	setStatus(appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1})
	short := o
	short.Timeout = 15 * time.Second
	report, err := check(short)
	if err == nil || !strings.Contains(err.Error(), "Deployment capstan: 1 of 1 Pods have the newest template and 0 are ready") ||
		strings.Contains(err.Error(), "executors:") {
		t.Errorf("with a Pod that is not ready: %v, report %s; want only an error about the Deployment", err, report)
	}
	setStatus(appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1})
	report, err = check(o)
	for _, want := range []string{
		"ok: custom resource definitions: ", "ok: namespace: ", "ok: Deployment capstan: 1 of 1 Pods are ready\n",
		"ok: executors: capstan-0 can run 10 Turns at the same time\n", "ok: leader: ", "ok: read API: ",
	} {
		if err != nil || !strings.Contains(report, want) {
			t.Errorf("check = %v, report %s; want %q in the report", err, report, want)
		}
	}
	elsewhere := short
	elsewhere.Namespace, elsewhere.Timeout = "default", time.Second
	if _, err := check(elsewhere); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("check in another namespace = %v, want it forbidden", err)
	}
}

// certificate writes a self-signed certificate and its key.
func certificate(t *testing.T) (certificateFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"capstan.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificateFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{
		certificateFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile:         {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificateFile, keyFile
}
