package charts_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/capstan-dev/capstan/internal/manager"
)

// managerHasFlag reports whether the manager has a flag. With an unknown flag, the manager would not start.
func managerHasFlag(flag string) bool {
	flags := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	new(manager.Options).AddFlags(flags)
	return flags.Lookup(flag) != nil
}

// parseCommand parses the arguments of a container with the flags of a manager command. The command must have every
// flag.
func parseCommand(t *testing.T, name string, args []string, addFlags func(*pflag.FlagSet)) {
	t.Helper()
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	addFlags(flags)
	if len(args) == 0 || args[0] != name {
		t.Fatalf("args = %v, want the command %s", args, name)
	}
	if err := flags.Parse(args[1:]); err != nil {
		t.Fatalf("the command %s does not accept %v: %v", name, args, err)
	}
}

// subjectOf returns the ServiceAccount of the manager's Pods.
func subjectOf(t *testing.T, objects []runtime.Object) rbacv1.Subject {
	t.Helper()
	account := one[*corev1.ServiceAccount](t, objects)
	if got := one[*appsv1.Deployment](t, objects).Spec.Template.Spec.ServiceAccountName; got != account.Name {
		t.Errorf("serviceAccountName = %q, want %q", got, account.Name)
	}
	return rbacv1.Subject{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}
}

func managerOf(t *testing.T, objects []runtime.Object) (*appsv1.Deployment, corev1.Container) {
	t.Helper()
	deployment := one[*appsv1.Deployment](t, objects)
	containers := deployment.Spec.Template.Spec.Containers
	if len(containers) != 1 {
		t.Fatalf("got %d containers, want only the manager", len(containers))
	}
	return deployment, containers[0]
}

func TestPodsComplyWithRestrictedPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	all := manifests(t)
	all["ChartPlatformUser"] = renderChart(t, "runAsUser=null")
	for name, objects := range all {
		t.Run(name, func(t *testing.T) {
			deployment, manager := managerOf(t, objects)
			pod := deployment.Spec.Template
			results := evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec)
			if result := policy.AggregateCheckResults(results); !result.Allowed {
				t.Errorf("restricted Pod Security rejects the Pod: %s", result.ForbiddenDetail())
			}
			if c := manager.SecurityContext; c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem {
				t.Error("readOnlyRootFilesystem is not set")
			}
			if len(manager.Resources.Requests) == 0 || manager.Resources.Limits.Memory().IsZero() {
				t.Errorf("resources = %v, want requests and a memory limit", manager.Resources)
			}
		})
	}
}

func TestChartAndConfigSecurePodsAlike(t *testing.T) {
	chart, chartManager := managerOf(t, renderChart(t))
	config, configManager := managerOf(t, renderConfig(t))
	if diff := cmp.Diff(chart.Spec.Template.Spec.SecurityContext, config.Spec.Template.Spec.SecurityContext); diff != "" {
		t.Errorf("securityContext of the Pod (-chart +config):\n%s", diff)
	}
	if got := config.Spec.Template.Spec.SecurityContext.RunAsUser; got == nil || *got != 65532 {
		t.Errorf("runAsUser = %v, want 65532, the user of the image", got)
	}
	for name, pair := range map[string][2]any{
		"securityContext": {chartManager.SecurityContext, configManager.SecurityContext},
		"image":           {chartManager.Image, configManager.Image},
		"livenessProbe":   {chartManager.LivenessProbe, configManager.LivenessProbe},
		"readinessProbe":  {chartManager.ReadinessProbe, configManager.ReadinessProbe},
		"ports":           {chartManager.Ports, configManager.Ports},
		"env":             {chartManager.Env, configManager.Env},
		"volumeMounts":    {chartManager.VolumeMounts, configManager.VolumeMounts},
		"volumes":         {chart.Spec.Template.Spec.Volumes, config.Spec.Template.Spec.Volumes},
		"resources":       {chartManager.Resources, configManager.Resources},
		"strategy":        {chart.Spec.Strategy, config.Spec.Strategy},
		"grace period": {
			chart.Spec.Template.Spec.TerminationGracePeriodSeconds,
			config.Spec.Template.Spec.TerminationGracePeriodSeconds,
		},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s (-chart +config):\n%s", name, diff)
		}
	}
}

func TestSkillsAreMountedAtThePathOfTheFlag(t *testing.T) {
	deployment, manager := managerOf(t, renderChart(t, "skillsConfigMap=house-skills"))
	i := slices.IndexFunc(manager.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "skills" })
	if i < 0 || manager.VolumeMounts[i].MountPath != "/etc/capstan/skills" || !manager.VolumeMounts[i].ReadOnly {
		t.Errorf("mounts = %v, want skills at /etc/capstan/skills, mounted read-only", manager.VolumeMounts)
	}
	volumes := deployment.Spec.Template.Spec.Volumes
	i = slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == "skills" })
	if i < 0 || volumes[i].ConfigMap == nil || volumes[i].ConfigMap.Name != "house-skills" {
		t.Errorf("volumes = %v, want skills from the ConfigMap", volumes)
	}
}

func TestWorkloadTokensAreProjected(t *testing.T) {
	deployment, manager := managerOf(t, renderChart(t, "workloadTokens[0].namespace=helpdesk", "workloadTokens[0].name=gateway",
		"workloadTokens[0].audience=https://llm.test", "workloadTokens[0].hosts={https://llm.test}"))
	i := slices.IndexFunc(manager.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "workload-tokens" })
	if i < 0 || manager.VolumeMounts[i].MountPath != "/var/run/secrets/capstan" || !manager.VolumeMounts[i].ReadOnly {
		t.Errorf("mounts = %v, want the tokens in the manager's default directory, mounted read-only", manager.VolumeMounts)
	}
	volumes := deployment.Spec.Template.Spec.Volumes
	i = slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == "workload-tokens" })
	if i < 0 || volumes[i].Projected == nil {
		t.Fatalf("volumes = %v, want a projected one", volumes)
	}
	want := corev1.ServiceAccountTokenProjection{
		Path: "helpdesk/gateway", Audience: "https://llm.test", ExpirationSeconds: new(int64(3600)),
	}
	if diff := cmp.Diff(&want, volumes[i].Projected.Sources[0].ServiceAccountToken); diff != "" {
		t.Errorf("token: -want +got:\n%s", diff)
	}
}

func TestArguments(t *testing.T) {
	defaults := []string{
		"--namespace=$(POD_NAMESPACE)", "--executor-name=$(POD_NAME)", "--data-dir=/var/lib/capstan",
		"--leader-elect=true", "--journal-retention=24h", "--record-retention=2160h", "--max-records-per-namespace=100000",
		"--max-concurrent-turns=0", "--max-concurrent-evaluations=4",
		"--max-running-turns-per-namespace=90%", "--max-queued-turns-per-namespace=10000",
		"--metrics-bind-address=:8443", "--health-probe-bind-address=:8081",
		"--log-format=json", "--log-level=info", "--shutdown-grace-seconds=25", "--probe-interval-seconds=60",
		"--approval-policy=capstan-system-capstan-toolapprovals", "--requester-policy=capstan-system-capstan-requesters",
		"--role-prefix=capstan-system-capstan", "--journal-volume-size=5Gi",
	}
	tests := map[string]struct {
		values []string
		want   []string // in addition to the defaults; an argument in want replaces the default of its flag
	}{
		"Defaults":   {},
		"Namespaces": {values: []string{"watchNamespaces={a,b}"}, want: []string{"--watch-namespaces=a,b"}},
		"NoMetrics":  {values: []string{"metrics.enabled=false"}, want: []string{"--metrics-bind-address=0"}},
		"Ports": {
			values: []string{"metrics.port=9090", "health.port=9091"},
			want:   []string{"--metrics-bind-address=:9090", "--health-probe-bind-address=:9091"},
		},
		"Logs": {
			values: []string{"log.format=console", "log.level=debug"},
			want:   []string{"--log-format=console", "--log-level=debug"},
		},
		"Certificate": {
			values: []string{"metrics.tlsSecret=mine"},
			want:   []string{"--metrics-tls-cert-file=/etc/capstan/metrics/tls.crt", "--metrics-tls-key-file=/etc/capstan/metrics/tls.key"},
		},
		"ReadAPI": {
			values: []string{"readAPI.enabled=true", "readAPI.tlsSecret=mine", "readAPI.port=9444"},
			want: []string{
				"--read-tls-bind-address=:9444", "--read-tls-cert-file=/etc/capstan/read/tls.crt",
				"--read-tls-key-file=/etc/capstan/read/tls.key",
			},
		},
		"Audiences": {
			values: []string{"tokenAudiences={capstan,https://kubernetes.default.svc,team: a #1}"},
			want:   []string{"--token-audiences=capstan,https://kubernetes.default.svc,team: a #1"},
		},
		"NoLeader": {values: []string{"leaderElection.enabled=false"}, want: []string{"--leader-elect=false"}},
		"Extra": {
			values: []string{"extraArgs={--store=sqlite:///var/lib/capstan/x.db}"},
			want:   []string{"--store=sqlite:///var/lib/capstan/x.db"},
		},
		"Quotas": {
			values: []string{"journalQuota.total=20Gi", "journalQuota.perNamespace=2Gi"},
			want:   []string{"--journal-quota=20Gi", "--journal-quota-per-namespace=2Gi"},
		},
		"Shares": {
			values: []string{"maxRunningTurnsPerNamespace=50%", "maxQueuedTurnsPerNamespace=0"},
			want:   []string{"--max-running-turns-per-namespace=50%", "--max-queued-turns-per-namespace=0"},
		},
		"Numbers":   {values: []string{"maxRunningTurnsPerNamespace=200"}, want: []string{"--max-running-turns-per-namespace=200"}},
		"Retention": {values: []string{"journalRetention=0s"}, want: []string{"--journal-retention=0s"}},
		"NoPolicy":  {values: []string{"approvalPolicy.install=false"}, want: []string{"--approval-policy=capstan-toolapprovals"}},
		"NoRequesterPolicy": {
			values: []string{"requesterPolicy.install=false"}, want: []string{"--requester-policy=capstan-requesters"},
		},
		"Records": {
			values: []string{"records.retention=24h", "records.maxPerNamespace=5000000", "records.labels={team,unit}"},
			want:   []string{"--record-retention=24h", "--max-records-per-namespace=5000000", "--record-labels=team,unit"},
		},
		"NoRoles":  {values: []string{"rbac.create=false"}, want: []string{"--role-prefix="}},
		"Trusting": {values: []string{"extraArgs={--trust-decided-by}"}, want: []string{"--trust-decided-by"}},
		"Skills":   {values: []string{"skillsConfigMap=house-skills"}, want: []string{"--skills-file=/etc/capstan/skills/skills.yaml"}},
		"Addresses": {
			values: []string{
				"connections.allowCIDRs={127.0.0.0/8,::1/128}", "connections.denyCIDRs={10.0.0.0/8}",
				"connections.clusterCIDRs={10.96.0.0/16}",
			},
			want: []string{"--tool-allow-cidrs=127.0.0.0/8,::1/128", "--cluster-cidrs=10.96.0.0/16", "--tool-deny-cidrs=10.0.0.0/8"},
		},
		"Tokens": {
			values: []string{
				`workloadTokens[0].namespace=helpdesk`, `workloadTokens[0].name=gateway`, `workloadTokens[0].audience=https://llm.test`,
				`workloadTokens[0].hosts={https://llm.test,*.llm.test}`,
			},
			want: []string{"--workload-tokens=helpdesk/gateway=https://llm.test", "--workload-tokens=helpdesk/gateway=*.llm.test"},
		},
		"NoURLs": {values: []string{"attachments.urls=false"}, want: []string{"--attachment-urls=false"}},
		"Large": {
			values: []string{"maxConcurrentTurns=100000", "probeIntervalSeconds=86400"},
			want:   []string{"--max-concurrent-turns=100000", "--probe-interval-seconds=86400"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, manager := managerOf(t, renderChart(t, tc.values...))
			want := slices.DeleteFunc(slices.Clone(defaults), func(arg string) bool {
				return slices.ContainsFunc(tc.want, func(own string) bool { return flagOf(own) == flagOf(arg) })
			})
			want = append(want, tc.want...)
			got := slices.Clone(manager.Args)
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("args (-want +got):\n%s", diff)
			}
			checkFlags(t, manager)
		})
	}
	t.Run("Config", func(t *testing.T) {
		_, manager := managerOf(t, renderConfig(t))
		checkFlags(t, manager)
	})
}

func flagOf(arg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
	return name
}

// checkFlags checks that the manager knows the flag of each argument, and that the container has exactly the variables
// POD_NAME and POD_NAMESPACE.
func checkFlags(t *testing.T, manager corev1.Container) {
	t.Helper()
	for _, arg := range manager.Args {
		if !managerHasFlag(flagOf(arg)) {
			t.Errorf("argument %q is not a flag of the manager", arg)
		}
	}
	want := []corev1.EnvVar{
		{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
	}
	if diff := cmp.Diff(want, manager.Env); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
}

func TestProbesUseTheHealthPort(t *testing.T) {
	for name, objects := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			_, manager := managerOf(t, objects)
			ports := map[string]int32{}
			for _, port := range manager.Ports {
				ports[port.Name] = port.ContainerPort
			}
			if ports["health"] != 8081 {
				t.Errorf("ports = %v, want health on 8081", ports)
			}
			for path, probe := range map[string]*corev1.Probe{"/healthz": manager.LivenessProbe, "/readyz": manager.ReadinessProbe} {
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port != intstr.FromString("health") {
					t.Errorf("probe of %s = %v, want an HTTP GET of it on port health", path, probe)
				}
			}
		})
	}
}

func TestPersistence(t *testing.T) {
	t.Run("Off", func(t *testing.T) {
		objects := renderChart(t, "persistence.enabled=false", "persistence.emptyDirSizeLimit=2Gi")
		deployment, _ := managerOf(t, objects)
		if got := deployment.Spec.Strategy.Type; got != appsv1.RollingUpdateDeploymentStrategyType {
			t.Errorf("strategy = %s, want RollingUpdate", got)
		}
		if got := deployment.Spec.Template.Spec.Volumes[0].EmptyDir; got == nil || got.SizeLimit.String() != "2Gi" {
			t.Errorf("volume = %v, want an emptyDir of at most 2Gi", got)
		}
		checkVolumeSize(t, objects, "--journal-volume-size=2Gi")
		if claims := every[*corev1.PersistentVolumeClaim](objects); len(claims) != 0 {
			t.Errorf("got %d claims, want none", len(claims))
		}
	})
	t.Run("On", func(t *testing.T) {
		objects := renderChart(t, "persistence.storageClassName=fast", "persistence.size=9Gi")
		deployment, _ := managerOf(t, objects)
		if got := deployment.Spec.Strategy.Type; got != appsv1.RecreateDeploymentStrategyType {
			t.Errorf("strategy = %s, want Recreate: two Pods cannot share a ReadWriteOnce volume", got)
		}
		claim := one[*corev1.PersistentVolumeClaim](t, objects)
		if got := deployment.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim; got == nil || got.ClaimName != claim.Name {
			t.Errorf("volume = %v, want the claim %q", got, claim.Name)
		}
		if got := claim.Spec.Resources.Requests.Storage().String() + " " + *claim.Spec.StorageClassName; got != "9Gi fast" {
			t.Errorf("claim asks for %q, want 9Gi of fast", got)
		}
		checkVolumeSize(t, objects, "--journal-volume-size=9Gi")
		if claim.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("annotations = %v, want the journal kept by default", claim.Annotations)
		}
		objects = renderChart(t, `persistence.annotations.argocd\.argoproj\.io/sync-options=Delete=false`)
		if got := one[*corev1.PersistentVolumeClaim](t, objects).Annotations["argocd.argoproj.io/sync-options"]; got != "Delete=false" {
			t.Errorf("sync-options = %q, want the user's", got)
		}
	})
	t.Run("Default", func(t *testing.T) {
		for name, objects := range map[string][]runtime.Object{"chart": renderChart(t), "config": renderConfig(t)} {
			deployment, _ := managerOf(t, objects)
			claim := one[*corev1.PersistentVolumeClaim](t, objects)
			if got := deployment.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim; got == nil || got.ClaimName != claim.Name {
				t.Errorf("%s: volume = %v, want the claim %q: an emptyDir loses the journal with its Pod", name, got, claim.Name)
			}
			if claim.Namespace != deployment.Namespace || claim.Spec.StorageClassName != nil {
				t.Errorf("%s: the claim is in namespace %s with class %v, want the namespace of the Deployment and the default class",
					name, claim.Namespace, claim.Spec.StorageClassName)
			}
			want := resource.MustParse("5Gi")
			if got := claim.Spec.Resources.Requests.Storage(); got.Cmp(want) != 0 ||
				!slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) {
				t.Errorf("%s: claim asks for %s, %v; want 5Gi, ReadWriteOnce", name, got, claim.Spec.AccessModes)
			}
			checkVolumeSize(t, objects, "--journal-volume-size=5Gi")
		}
	})
	t.Run("ExistingClaim", func(t *testing.T) {
		objects := renderChart(t, "persistence.existingClaim=mine")
		deployment, _ := managerOf(t, objects)
		if got := deployment.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim; got == nil || got.ClaimName != "mine" {
			t.Errorf("volume = %v, want the claim mine", got)
		}
		if claims := every[*corev1.PersistentVolumeClaim](objects); len(claims) != 0 {
			t.Errorf("got %d claims, want none beside the existing one", len(claims))
		}
		checkVolumeSize(t, objects)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		checkVolumeSize(t, renderChart(t, storeURL))
		checkVolumeSize(t, renderChart(t, storeURL, "persistence.enabled=false"))
	})
}

// checkVolumeSize checks the arguments with which the manager receives the size of the journal's volume.
func checkVolumeSize(t *testing.T, objects []runtime.Object, want ...string) {
	t.Helper()
	_, manager := managerOf(t, objects)
	got := slices.DeleteFunc(slices.Clone(manager.Args), func(arg string) bool { return flagOf(arg) != "journal-volume-size" })
	if !slices.Equal(got, want) {
		t.Errorf("arguments for the size of the volume = %q, want %q", got, want)
	}
}

func TestServicesSelectThePods(t *testing.T) {
	objects := renderChart(t, "metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.team=x", "commonLabels.team=y",
		"podDisruptionBudget.enabled=true", "podLabels.app\\.kubernetes\\.io/name=other")
	deployment, _ := managerOf(t, objects)
	labels := deployment.Spec.Template.Labels
	service := one[*corev1.Service](t, objects)
	monitored, _, err := unstructured.NestedStringMap(one[*unstructured.Unstructured](t, objects).Object, "spec", "selector", "matchLabels")
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string]struct{ selector, labels map[string]string }{
		"Deployment":          {deployment.Spec.Selector.MatchLabels, labels},
		"Service":             {service.Spec.Selector, labels},
		"PodDisruptionBudget": {one[*policyv1.PodDisruptionBudget](t, objects).Spec.Selector.MatchLabels, labels},
		"ServiceMonitor":      {monitored, service.Labels},
	} {
		if len(pair.selector) == 0 {
			t.Errorf("%s selects everything", name)
		}
		for key, value := range pair.selector {
			if pair.labels[key] != value {
				t.Errorf("%s selects %s=%s, but the label is %q", name, key, value, pair.labels[key])
			}
		}
	}
	if n := len(every[*corev1.Service](renderChart(t, "metrics.enabled=false"))); n != 0 {
		t.Errorf("got %d Services with metrics off, want none", n)
	}
}

// TestAlerts checks that the chart has the expected alerts and recording rules, and that they are off by default.
func TestAlerts(t *testing.T) {
	if n := len(every[*unstructured.Unstructured](renderChart(t))); n != 0 {
		t.Errorf("got %d objects of the Prometheus operator by default, want none", n)
	}
	rule := one[*unstructured.Unstructured](t,
		renderChart(t, "metrics.prometheusRule.enabled=true", "metrics.prometheusRule.labels.team=x"))
	groups, _, err := unstructured.NestedSlice(rule.Object, "spec", "groups")
	if err != nil || rule.GetKind() != "PrometheusRule" || rule.GetLabels()["team"] != "x" || len(groups) != 1 {
		t.Fatalf("%s with labels %v and %d groups, %v; want one group of a PrometheusRule", rule.GetKind(),
			rule.GetLabels(), len(groups), err)
	}
	group, _ := groups[0].(map[string]any)
	rules, _, err := unstructured.NestedSlice(group, "rules")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range rules {
		fields, _ := r.(map[string]any)
		name, isAlert := fields["alert"]
		if !isAlert {
			name = fields["record"]
		}
		names = append(names, fmt.Sprint(name))
		if expr := fmt.Sprint(fields["expr"]); !regexp.MustCompile(`capstan[_:]|gen_ai_client_`).MatchString(expr) {
			t.Errorf("%s looks at %q, want metrics of Capstan", name, expr)
		}
	}
	want := []string{
		"capstan:targets:known", "capstan:journals_lost:increase15m", "capstan:turns_ended:increase15m",
		"capstan:turn_wait_seconds_bucket:increase15m", "capstan:model_requests:increase15m",
		"capstan:model_errors:increase15m", "capstan:model_cost:increase15m", "CapstanDown",
		"CapstanJournalsNearQuota", "CapstanNamespaceNearJournalQuota",
		"CapstanJournalsLost",
		"CapstanTurnsQueue", "CapstanTurnsWaitLong",
		"CapstanTurnsCannotStart", "CapstanTurnsFail", "CapstanModelUnavailable",
		"CapstanModelRequestsFail", "CapstanBudgetNearLimit",
		"CapstanBudgetReached", "CapstanClockDiffers",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("rules: -want +got:\n%s", diff)
	}
}
