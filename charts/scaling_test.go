package charts_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

const scaled = "executor.separate=true,executor.autoscaling.enabled=true"

// ofKind returns the first object of a custom kind, such as ScaledObject.
func ofKind(t *testing.T, objects []runtime.Object, kind string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range every[*unstructured.Unstructured](objects) {
		if o.GetKind() == kind {
			return o
		}
	}
	t.Fatalf("there is no %s", kind)
	return nil
}

// loadQuery returns the query that KEDA sends to Prometheus.
func loadQuery(t *testing.T, objects []runtime.Object) string {
	t.Helper()
	triggers, _, _ := unstructured.NestedSlice(ofKind(t, objects, "ScaledObject").Object, "spec", "triggers")
	if len(triggers) != 1 {
		t.Fatalf("triggers = %v, want one", triggers)
	}
	query, _, _ := unstructured.NestedString(triggers[0].(map[string]any), "metadata", "query")
	return query
}

func TestAutoscalersScaleExecutorsByLoad(t *testing.T) {
	keda := renderChart(t, storeURL, scaled, "executor.autoscaling.prometheusAddress=http://prometheus:9090")
	object := ofKind(t, keda, "ScaledObject")
	if target, _, _ := unstructured.NestedString(object.Object, "spec", "scaleTargetRef", "name"); target != "capstan-executor" {
		t.Errorf("KEDA scales %q, want the executors", target)
	}
	load := loadQuery(t, keda) // TestQueriesHaveResults tests the query
	readme, err := os.ReadFile("capstan/README.md")
	// Without namespaced: false, prometheus-adapter expects a label with the namespace, which this query does not have.
	rule := "\n  resources: {namespaced: false}\n  name: {as: capstan_turns_load}\n  metricsQuery: " + load + "\n"
	if err != nil || !strings.Contains(string(readme), rule) {
		t.Errorf("the README has no rule of prometheus-adapter with the query of KEDA, %q (%v)", rule, err)
	}
	// helm upgrade --reuse-values keeps the less precise query of an earlier chart. The value null must replace it with
	// the new default.
	earlier, err := os.ReadFile("testdata/earlier/0.2.0.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err := templateOver(string(earlier), storeURL, scaled, "executor.autoscaling.prometheusAddress=http://prometheus:9090",
		"executor.autoscaling.query=null"); err != nil || loadQuery(t, decode(t, manifest)) != load {
		t.Errorf("executor.autoscaling.query=null does not set the new query: %v", err)
	}

	hpa := one[*autoscalingv2.HorizontalPodAutoscaler](t, renderChart(t, storeURL, scaled, "executor.autoscaling.kind=HPA"))
	if m := hpa.Spec.Metrics[0].External; hpa.Spec.ScaleTargetRef.Name != "capstan-executor" ||
		m.Metric.Name != "capstan_turns_load" || m.Target.AverageValue.Value() != 500 {
		t.Errorf("got %+v, want 500 Turns for each executor", hpa.Spec)
	}
	for _, d := range every[*appsv1.Deployment](keda) {
		if scales := d.Name == "capstan-executor"; scales != (d.Spec.Replicas == nil) {
			t.Errorf("Deployment %s has replicas %v, want none only if an autoscaler sets them", d.Name, d.Spec.Replicas)
		}
	}
}

func TestExtraVolumesAndLimitsOfTurns(t *testing.T) {
	deployment, manager := managerOf(t, renderChart(t, "extraVolumes[0].name=ca,extraVolumes[0].configMap.name=ca",
		"extraVolumeMounts[0].name=ca,extraVolumeMounts[0].mountPath=/etc/ssl/extra",
		"limits.maxSteps=20,limits.maxTokens=500000000", "limits.timeoutSeconds=600"))
	if !slices.ContainsFunc(deployment.Spec.Template.Spec.Volumes,
		func(v corev1.Volume) bool { return v.Name == "ca" && v.ConfigMap != nil }) {
		t.Errorf("volumes = %v, want the extra one among them", deployment.Spec.Template.Spec.Volumes)
	}
	if !slices.ContainsFunc(manager.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/etc/ssl/extra" }) {
		t.Errorf("mounts = %v, want the extra one among them", manager.VolumeMounts)
	}
	if want := "--limits=maxSteps=20,maxTokens=500000000,timeoutSeconds=600"; !slices.Contains(manager.Args, want) {
		t.Errorf("arguments = %q, want %q", manager.Args, want)
	}
	if _, plain := managerOf(t, renderChart(t)); slices.ContainsFunc(plain.Args,
		func(a string) bool { return strings.HasPrefix(a, "--limits") }) {
		t.Error("--limits is given without any limit")
	}
}

func TestPodMonitorSelectsAllPods(t *testing.T) {
	objects := renderChart(t, storeURL, "executor.separate=true,metrics.podMonitor.enabled=true")
	selector, _, _ := unstructured.NestedStringMap(ofKind(t, objects, "PodMonitor").Object, "spec", "selector", "matchLabels")
	for _, d := range every[*appsv1.Deployment](objects) {
		for label, want := range selector {
			if got := d.Spec.Template.Labels[label]; got != want {
				t.Errorf("Pods of %s have %s=%q, and the PodMonitor selects %q", d.Name, label, got, want)
			}
		}
	}
}

// TestPodMonitorSendsToken checks that Prometheus sends the token of the Secret in the values.
func TestPodMonitorSendsToken(t *testing.T) {
	objects := renderChart(t, "metrics.podMonitor.enabled=true",
		"metrics.podMonitor.authorization.credentials.name=capstan-metrics,metrics.podMonitor.authorization.credentials.key=token")
	endpoints, _, _ := unstructured.NestedSlice(ofKind(t, objects, "PodMonitor").Object, "spec", "podMetricsEndpoints")
	want := map[string]any{"credentials": map[string]any{"name": "capstan-metrics", "key": "token"}}
	if diff := cmp.Diff(want, endpoints[0].(map[string]any)["authorization"]); diff != "" {
		t.Errorf("authorization (-want +got):\n%s", diff)
	}
}
