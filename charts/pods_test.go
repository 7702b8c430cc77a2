package charts_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// podsOf returns the Pods of a release with separate executors, by name: those of its two Deployments, which run the
// manager, and those of its hooks.
func podsOf(t *testing.T, values ...string) (managers, hooks map[string]corev1.PodTemplateSpec) {
	t.Helper()
	values = append([]string{storeURL, "executor.separate=true"}, values...)
	managers, hooks = map[string]corev1.PodTemplateSpec{}, map[string]corev1.PodTemplateSpec{}
	for _, d := range every[*appsv1.Deployment](renderChart(t, values...)) {
		managers[d.Name] = d.Spec.Template
	}
	if len(managers) != 2 {
		t.Fatalf("got %d Deployments, want one of the controllers and one of the executors", len(managers))
	}
	drain := one[*batchv1.Job](t, renderHooks(t, "pre-delete", values...))
	hooks["helm uninstall"] = drain.Spec.Template
	test := one[*corev1.Pod](t, renderHooks(t, "test", values...))
	hooks["helm test"] = corev1.PodTemplateSpec{ObjectMeta: test.ObjectMeta, Spec: test.Spec}
	return managers, hooks
}

// TestValuesOfPods checks that a value has its effect on the Pods of both Deployments, and also on those of the hooks
// if they need it: they run on the same nodes, and pull the same image.
func TestValuesOfPods(t *testing.T) {
	container := func(pod corev1.PodTemplateSpec) corev1.Container { return pod.Spec.Containers[0] }
	// ownEnv returns the variables after POD_NAME and POD_NAMESPACE, which every manager has.
	ownEnv := func(pod corev1.PodTemplateSpec) any { return container(pod).Env[2:] }
	label := func(pod corev1.PodTemplateSpec) any { return pod.Labels["team"] }
	argument := func(flag string) func(pod corev1.PodTemplateSpec) any {
		return func(pod corev1.PodTemplateSpec) any {
			args := container(pod).Args
			i := slices.IndexFunc(args, func(arg string) bool { return flagOf(arg) == flag })
			if i < 0 {
				return "none"
			}
			return args[i]
		}
	}
	// volume returns a volume and its mount.
	volume := func(name string) func(pod corev1.PodTemplateSpec) any {
		return func(pod corev1.PodTemplateSpec) any {
			var found []any
			for _, v := range pod.Spec.Volumes {
				if v.Name == name {
					found = append(found, v.VolumeSource)
				}
			}
			for _, m := range container(pod).VolumeMounts {
				if m.Name == name {
					found = append(found, m.MountPath, m.ReadOnly)
				}
			}
			return found
		}
	}
	const linuxNodes = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]."
	for name, tc := range map[string]struct {
		values []string
		// part returns what the values determine.
		part func(pod corev1.PodTemplateSpec) any
		want any
		// ofHooks reports whether the values also determine this part of the Pods of hooks.
		ofHooks bool
	}{
		"nodeSelector": {
			[]string{"nodeSelector.disk=ssd"},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.NodeSelector },
			map[string]string{"disk": "ssd", corev1.LabelOSStable: "linux"},
			true,
		},
		"nodeSelector by default": { // a cluster may have nodes with Windows, which cannot pull the image
			nil,
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.NodeSelector },
			map[string]string{corev1.LabelOSStable: "linux"},
			true,
		},
		"nodeSelector without the operating system": {
			[]string{`nodeSelector.kubernetes\.io/os=null`},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.NodeSelector },
			map[string]string(nil),
			true,
		},
		"tolerations": {
			[]string{"tolerations[0].key=agents,tolerations[0].operator=Exists,tolerations[0].effect=NoSchedule"},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.Tolerations },
			[]corev1.Toleration{{Key: "agents", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
			true,
		},
		"affinity": {
			[]string{"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone"},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.Affinity },
			&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone"}},
			}}, false,
		},
		"topologySpreadConstraints": {
			[]string{
				"topologySpreadConstraints[0].maxSkew=1,topologySpreadConstraints[0].topologyKey=zone",
				"topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
			},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.TopologySpreadConstraints },
			[]corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule}},
			false,
		},
		"priorityClassName": {
			[]string{"priorityClassName=high"},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.PriorityClassName }, "high", true,
		},
		"imagePullSecrets": {
			[]string{"imagePullSecrets[0].name=registry"},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.ImagePullSecrets },
			[]corev1.LocalObjectReference{{Name: "registry"}},
			true,
		},
		"image.pullPolicy": {
			[]string{"image.pullPolicy=Always"},
			func(pod corev1.PodTemplateSpec) any { return container(pod).ImagePullPolicy }, corev1.PullAlways, true,
		},
		"image": {
			[]string{"image.registry=registry.example.com", "image.repository=agents/capstan", "image.tag=main"},
			func(pod corev1.PodTemplateSpec) any { return container(pod).Image }, "registry.example.com/agents/capstan:main", true,
		},
		"runAsUser": {
			[]string{"runAsUser=1234"},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.SecurityContext.RunAsUser }, new(int64(1234)), true,
		},
		// Hooks have resources of their own: their command is small.
		"resources": {
			[]string{"resources.requests.cpu=2", "resources.limits.memory=1Gi"},
			func(pod corev1.PodTemplateSpec) any { return container(pod).Resources },
			corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("1Gi")},
			},
			false,
		},
		// A quota of the namespace for a resource also applies to hooks.
		"limits of other resources than memory": {
			[]string{"resources.limits.cpu=1", "resources.limits.ephemeral-storage=1Gi", "resources.requests.ephemeral-storage=1Gi"},
			func(pod corev1.PodTemplateSpec) any {
				r := container(pod).Resources
				return [][]corev1.ResourceName{slices.Sorted(maps.Keys(r.Requests)), slices.Sorted(maps.Keys(r.Limits))}
			},
			[][]corev1.ResourceName{{"cpu", "ephemeral-storage", "memory"}, {"cpu", "ephemeral-storage", "memory"}},
			true,
		},
		"affinity.nodeAffinity": {
			[]string{linuxNodes + "key=linux", linuxNodes + "operator=Exists"},
			func(pod corev1.PodTemplateSpec) any {
				if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
					return nil
				}
				return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions
			},
			[]corev1.NodeSelectorRequirement{{Key: "linux", Operator: corev1.NodeSelectorOpExists}},
			true,
		},
		// Hooks have accounts of their own, with other permissions.
		"serviceAccount.name": {
			[]string{"serviceAccount.name=mine"},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.ServiceAccountName }, "mine", false,
		},
		"serviceAccount.create": {
			[]string{"serviceAccount.create=false,serviceAccount.name=existing"},
			func(pod corev1.PodTemplateSpec) any { return pod.Spec.ServiceAccountName }, "existing", false,
		},
		"podAnnotations": {
			[]string{"podAnnotations.team=a"},
			func(pod corev1.PodTemplateSpec) any { return pod.Annotations["team"] }, "a", true,
		},
		"podLabels":    {[]string{"podLabels.team=a"}, label, "a", true},
		"commonLabels": {[]string{"commonLabels.team=a"}, label, "a", true},
		"podLabels over commonLabels": {
			[]string{"commonLabels.team=a", "podLabels.team=b"}, label, "b", true,
		},
		"shutdownGraceSeconds": {
			[]string{"shutdownGraceSeconds=600"}, argument("shutdown-grace-seconds"), "--shutdown-grace-seconds=600", false,
		},
		"shutdownGraceSeconds beyond terminationGracePeriodSeconds": {
			[]string{"shutdownGraceSeconds=600"}, // and 120 to hand Turns back, 5 for the Leases, and 4 for Events and spans
			func(pod corev1.PodTemplateSpec) any { return *pod.Spec.TerminationGracePeriodSeconds }, int64(730), false,
		},
		"maxConcurrentEvaluations": {
			[]string{"maxConcurrentEvaluations=0"}, argument("max-concurrent-evaluations"), "--max-concurrent-evaluations=0", false,
		},
		"extraArgs": {[]string{"extraArgs={--memory-limit=1Gi}"}, argument("memory-limit"), "--memory-limit=1Gi", false},
		"extraEnv": {
			[]string{"extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=http://proxy:3128"},
			ownEnv,
			[]corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy:3128"}},
			false,
		},
		"tracing": {
			[]string{"tracing.endpoint=http://collector.observability:4318"},
			ownEnv,
			[]corev1.EnvVar{
				{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Value: "http://collector.observability:4318"},
				{Name: "OTEL_EXPORTER_OTLP_PROTOCOL", Value: "http/protobuf"},
			},
			false,
		},
		"tracing with all values": {
			[]string{
				"tracing.endpoint=https://collector:4317,tracing.protocol=grpc,tracing.captureContent=true",
				"tracing.headersSecret.name=collector,tracing.headersSecret.key=auth",
			},
			ownEnv,
			[]corev1.EnvVar{
				{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Value: "https://collector:4317"},
				{Name: "OTEL_EXPORTER_OTLP_PROTOCOL", Value: "grpc"},
				{Name: "OTEL_EXPORTER_OTLP_HEADERS", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "collector"}, Key: "auth",
				}}},
				{Name: "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", Value: "true"},
			},
			false,
		},
		"tracing without an endpoint": {
			[]string{"tracing.captureContent=true,tracing.headersSecret.name=collector"}, ownEnv, []corev1.EnvVar{}, false,
		},
		"workloadTokens": {
			[]string{
				"workloadTokens[0].namespace=helpdesk,workloadTokens[0].name=gateway,workloadTokens[0].audience=https://llm.test",
				"workloadTokens[0].hosts={https://llm.test},workloadTokens[0].expirationSeconds=7200",
			},
			volume("workload-tokens"),
			[]any{corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
				ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
					Path: "helpdesk/gateway", Audience: "https://llm.test", ExpirationSeconds: new(int64(7200)),
				},
			}}}}, "/var/run/secrets/capstan", true},
			false,
		},
		"readAPI.tlsSecret": {
			[]string{"readAPI.enabled=true,readAPI.tlsSecret=mine"},
			volume("read-tls"),
			[]any{corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mine", Items: []corev1.KeyToPath{
				{Key: "tls.crt", Path: "tls.crt"}, {Key: "tls.key", Path: "tls.key"},
			}}}, "/etc/capstan/read", true},
			false,
		},
		"readAPI.port": {
			[]string{"readAPI.enabled=true,readAPI.tlsSecret=mine,readAPI.port=9444"},
			func(pod corev1.PodTemplateSpec) any {
				return slices.DeleteFunc(container(pod).Ports, func(p corev1.ContainerPort) bool { return p.Name != "read" })
			},
			[]corev1.ContainerPort{{Name: "read", ContainerPort: 9444, Protocol: corev1.ProtocolTCP}},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			managers, hooks := podsOf(t, tc.values...)
			for pod, spec := range managers {
				if diff := cmp.Diff(tc.want, tc.part(spec)); diff != "" {
					t.Errorf("the Pods of Deployment %s with %s (-want +got):\n%s", pod, strings.Join(tc.values, ","), diff)
				}
			}
			if !tc.ofHooks {
				return
			}
			for pod, spec := range hooks {
				if diff := cmp.Diff(tc.want, tc.part(spec)); diff != "" {
					t.Errorf("the Pod of %s with %s (-want +got):\n%s", pod, strings.Join(tc.values, ","), diff)
				}
			}
		})
	}
}

// TestHooksHaveNoSidecar checks that no service mesh adds a proxy to the Pods of hooks: a proxy that is no sidecar of
// Kubernetes never ends, and neither does the Pod. The values are for the manager's Pods, which do have a proxy. The
// Pod of helm test needs one if it calls the read API, whose Pods may accept only clients with a proxy.
func TestHooksHaveNoSidecar(t *testing.T) {
	mesh := []string{`podLabels.sidecar\.istio\.io/inject=yes`, `podAnnotations.linkerd\.io/inject=enabled`}
	const readAPI = "readAPI.enabled=true,readAPI.tlsSecret=mine"
	for name, tc := range map[string]struct {
		values []string
		hook   string
		with   bool
	}{
		"helm uninstall":                                {nil, "helm uninstall", false},
		"helm uninstall, manager with a proxy":          {mesh, "helm uninstall", false},
		"helm uninstall, with a read API":               {append(slices.Clone(mesh), readAPI), "helm uninstall", false},
		"helm test, manager with a proxy":               {mesh, "helm test", false},
		"helm test of the read API, manager with proxy": {append(slices.Clone(mesh), readAPI), "helm test", true},
	} {
		t.Run(name, func(t *testing.T) {
			managers, hooks := podsOf(t, tc.values...)
			label, annotation := "false", "disabled"
			if tc.with {
				label, annotation = "yes", "enabled"
			}
			pod := hooks[tc.hook]
			if l, a := pod.Labels["sidecar.istio.io/inject"], pod.Annotations["linkerd.io/inject"]; l != label || a != annotation {
				t.Errorf("the Pod has sidecar.istio.io/inject %q and linkerd.io/inject %q, want %q and %q", l, a, label, annotation)
			}
			for name, m := range managers {
				if is := m.Labels["sidecar.istio.io/inject"] == "yes"; is != (len(tc.values) > 0) {
					t.Errorf("the Pods of Deployment %s have the label of the values: %t, want the opposite", name, is)
				}
			}
		})
	}
}
