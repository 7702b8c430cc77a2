package charts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// earlierValues returns the files with the values of earlier charts.
func earlierValues(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/earlier/*.yaml")
	if err != nil || len(files) < 24 {
		t.Fatalf("found %d earlier charts (%v), want at least 24", len(files), err)
	}
	return files
}

// TestUpgradeReusesTheValuesOfEveryEarlierChart imitates helm upgrade --reuse-values, which passes the values of the
// earlier chart and none of the new defaults. Each file in testdata/earlier has the values of a chart, and is named
// after the first version with these values. To save time, only the first rendering of each file includes the CRDs,
// which are most of a manifest.
func TestUpgradeReusesTheValuesOfEveryEarlierChart(t *testing.T) {
	for _, file := range earlierValues(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			values, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			manifest, err := templateOver(string(values))
			if err != nil {
				t.Fatal(err)
			}
			deployment := one[*appsv1.Deployment](t, decode(t, manifest))
			for _, arg := range deployment.Spec.Template.Spec.Containers[0].Args {
				if strings.HasSuffix(arg, "=") || strings.Contains(arg, "nil") {
					t.Errorf("argument %q has no value", arg)
				}
			}
			if got := *deployment.Spec.Template.Spec.TerminationGracePeriodSeconds; got < 35 {
				t.Errorf("terminationGracePeriodSeconds = %d, want at least 35 for 25 seconds of grace", got)
			}
			// Features that such a release can turn on must have their defaults, too.
			if _, err := templateOver(string(values), "crds.install=false",
				"metrics.prometheusRule.enabled=true,metrics.podMonitor.enabled=true,metrics.dashboard.enabled=true",
				"podDisruptionBudget.enabled=true,networkPolicy.enabled=true,uninstall.drain=true"); err != nil {
				t.Error(err)
			}
			for name, tc := range disruptionBudgets {
				t.Run(name, func(t *testing.T) {
					set := append([]string{"crds.install=false,podDisruptionBudget.enabled=true"}, tc.values...)
					manifest, err := templateOver(string(values), set...)
					if err != nil {
						t.Fatal(err)
					}
					checkBudget(t, decode(t, manifest), tc.want)
				})
			}
		})
	}
}

// TestHelmUpgradesFromEveryEarlierChart lets Helm itself merge the values of each earlier chart on a real API server.
// To save time, only the first upgrade installs the CRDs, and each release has its own namespace instead of being
// uninstalled before the next one.
func TestHelmUpgradesFromEveryEarlierChart(t *testing.T) {
	c := startCluster(t)
	crds := "crds.install=true"
	for _, file := range earlierValues(t) {
		version := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(version, func(t *testing.T) {
			namespace := "capstan-" + strings.ReplaceAll(version, ".", "-")
			c.run(t, helmPath, "install", "capstan", stubChart(t, file), "--namespace", namespace, "--create-namespace")
			c.run(t, helmPath, "upgrade", "capstan", "capstan", "--namespace", namespace, "--reuse-values", "--set", crds)
			crds = "crds.install=false"
			if _, err := c.clients(t).AppsV1().Deployments(namespace).Get(t.Context(), "capstan", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
			if _, err := c.clients(t).CoreV1().ConfigMaps(namespace).Get(t.Context(), "earlier", metav1.GetOptions{}); err == nil {
				t.Error("the ConfigMap of the earlier chart still exists: helm has not upgraded its release")
			}
		})
	}
}

// TestHelmKeepsServicesThatBeginWithADigit installs release 3scale where a Service with a leading digit exists, which
// Kubernetes accepts since 1.36. A Service of an earlier chart of this release keeps its name, because clients and
// certificates know it. A new Service gets a name that every Kubernetes accepts, and that no other release uses.
func TestHelmKeepsServicesThatBeginWithADigit(t *testing.T) {
	c := startCluster(t)
	for earlier, want := range map[string][]string{
		"3scale": {"3scale-capstan-read", "capstan-3scale-capstan-metrics"},
		"other":  {"3scale-capstan-read", "capstan-3scale-capstan-metrics", "capstan-3scale-capstan-read"},
	} {
		t.Run(earlier, func(t *testing.T) {
			chart := writeChart(t, "", "{apiVersion: v1, kind: Service, metadata: {name: 3scale-capstan-read, "+
				"labels: {app.kubernetes.io/instance: {{ .Release.Name }}}}, spec: {ports: [{name: https, port: 443}]}}")
			namespace := "earlier-" + earlier
			c.run(t, helmPath, "install", earlier, chart, "--namespace", namespace, "--create-namespace")
			c.run(t, helmPath, "upgrade", "--install", "3scale", "capstan", "--namespace", namespace, "--set",
				"crds.install=false,metrics.enabled=true,readAPI.enabled=true,readAPI.tlsSecret=read")
			got := c.run(t, kubectlPath, "get", "services", "-n", namespace, "-o", "jsonpath={.items[*].metadata.name}")
			if diff := cmp.Diff(want, strings.Fields(got)); diff != "" {
				t.Errorf("the Services (-want +got):\n%s", diff)
			}
		})
	}
}

// stubChart writes a chart with the values of an earlier one, and returns its directory. Its only object is a
// ConfigMap, because the objects of that chart itself would take time.
func stubChart(t *testing.T, values string) string {
	t.Helper()
	data, err := os.ReadFile(values)
	if err != nil {
		t.Fatal(err)
	}
	return writeChart(t, string(data), "{apiVersion: v1, kind: ConfigMap, metadata: {name: earlier}, "+
		"data: {replicas: {{ .Values.replicas | quote }}}}")
}

// writeChart writes a chart with these values and one template, and returns its directory.
func writeChart(t *testing.T, values, template string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"Chart.yaml":            "{apiVersion: v2, name: capstan, version: 0.0.1}",
		"values.yaml":           values,
		"templates/object.yaml": template,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// disruptionBudgets maps values of podDisruptionBudget to the expected PodDisruptionBudget. Helm passes null on as a
// missing value.
var disruptionBudgets = map[string]struct {
	values []string
	want   policyv1.PodDisruptionBudgetSpec
}{
	"Default": {nil, policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))}},
	"MaxUnavailablePercent": {
		[]string{"podDisruptionBudget.maxUnavailable=25%"},
		policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromString("25%"))},
	},
	"MaxUnavailableZero": {
		[]string{"podDisruptionBudget.maxUnavailable=0"},
		policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0))},
	},
	"MinAvailable": {
		[]string{"podDisruptionBudget.minAvailable=1,podDisruptionBudget.maxUnavailable=null"},
		policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))},
	},
	"MinAvailableZero": {
		[]string{"podDisruptionBudget.minAvailable=0,podDisruptionBudget.maxUnavailable=null"},
		policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(0))},
	},
	"MinAvailablePercent": {
		[]string{"podDisruptionBudget.minAvailable=50%,podDisruptionBudget.maxUnavailable=null"},
		policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromString("50%"))},
	},
	"NeitherGiven": {
		[]string{"podDisruptionBudget.minAvailable=null,podDisruptionBudget.maxUnavailable=null"},
		policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))},
	},
}

func checkBudget(t *testing.T, objects []runtime.Object, want policyv1.PodDisruptionBudgetSpec) {
	t.Helper()
	got := one[*policyv1.PodDisruptionBudget](t, objects).Spec
	got.Selector = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("PodDisruptionBudget (-want +got):\n%s", diff)
	}
}

func TestPodDisruptionBudget(t *testing.T) {
	for name, tc := range disruptionBudgets {
		t.Run(name, func(t *testing.T) {
			checkBudget(t, renderChart(t, append([]string{"podDisruptionBudget.enabled=true"}, tc.values...)...), tc.want)
		})
	}
}

// TestOnlyMissingValuesGetDefaults checks that a default replaces neither a zero value nor a null that the user has set
// on purpose.
func TestOnlyMissingValuesGetDefaults(t *testing.T) {
	data, err := os.ReadFile("capstan/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defaults, err := template(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := templateOver(string(data)); err != nil || string(again) != string(defaults) {
		t.Errorf("a rendering with the chart's own values.yaml differs from one with its defaults (%v)", err)
	}
	zero, err := template(t.Context(), "networkPolicy.enabled=false,serviceAccount.annotations=null,"+
		"maxQueuedTurnsPerNamespace=0,runAsUser=null,resources.limits=null")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"kind: NetworkPolicy": false, "--max-queued-turns-per-namespace=0": true, "runAsUser:": false,
		"memory: 512Mi": false, "memory: 128Mi": true,
	} {
		if got := strings.Contains(string(zero), text); got != want {
			t.Errorf("the manifest has %q: %t, want %t", text, got, want)
		}
	}
}
