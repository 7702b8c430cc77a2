package charts_test

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// metadataOf returns the annotations and the labels of an object, except for the standard ones: their keys begin with
// app.kubernetes.io/ or helm.sh/.
func metadataOf(object client.Object) map[string]string {
	own := map[string]string{}
	for _, all := range []map[string]string{object.GetAnnotations(), object.GetLabels()} {
		for key, value := range all {
			if !strings.HasPrefix(key, "app.kubernetes.io/") && !strings.HasPrefix(key, "helm.sh/") {
				own[key] = value
			}
		}
	}
	return own
}

// serviceOf returns the Service of a port.
func serviceOf(t *testing.T, objects []runtime.Object, port string) *corev1.Service {
	t.Helper()
	for _, s := range every[*corev1.Service](objects) {
		if s.Spec.Ports[0].TargetPort == intstr.FromString(port) {
			return s
		}
	}
	t.Fatalf("there is no Service of port %s", port)
	return nil
}

// TestValuesOfObjects checks the effects of values on objects other than Pods.
func TestValuesOfObjects(t *testing.T) {
	const readAPI = "readAPI.enabled=true,readAPI.tlsSecret=mine"
	for name, tc := range map[string]struct {
		values []string
		// part returns what the values determine.
		part func(t *testing.T, objects []runtime.Object) any
		want any
	}{
		"metrics.service.annotations": {
			[]string{"metrics.service.annotations.team=a", readAPI},
			func(t *testing.T, objects []runtime.Object) any { return metadataOf(serviceOf(t, objects, "metrics")) },
			map[string]string{"team": "a"},
		},
		"readAPI.service.annotations": {
			[]string{"readAPI.service.annotations.team=a", readAPI},
			func(t *testing.T, objects []runtime.Object) any { return metadataOf(serviceOf(t, objects, "read")) },
			map[string]string{"team": "a"},
		},
		"readAPI.service.type": {
			[]string{"readAPI.service.type=LoadBalancer", readAPI},
			func(t *testing.T, objects []runtime.Object) any { return serviceOf(t, objects, "read").Spec.Type },
			corev1.ServiceTypeLoadBalancer,
		},
		"readAPI.port": { // clients use 443, whatever the port of the container is
			[]string{"readAPI.port=9444", readAPI},
			func(t *testing.T, objects []runtime.Object) any {
				return serviceOf(t, objects, "read").Spec.Ports[0].Port
			},
			int32(443),
		},
		"readAPI.from": {
			[]string{"readAPI.from[0].ipBlock.cidr=10.0.0.0/8", readAPI},
			peersOfReadAPI,
			[]networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}}},
		},
		"no readAPI.from": {[]string{readAPI}, peersOfReadAPI, []networkingv1.NetworkPolicyPeer(nil)},
		"persistence": {
			[]string{"persistence.accessMode=ReadWriteOncePod,persistence.annotations.team=a"},
			func(t *testing.T, objects []runtime.Object) any {
				claim := one[*corev1.PersistentVolumeClaim](t, objects)
				return []any{claim.Spec.AccessModes, claim.Annotations}
			},
			[]any{
				[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
				map[string]string{
					"team": "a", "helm.sh/resource-policy": "keep", "argocd.argoproj.io/sync-options": "Prune=false",
				},
			},
		},
		"persistence.keep": {
			[]string{"persistence.keep=false,persistence.annotations.team=a"},
			func(t *testing.T, objects []runtime.Object) any {
				return one[*corev1.PersistentVolumeClaim](t, objects).Annotations
			},
			map[string]string{"team": "a"},
		},
		"serviceAccount": {
			[]string{"serviceAccount.name=mine,serviceAccount.annotations.team=a"},
			func(t *testing.T, objects []runtime.Object) any {
				account := one[*corev1.ServiceAccount](t, objects)
				return []any{account.Name, account.Annotations, managerSubjects(objects)}
			},
			[]any{"mine", map[string]string{"team": "a"}, []string{"capstan-system/mine"}},
		},
		"serviceAccount.create": {
			[]string{"serviceAccount.create=false,serviceAccount.name=existing"},
			func(_ *testing.T, objects []runtime.Object) any {
				return []any{len(every[*corev1.ServiceAccount](objects)), managerSubjects(objects)}
			},
			[]any{0, []string{"capstan-system/existing"}},
		},
		"metrics.serviceMonitor": {
			[]string{
				"metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.interval=1m,metrics.serviceMonitor.scrapeTimeout=20s",
				"metrics.serviceMonitor.labels.team=a",
			},
			monitor("ServiceMonitor", "endpoints", "interval", "scrapeTimeout"),
			[]any{map[string]string{"team": "a"}, "1m", "20s"},
		},
		// Releases of one name in two namespaces must be two jobs, which the alerts do not add up.
		"the job of metrics.serviceMonitor": {
			[]string{"metrics.serviceMonitor.enabled=true"},
			monitor("ServiceMonitor", "endpoints", "relabelings"),
			[]any{map[string]string{}, []any{map[string]any{"targetLabel": "job", "replacement": "capstan-system/capstan"}}},
		},
		"metrics.podMonitor": {
			[]string{
				"metrics.podMonitor.enabled=true,metrics.podMonitor.interval=1m,metrics.podMonitor.scrapeTimeout=20s",
				"metrics.podMonitor.labels.team=a,metrics.tlsSecret=mine,metrics.podMonitor.tlsConfig.serverName=x",
			},
			monitor("PodMonitor", "podMetricsEndpoints", "interval", "scrapeTimeout", "tlsConfig"),
			[]any{map[string]string{"team": "a"}, "1m", "20s", map[string]any{"serverName": "x"}},
		},
		"metrics.dashboard": {
			[]string{"metrics.dashboard.enabled=true,metrics.dashboard.labels.team=a,metrics.dashboard.annotations.grafana_folder=Agents"},
			func(t *testing.T, objects []runtime.Object) any {
				return metadataOf(one[*corev1.ConfigMap](t, objects))
			},
			map[string]string{"grafana_dashboard": "1", "team": "a", "grafana_folder": "Agents"},
		},
		"metrics.dashboard.labels without the default": {
			[]string{"metrics.dashboard.enabled=true,metrics.dashboard.labels.grafana_dashboard=null"},
			func(t *testing.T, objects []runtime.Object) any {
				return metadataOf(one[*corev1.ConfigMap](t, objects))
			},
			map[string]string{},
		},
		"rbac.aggregate": {
			[]string{"rbac.aggregate=false"},
			func(_ *testing.T, objects []runtime.Object) any {
				roles := every[*rbacv1.ClusterRole](objects)
				i := slices.IndexFunc(roles, func(r *rbacv1.ClusterRole) bool { return strings.HasSuffix(r.Name, "-turn-author") })
				return metadataOf(roles[i])
			},
			map[string]string{"capstan.dev/role": "turn-author"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.part(t, renderChart(t, tc.values...))); diff != "" {
				t.Errorf("with %s (-want +got):\n%s", strings.Join(tc.values, ","), diff)
			}
		})
	}
}

// peersOfReadAPI returns the peers that may connect to the read API.
func peersOfReadAPI(t *testing.T, objects []runtime.Object) any {
	t.Helper()
	for _, rule := range managerPolicy(t, objects).Spec.Ingress {
		if *rule.Ports[0].Port == intstr.FromString("read") {
			return rule.From
		}
	}
	return "the NetworkPolicy has no rule for port read"
}

// managerSubjects returns the distinct subjects of the bindings, as NAMESPACE/NAME.
func managerSubjects(objects []runtime.Object) []string {
	var subjects []rbacv1.Subject
	for _, b := range every[*rbacv1.RoleBinding](objects) {
		subjects = append(subjects, b.Subjects...)
	}
	for _, b := range every[*rbacv1.ClusterRoleBinding](objects) {
		subjects = append(subjects, b.Subjects...)
	}
	var names []string
	for _, s := range subjects {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// monitor returns a function for a kind of monitor of the Prometheus operator. The function returns the labels of the
// monitor, as metadataOf does, followed by fields of its only endpoint, which is in the list endpoints of its spec.
func monitor(kind, endpoints string, fields ...string) func(t *testing.T, objects []runtime.Object) any {
	return func(t *testing.T, objects []runtime.Object) any {
		t.Helper()
		object := ofKind(t, objects, kind)
		list, _, err := unstructured.NestedSlice(object.Object, "spec", endpoints)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s = %v, %v; want one endpoint", endpoints, list, err)
		}
		found := []any{metadataOf(object)}
		for _, field := range fields {
			found = append(found, list[0].(map[string]any)[field])
		}
		return found
	}
}

// TestValuesOfAutoscalers checks the whole spec of both kinds of autoscaler.
func TestValuesOfAutoscalers(t *testing.T) {
	own := []string{
		storeURL, scaled, "executor.autoscaling.minReplicas=3,executor.autoscaling.maxReplicas=30,executor.autoscaling.turnsPerPod=100",
		"executor.autoscaling.behavior.scaleDown.stabilizationWindowSeconds=60,executor.autoscaling.behavior.scaleDown.policies=null",
	}
	keda := ofKind(t, renderChart(t, append(own, "executor.autoscaling.prometheusAddress=http://prometheus:9090",
		"executor.autoscaling.query=sum(load)", "executor.autoscaling.authenticationRef=prometheus")...), "ScaledObject")
	var want map[string]any
	if err := yaml.Unmarshal([]byte(`
scaleTargetRef: {name: capstan-executor}
minReplicaCount: 3
maxReplicaCount: 30
advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 60}}}}
triggers:
- type: prometheus
  metricType: AverageValue
  metadata: {serverAddress: "http://prometheus:9090", query: sum(load), threshold: "100", ignoreNullValues: "false"}
  authenticationRef: {name: prometheus}
`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, keda.Object["spec"]); diff != "" {
		t.Errorf("spec of the ScaledObject (-want +got):\n%s", diff)
	}
	hpa := one[*autoscalingv2.HorizontalPodAutoscaler](t,
		renderChart(t, append(own, "executor.autoscaling.kind=HPA", "executor.autoscaling.metricName=load")...))
	var wantHPA autoscalingv2.HorizontalPodAutoscalerSpec
	if err := yaml.UnmarshalStrict([]byte(`
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: capstan-executor}
minReplicas: 3
maxReplicas: 30
behavior: {scaleDown: {stabilizationWindowSeconds: 60}}
metrics: [{type: External, external: {metric: {name: load}, target: {type: AverageValue, averageValue: "100"}}}]
`), &wantHPA); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantHPA, hpa.Spec); diff != "" {
		t.Errorf("spec of the HorizontalPodAutoscaler (-want +got):\n%s", diff)
	}
}

// everything are values with which the chart has an object of every kind, except for a ServiceMonitor, a
// PersistentVolumeClaim, a ScaledObject, and a MutatingAdmissionPolicy and its binding.
var everything = []string{
	storeURL, scaled, "executor.autoscaling.kind=HPA", "readAPI.enabled=true,readAPI.tlsSecret=mine",
	"metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true",
	"metrics.readers[0].name=prometheus,metrics.readers[0].namespace=monitoring",
	"podDisruptionBudget.enabled=true,agentUsePolicy.install=true,watchNamespaces={helpdesk}",
}

// TestCommonLabelsAreOnEveryObject checks that objects of every kind have the common labels, and that no selector has
// them. With such a selector, a new common label would break the next helm upgrade: the selector of a Deployment cannot
// change, and the other selectors would not match the Pods from before the upgrade.
func TestCommonLabelsAreOnEveryObject(t *testing.T) {
	const label = "commonLabels.team=a"
	manifest, err := template(t.Context(), append(slices.Clone(everything), label+",commonLabels.app\\.kubernetes\\.io/part-of=b")...)
	if err != nil {
		t.Fatal(err)
	}
	objects := slices.Concat(
		decode(t, manifest),
		renderChart(t, label, "metrics.serviceMonitor.enabled=true"),
		renderChart(t, label, "persistence.enabled=true"),
		renderChart(t, label, storeURL, scaled, "executor.autoscaling.prometheusAddress=http://prometheus:9090"),
		renderForAPI(t, "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy", label),
	)
	kinds, selecting := map[string]bool{}, map[string]bool{}
	for _, o := range objects {
		object := o.(client.Object) //nolint:forcetypeassert // because every object of a manifest has metadata
		kind := o.GetObjectKind().GroupVersionKind().Kind
		kinds[kind] = true
		labels := object.GetLabels()
		if labels["team"] != "a" || labels["app.kubernetes.io/part-of"] != "capstan" {
			t.Errorf("%s %s has the labels %v, want the common one, and the standard one unchanged", kind, object.GetName(), labels)
		}
		selector := selectorOf(t, o)
		if len(selector) > 0 {
			selecting[kind] = true
		}
		for key := range selector {
			if key == "team" || key == "app.kubernetes.io/part-of" {
				t.Errorf("%s %s selects %v, want no common label", kind, object.GetName(), selector)
			}
		}
	}
	if diff := cmp.Diff(kindsOfTemplates(t), slices.Sorted(maps.Keys(kinds))); diff != "" {
		t.Errorf("the kinds of the templates and those that this test renders differ (-templates +rendered):\n%s", diff)
	}
	want := []string{"Deployment", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "Service", "ServiceMonitor"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(selecting))); diff != "" {
		t.Errorf("kinds with a selector (-want +got):\n%s", diff)
	}
}

// selectorOf returns the labels by which an object selects Pods or Services, or nil if it has no selector.
func selectorOf(t *testing.T, object runtime.Object) map[string]string {
	t.Helper()
	switch o := object.(type) {
	case *appsv1.Deployment:
		return o.Spec.Selector.MatchLabels
	case *corev1.Service:
		return o.Spec.Selector
	case *networkingv1.NetworkPolicy:
		return o.Spec.PodSelector.MatchLabels
	case *policyv1.PodDisruptionBudget:
		return o.Spec.Selector.MatchLabels
	case *unstructured.Unstructured:
		labels, _, err := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
		if err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		return labels
	}
	return nil
}

// kindsOfTemplates returns the kinds of the objects that the chart can have, sorted.
func kindsOfTemplates(t *testing.T) []string {
	t.Helper()
	kinds := map[string]bool{"CustomResourceDefinition": true} // its objects are in files/crds
	templates := os.DirFS("capstan/templates")
	err := fs.WalkDir(templates, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		source, err := fs.ReadFile(templates, path)
		for _, found := range kindOfTemplate.FindAllSubmatch(source, -1) {
			kinds[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(kinds))
}

var kindOfTemplate = regexp.MustCompile(`(?m)^kind: (\w+)$`)

// TestNames checks the names of the objects, their namespaces, and the labels with the names of the chart and of the
// release. A text that YAML would read as a number must stay a text.
func TestNames(t *testing.T) {
	long := strings.Repeat("x", 63)
	longNumber := strings.Repeat("7", 52)
	for name, tc := range map[string]struct {
		release, namespace, values     string
		wantName, wantService, wantApp string
	}{
		"nameOverride": {
			"capstan", "capstan-system", "nameOverride=agents", "capstan-agents", "capstan-agents", "agents",
		},
		"nameOverride in the release's name": {"capstan", "capstan-system", "nameOverride=stan", "capstan", "capstan", "stan"},
		"fullnameOverride":                   {"capstan", "capstan-system", "fullnameOverride=fleet", "fleet", "fleet", "capstan"},
		"both": {
			"capstan", "capstan-system", "nameOverride=agents,fullnameOverride=fleet", "fleet", "fleet", "agents",
		},
		"long names": {
			"capstan", "capstan-system", "nameOverride=" + long + ",fullnameOverride=" + long, long[:52], long[:52], long,
		},
		"numbers": {
			"42", "20261", "watchNamespaces={12e3,0x7}", "42-capstan", "capstan-42-capstan", "capstan",
		},
		"only numbers": {
			"12e3", "20261", "fullnameOverride=12e3,nameOverride=1e1", "12e3", "capstan-12e3", "1e1",
		},
		"a long number": {
			"capstan", "20261", "fullnameOverride=" + longNumber + "x", longNumber, "capstan-" + longNumber[:47], "capstan",
		},
		"a boolean": {"true", "null", "", "true-capstan", "true-capstan", "capstan"},
		"dots":      {"cap.v2", "capstan-system", "", "cap.v2-capstan", "cap-v2-capstan", "capstan"},
	} {
		t.Run(name, func(t *testing.T) {
			values := append(slices.Clone(everything), "crds.install=false")
			if tc.values != "" {
				values = append(values, tc.values)
			}
			rendered, err := renderRelease(tc.release, tc.namespace, "", values...)
			if err != nil {
				t.Fatal(err)
			}
			objects := decode(t, []byte(rendered.Manifest))
			for _, o := range objects {
				object := o.(client.Object) //nolint:forcetypeassert // because every object of a manifest has metadata
				n, wantName := object.GetName(), tc.wantName
				if _, isService := o.(*corev1.Service); isService {
					wantName = tc.wantService
					if problems := validation.IsDNS1035Label(n); len(problems) > 0 {
						t.Errorf("the Service has the name %s: %s", n, strings.Join(problems, "; "))
					}
				}
				if n != wantName && !strings.HasPrefix(n, wantName+"-") && !strings.HasPrefix(n, tc.namespace+"-"+wantName) {
					t.Errorf("%T has the name %s, want it to begin with %s", o, n, wantName)
				}
				watched := strings.HasPrefix(n, tc.namespace+"-"+wantName) // a Role or a binding in a watched namespace
				if ns := object.GetNamespace(); ns != tc.namespace && !watched {
					t.Errorf("%T %s is in namespace %s, want %s", o, n, ns, tc.namespace)
				}
				if _, isPod := o.(*corev1.Pod); isPod {
					continue // of helm test, which no selector must select
				}
				got := object.GetLabels()
				if got["app.kubernetes.io/name"] != tc.wantApp || got["app.kubernetes.io/instance"] != tc.release {
					t.Errorf("%T %s has the labels %v, want the name %s and the instance %s", o, n, got, tc.wantApp, tc.release)
				}
			}
			for _, d := range every[*appsv1.Deployment](objects) {
				if !selects(d.Spec.Selector.MatchLabels, d.Spec.Template.Labels) {
					t.Errorf("Deployment %s selects %v, but its Pods have the labels %v", d.Name, d.Spec.Selector.MatchLabels,
						d.Spec.Template.Labels)
				}
				for _, s := range every[*corev1.Service](objects) {
					if !selects(s.Spec.Selector, d.Spec.Template.Labels) {
						t.Errorf("Service %s selects %v, but the Pods of %s have the labels %v", s.Name, s.Spec.Selector, d.Name,
							d.Spec.Template.Labels)
					}
				}
			}
		})
	}
}
