package charts_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// hookPolicyName is the name of the NetworkPolicy of the Pods of helm test and helm uninstall.
const hookPolicyName = "capstan-hooks"

// managerPolicy returns the NetworkPolicy of the manager's Pods.
func managerPolicy(t *testing.T, objects []runtime.Object) *networkingv1.NetworkPolicy {
	t.Helper()
	policies := slices.DeleteFunc(every[*networkingv1.NetworkPolicy](objects), func(p *networkingv1.NetworkPolicy) bool {
		return p.Name == hookPolicyName
	})
	if len(policies) != 1 {
		t.Fatalf("got %d NetworkPolicies without those of hooks, want one", len(policies))
	}
	return policies[0]
}

// reaches reports whether a policy allows its Pods to reach an address and port.
func reaches(t *testing.T, policy *networkingv1.NetworkPolicy, protocol corev1.Protocol, address string, port int32) bool {
	t.Helper()
	to := netip.MustParseAddr(address)
	contains := func(cidr string) bool {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			t.Fatal(err)
		}
		return prefix.Contains(to)
	}
	return slices.ContainsFunc(policy.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool {
		ports := len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool {
			return *p.Protocol == protocol && p.Port.IntVal == port
		})
		peers := len(rule.To) == 0 || slices.ContainsFunc(rule.To, func(p networkingv1.NetworkPolicyPeer) bool {
			return p.IPBlock != nil && contains(p.IPBlock.CIDR) && !slices.ContainsFunc(p.IPBlock.Except, contains)
		})
		return ports && peers
	})
}

// TestNetworkPolicy checks which endpoints the Pods may reach, and which of their ports other Pods may
// reach.
func TestNetworkPolicy(t *testing.T) {
	const udp, tcp = corev1.ProtocolUDP, corev1.ProtocolTCP
	type endpoint struct {
		protocol corev1.Protocol
		address  string
		port     int32
	}
	metadata := []endpoint{
		{tcp, "169.254.169.254", 80},
		{tcp, "169.254.169.254", 443},
		{tcp, "169.254.170.2", 80},
		{tcp, "100.100.100.200", 80},
		{tcp, "168.63.129.16", 32526},
		{tcp, "192.0.0.192", 80},
		{tcp, "fe80::1", 80},
	}
	for _, prefix := range netpolicy.MetadataServices() {
		metadata = append(metadata, endpoint{tcp, prefix.Addr().String(), 80})
	}
	narrow := []string{
		"networkPolicy.apiServer.cidrs={192.0.2.10/32}", "networkPolicy.apiServer.ports={6443}",
		"networkPolicy.egress[0].to[0].ipBlock.cidr=203.0.113.0/24",
	}
	for name, tc := range map[string]struct {
		objects              []runtime.Object
		reachable, forbidden []endpoint
	}{
		"Chart": {
			renderChart(t), []endpoint{
				{udp, "169.254.20.10", 53},
				{tcp, "10.96.0.10", 53},
				{tcp, "10.96.0.1", 443},
				{tcp, "93.184.216.34", 443},
				{tcp, "10.1.2.3", 8000},
				{tcp, "2606:2800::1", 443},
			}, metadata,
		},
		"Config": {
			renderConfig(t), []endpoint{
				{udp, "169.254.20.10", 53},
				{tcp, "10.96.0.10", 53},
				{tcp, "10.96.0.1", 443},
				{tcp, "93.184.216.34", 443},
				{tcp, "10.1.2.3", 8000},
				{tcp, "2606:2800::1", 443},
			}, metadata,
		},
		"ChartNarrow": {
			renderChart(t, narrow...),
			[]endpoint{
				{udp, "169.254.20.10", 53},
				{udp, "10.128.0.7", 5353}, // a DNS Pod of OpenShift
				{tcp, "10.128.0.7", 5353},
				{tcp, "192.0.2.10", 6443},
				{tcp, "203.0.113.7", 8000},
			},
			append(slices.Clone(metadata), endpoint{tcp, "192.0.2.10", 443}, endpoint{tcp, "192.0.2.11", 6443},
				endpoint{tcp, "93.184.216.34", 443}, endpoint{udp, "192.0.2.10", 6443}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			policy := managerPolicy(t, tc.objects)
			if want := []networkingv1.PolicyType{
				networkingv1.PolicyTypeIngress,
				networkingv1.PolicyTypeEgress,
			}; !slices.Equal(policy.Spec.PolicyTypes, want) {
				t.Errorf("policyTypes = %v, want %v", policy.Spec.PolicyTypes, want)
			}
			for _, p := range tc.reachable {
				if !reaches(t, policy, p.protocol, p.address, p.port) {
					t.Errorf("the Pods cannot reach %+v", p)
				}
			}
			for _, p := range tc.forbidden {
				if reaches(t, policy, p.protocol, p.address, p.port) {
					t.Errorf("the Pods can reach %+v", p)
				}
			}
			var ports []string
			for _, rule := range policy.Spec.Ingress {
				for _, p := range rule.Ports {
					ports = append(ports, p.Port.StrVal)
				}
			}
			if want := []string{"health", "metrics"}; !slices.Equal(ports, want) {
				t.Errorf("the ports that other Pods may reach are %v, want %v", ports, want)
			}
		})
	}
}

// TestNetworkPolicySelectsThePodsOfTheRelease checks that the policy selects the Pods of the controllers and of the
// executors, but not all Pods of the namespace.
func TestNetworkPolicySelectsThePodsOfTheRelease(t *testing.T) {
	for name, objects := range map[string][]runtime.Object{
		"Chart": renderChart(t), "Separate": renderChart(t, storeURL, "executor.separate=true"), "Config": renderConfig(t),
	} {
		t.Run(name, func(t *testing.T) {
			policy := managerPolicy(t, objects)
			var pods []map[string]string
			for _, d := range every[*appsv1.Deployment](objects) {
				pods = append(pods, d.Spec.Template.Labels)
				if d.Namespace != policy.Namespace {
					t.Errorf("the policy is in namespace %q, want %q", policy.Namespace, d.Namespace)
				}
			}
			for _, pod := range pods {
				for key, value := range policy.Spec.PodSelector.MatchLabels {
					if pod[key] != value {
						t.Errorf("the policy selects %s=%s, but a Pod has %q", key, value, pod[key])
					}
				}
			}
			if len(policy.Spec.PodSelector.MatchLabels) == 0 {
				t.Error("the policy selects all Pods of the namespace, want only those of the release")
			}
		})
	}
}

// TestNetworkPolicyOfHooks checks that the Pods of helm test and helm uninstall reach what they need, also in a
// namespace whose default is to deny all connections, and nothing that the manager does not reach. The API server may
// have a port that the values do not name: the manager then reaches it by the rules for other endpoints.
func TestNetworkPolicyOfHooks(t *testing.T) {
	for name, tc := range map[string]struct {
		values  []string
		readAPI bool
	}{
		"Default":    {nil, false},
		"ReadAPI":    {[]string{"readAPI.enabled=true,readAPI.tlsSecret=x"}, true},
		"APIServer":  {[]string{"networkPolicy.apiServer.cidrs={192.0.2.10/32}"}, false},
		"OwnLabels":  {[]string{"podLabels.team=a,commonLabels.team=b"}, false},
		"OwnEgress":  {[]string{"networkPolicy.egress[0].to[0].ipBlock.cidr=203.0.113.0/24"}, false},
		"NoAccounts": {[]string{"serviceAccount.create=false,serviceAccount.name=own"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := renderChart(t, tc.values...)
			i := slices.IndexFunc(every[*networkingv1.NetworkPolicy](objects), func(p *networkingv1.NetworkPolicy) bool {
				return p.Name == hookPolicyName
			})
			if i < 0 {
				t.Fatal("the Pods of hooks have no NetworkPolicy")
			}
			policy := every[*networkingv1.NetworkPolicy](objects)[i]
			pods := []map[string]string{
				one[*batchv1.Job](t, renderHooks(t, "pre-delete", tc.values...)).Spec.Template.Labels,
				one[*corev1.Pod](t, renderHooks(t, "test", tc.values...)).Labels,
			}
			selector := labels.SelectorFromSet(policy.Spec.PodSelector.MatchLabels)
			for _, pod := range pods {
				if selector.Empty() || !selector.Matches(labels.Set(pod)) {
					t.Errorf("the policy selects %s, but a Pod has %v", selector, pod)
				}
			}
			for _, d := range every[*appsv1.Deployment](objects) {
				if selector.Matches(labels.Set(d.Spec.Template.Labels)) {
					t.Errorf("the policy selects %s, and with it the Pods of Deployment %s", selector, d.Name)
				}
			}
			if len(policy.Spec.Ingress) > 0 || !slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
				t.Errorf("others may connect to the Pods of hooks: %v", policy.Spec.Ingress)
			}
			if !reaches(t, policy, corev1.ProtocolTCP, "192.0.2.10", 6443) || !reaches(t, policy, corev1.ProtocolUDP, "10.96.0.10", 53) ||
				!reaches(t, policy, corev1.ProtocolUDP, "10.128.0.7", 5353) {
				t.Error("the Pods of hooks do not reach the API server and DNS")
			}
			manager := managerPolicy(t, objects)
			for _, e := range []struct {
				address string
				port    int32
			}{{"192.0.2.10", 16443}, {"192.0.2.11", 443}, {"203.0.113.7", 8000}, {"169.254.169.254", 443}, {"198.51.100.1", 443}} {
				have := reaches(t, policy, corev1.ProtocolTCP, e.address, e.port)
				want := reaches(t, manager, corev1.ProtocolTCP, e.address, e.port)
				if have != want {
					t.Errorf("the Pods of hooks reach %s:%d: %t, want %t, like the manager", e.address, e.port, have, want)
				}
			}
			if reaches(t, policy, corev1.ProtocolTCP, "169.254.169.254", 443) {
				t.Error("the Pods of hooks reach a metadata service")
			}
			toManager := slices.ContainsFunc(policy.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool {
				return len(rule.Ports) == 1 && *rule.Ports[0].Port == intstr.FromString("read") && len(rule.To) == 1 &&
					cmp.Equal(rule.To[0].PodSelector, &manager.Spec.PodSelector)
			})
			if toManager != tc.readAPI {
				t.Errorf("the Pods of hooks reach the read API: %t, want %t", toManager, tc.readAPI)
			}
		})
	}
	for _, values := range []string{"networkPolicy.enabled=false", "rbac.create=false"} {
		for _, p := range every[*networkingv1.NetworkPolicy](renderChart(t, values)) {
			if p.Name == hookPolicyName {
				t.Errorf("with %s, there is a policy for Pods of hooks", values)
			}
		}
	}
}

func TestNetworkPolicyValues(t *testing.T) {
	if n := len(every[*networkingv1.NetworkPolicy](renderChart(t, "networkPolicy.enabled=false"))); n != 0 {
		t.Errorf("got %d policies with networkPolicy.enabled=false, want none", n)
	}
	policy := managerPolicy(t, renderChart(t,
		"networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring", "networkPolicy.ingress[0].ports[0].port=8082"))
	if n := len(policy.Spec.Ingress); n != 3 {
		t.Fatalf("got %d ingress rules, want those of probes, of metrics and of networkPolicy.ingress", n)
	}
	if from := policy.Spec.Ingress[1].From; len(from) != 1 || from[0].NamespaceSelector.MatchLabels["team"] != "monitoring" {
		t.Errorf("metrics may be reached from %v, want the namespaces of the team", from)
	}
	if port := policy.Spec.Ingress[2].Ports[0].Port.IntVal; port != 8082 {
		t.Errorf("the rule of networkPolicy.ingress is for port %d, want 8082", port)
	}
	without := managerPolicy(t, renderChart(t, "metrics.enabled=false"))
	if n := len(without.Spec.Ingress); n != 1 {
		t.Errorf("got %d ingress rules without metrics, want only that of probes", n)
	}
}

// TestMetricsReaderRole checks the role for reading metrics, and its binding for the subjects in the values.
func TestMetricsReaderRole(t *testing.T) {
	roleOf := func(objects []runtime.Object) *rbacv1.ClusterRole {
		for _, r := range every[*rbacv1.ClusterRole](objects) {
			if r.Name == metricsReader || r.Name == "capstan-system-"+metricsReader {
				return r
			}
		}
		return nil
	}
	for name, objects := range map[string][]runtime.Object{"Chart": renderChart(t), "Config": renderConfig(t)} {
		want := []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}
		if role := roleOf(objects); role == nil || cmp.Diff(want, role.Rules) != "" {
			t.Errorf("%s: the role of readers is %v, want %v", name, role, want)
		}
	}
	if role := roleOf(renderChart(t, "metrics.enabled=false")); role != nil {
		t.Errorf("got the role %s with metrics off, want none", role.Name)
	}
	objects := renderChart(t, "metrics.readers[0].name=prometheus", "metrics.readers[0].namespace=monitoring")
	var bound []rbacv1.Subject
	for _, b := range every[*rbacv1.ClusterRoleBinding](objects) {
		if b.RoleRef.Name == "capstan-system-"+metricsReader {
			bound = append(bound, b.Subjects...)
		}
	}
	if want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "prometheus", Namespace: "monitoring"}}; cmp.Diff(want, bound) != "" {
		t.Errorf("the role is bound to %v, want %v", bound, want)
	}
}

// TestServiceMonitorSendsATokenOverTLS checks that Prometheus sends a token over TLS, and verifies the certificate
// if it can.
func TestServiceMonitorSendsATokenOverTLS(t *testing.T) {
	for name, tc := range map[string]struct {
		values        []string
		want          map[string]any
		authorization any
	}{
		"SelfSigned": {want: map[string]any{"insecureSkipVerify": true}},
		"Secret": {values: []string{"metrics.tlsSecret=mine"}, want: map[string]any{
			"ca":         map[string]any{"secret": map[string]any{"name": "mine", "key": "ca.crt"}},
			"serverName": "capstan-metrics.capstan-system.svc",
		}},
		"Own": {
			values: []string{"metrics.tlsSecret=mine", "metrics.serviceMonitor.tlsConfig.serverName=x"},
			want:   map[string]any{"serverName": "x"},
		},
		"Token": {
			values: []string{
				"metrics.serviceMonitor.authorization.credentials.name=prometheus",
				"metrics.serviceMonitor.authorization.credentials.key=token",
			},
			want:          map[string]any{"insecureSkipVerify": true},
			authorization: map[string]any{"credentials": map[string]any{"name": "prometheus", "key": "token"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			monitor := one[*unstructured.Unstructured](t, renderChart(t, append(tc.values, "metrics.serviceMonitor.enabled=true")...))
			endpoints, _, err := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
			if err != nil || len(endpoints) != 1 {
				t.Fatalf("endpoints = %v, %v; want one", endpoints, err)
			}
			endpoint, ok := endpoints[0].(map[string]any)
			if !ok || endpoint["scheme"] != "https" {
				t.Errorf("endpoint = %v, want one over TLS", endpoint)
			}
			if diff := cmp.Diff(tc.authorization, endpoint["authorization"]); diff != "" {
				t.Errorf("authorization (-want +got):\n%s", diff)
			}
			if hasFile := endpoint["bearerTokenFile"] != nil; hasFile != (tc.authorization == nil) {
				t.Errorf("endpoint = %v, want either authorization or a file with a token", endpoint)
			}
			if diff := cmp.Diff(tc.want, endpoint["tlsConfig"]); diff != "" {
				t.Errorf("tlsConfig (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMetricsCertificateIsMounted checks that the certificate is where the flags expect it.
func TestMetricsCertificateIsMounted(t *testing.T) {
	deployment, manager := managerOf(t, renderChart(t, "metrics.tlsSecret=mine"))
	if !slices.ContainsFunc(manager.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == "metrics-tls" && m.MountPath == "/etc/capstan/metrics" && m.ReadOnly
	}) {
		t.Errorf("mounts = %v, want metrics-tls at /etc/capstan/metrics, mounted read-only", manager.VolumeMounts)
	}
	if !slices.ContainsFunc(deployment.Spec.Template.Spec.Volumes,
		func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "mine" }) {
		t.Errorf("volumes = %v, want the Secret", deployment.Spec.Template.Spec.Volumes)
	}
	deployment, _ = managerOf(t, renderChart(t, "metrics.tlsSecret=mine", "metrics.enabled=false"))
	if slices.ContainsFunc(deployment.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil }) {
		t.Errorf("volumes = %v, want no Secret with metrics off", deployment.Spec.Template.Spec.Volumes)
	}
}
