package charts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ofName returns the policies and bindings whose names have this suffix.
func ofName(
	objects []runtime.Object, suffix string,
) (policies []*admissionregistrationv1.ValidatingAdmissionPolicy, bindings []*admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
	for _, p := range every[*admissionregistrationv1.ValidatingAdmissionPolicy](objects) {
		if strings.HasSuffix(p.Name, suffix) {
			policies = append(policies, p)
		}
	}
	for _, b := range every[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](objects) {
		if strings.HasSuffix(b.Name, suffix) {
			bindings = append(bindings, b)
		}
	}
	return policies, bindings
}

// TestPoliciesWhoseAgeCounts checks that a new version of the chart does not change the policies of which the manager
// asks since when they are unchanged.
func TestPoliciesWhoseAgeCounts(t *testing.T) {
	version := one[*appsv1.Deployment](t, renderChart(t)).Labels["app.kubernetes.io/version"]
	if version == "" {
		t.Fatal("the Deployment has no label with the version")
	}
	for _, suffix := range []string{"-toolapprovals", "-requesters"} {
		policies, bindings := ofName(renderChart(t, "commonLabels.team=a"), suffix)
		if len(policies) != 1 || len(bindings) != 1 {
			t.Fatalf("%s: got %d policies and %d bindings, want one of each", suffix, len(policies), len(bindings))
		}
		for kind, labels := range map[string]map[string]string{"policy": policies[0].Labels, "binding": bindings[0].Labels} {
			if labels["app.kubernetes.io/part-of"] != "capstan" || labels["team"] != "a" {
				t.Errorf("%s%s: got labels %v, want part-of and commonLabels", kind, suffix, labels)
			}
			for key, value := range labels {
				if strings.Contains(value, version) || key == "helm.sh/chart" {
					t.Errorf("%s%s: label %s=%s changes with each version of the chart", kind, suffix, key, value)
				}
			}
		}
	}
}

func TestPolicies(t *testing.T) {
	for suffix, tc := range map[string]struct{ source, value string }{
		"-toolapprovals": {"../config/policy/toolapproval_policy.yaml", "approvalPolicy.install"},
		"-references":    {"../config/policy/reference_policy.yaml", "referencePolicy.install"},
		"-requesters":    {"../config/policy/requester_policy.yaml", "requesterPolicy.install"},
	} {
		source, err := os.ReadFile(tc.source)
		if err != nil {
			t.Fatal(err)
		}
		want := one[*admissionregistrationv1.ValidatingAdmissionPolicy](t, decode(t, source)).Spec
		for name, objects := range manifests(t) {
			t.Run(name+suffix, func(t *testing.T) {
				policies, bindings := ofName(objects, suffix)
				if len(policies) != 1 || len(bindings) != 1 {
					t.Fatalf("got %d policies and %d bindings, want one of each", len(policies), len(bindings))
				}
				if diff := cmp.Diff(want, policies[0].Spec); diff != "" {
					t.Errorf("the policy differs from config/policy; run go run ./hack/chart (-want +got):\n%s", diff)
				}
				bound := admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
					PolicyName: policies[0].Name, ValidationActions: []admissionregistrationv1.ValidationAction{
						admissionregistrationv1.Deny,
					},
				}
				if diff := cmp.Diff(bound, bindings[0].Spec); diff != "" {
					t.Errorf("binding, without which the policy denies nothing (-want +got):\n%s", diff)
				}
			})
		}
		t.Run("Off"+suffix, func(t *testing.T) {
			policies, bindings := ofName(renderChart(t, tc.value+"=false"), suffix)
			if len(policies)+len(bindings) != 0 {
				t.Errorf("got %d policies and %d bindings with %s=false, want none", len(policies), len(bindings), tc.value)
			}
		})
		t.Run("TwoReleases"+suffix, func(t *testing.T) {
			policies, _ := ofName(renderChart(t, "fullnameOverride=other"), suffix)
			if len(policies) != 1 || policies[0].Name != "capstan-system-other"+suffix {
				t.Errorf("got %v, want names with namespace and release, so that two releases do not collide", policies)
			}
		})
	}
}

// renderForAPI renders the chart as for an API server that serves the API version and kind in served. If served is
// empty, the API server does not serve MutatingAdmissionPolicies.
func renderForAPI(t *testing.T, served string, values ...string) []runtime.Object {
	t.Helper()
	args := []string{"template", "capstan", "capstan", "--namespace", "capstan-system", "--kube-version", kubeVersion}
	if served != "" {
		args = append(args, "--api-versions", served)
	}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	manifest, err := output(t.Context(), helmPath, args...)
	if err != nil {
		t.Fatal(err)
	}
	collectSettings(values)
	return decode(t, manifest)
}

func TestRequesterIsSetIfAPIServerSupportsIt(t *testing.T) {
	const kind = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
	source, err := os.ReadFile("../config/requester/requester_mutation.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := one[*admissionregistrationv1.MutatingAdmissionPolicy](t, decode(t, source)).Spec
	policies := every[*admissionregistrationv1.MutatingAdmissionPolicy](renderForAPI(t, kind))
	if len(policies) != 1 {
		t.Fatalf("got %d policies, want one", len(policies))
	}
	if diff := cmp.Diff(want, policies[0].Spec); diff != "" {
		t.Errorf("the policy differs from config/requester; run go run ./hack/chart (-want +got):\n%s", diff)
	}
	bindings := every[*admissionregistrationv1.MutatingAdmissionPolicyBinding](renderForAPI(t, kind))
	if len(bindings) != 1 || bindings[0].Spec.PolicyName != policies[0].Name {
		t.Errorf("got the bindings %v, want one of the policy", bindings)
	}
	for name, objects := range map[string][]runtime.Object{
		"older API server": renderForAPI(t, ""),
		"set=false":        renderForAPI(t, kind, "requesterPolicy.set=false"),
		"install=false":    renderForAPI(t, kind, "requesterPolicy.install=false"),
		"config/default":   renderConfig(t),
	} {
		if n := len(every[*admissionregistrationv1.MutatingAdmissionPolicy](objects)); n != 0 {
			t.Errorf("%s: got %d MutatingAdmissionPolicies, want none", name, n)
		}
	}
}

func TestRequesterCanBeRequired(t *testing.T) {
	optional, _ := ofName(renderChart(t), "-requesters")
	required, _ := ofName(renderChart(t, "requesterPolicy.required=true"), "-requesters")
	if o, r := len(optional[0].Spec.Validations), len(required[0].Spec.Validations); r != o+1 {
		t.Errorf("got %d validations with required=true and %d without, want one more", r, o)
	}
}

// specOf returns the spec of an object.
func specOf(t *testing.T, object []byte) map[string]any {
	t.Helper()
	var o struct {
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(object, &o); err != nil {
		t.Fatal(err)
	}
	return o.Spec
}

// TestPoliciesStateDefaults compares the policies of the chart with what the API server stores. A tool that compares
// lists as a whole, such as Argo CD, would otherwise take a default within a list for a difference, and apply the
// policy again and again.
func TestPoliciesStateDefaults(t *testing.T) {
	c := startCluster(t)
	policies := 0
	for _, o := range renderForAPI(t, mutationKind, "agentUsePolicy.install=true") {
		kind := o.GetObjectKind().GroupVersionKind().Kind
		if !strings.Contains(kind, "AdmissionPolicy") {
			continue
		}
		policies++
		policy, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "policy.json")
		if err := os.WriteFile(path, policy, 0o600); err != nil {
			t.Fatal(err)
		}
		stored := c.run(t, kubectlPath, "create", "--dry-run=server", "-o", "json", "-f", path)
		if diff := cmp.Diff(specOf(t, policy), specOf(t, []byte(stored))); diff != "" {
			t.Errorf("a %s (-chart +stored):\n%s", kind, diff)
		}
	}
	if policies != 10 {
		t.Errorf("got %d policies and bindings, want 10", policies)
	}
}

func TestAgentUsePolicyIsOptional(t *testing.T) {
	if policies, _ := ofName(renderChart(t), "-agent-use"); len(policies) != 0 {
		t.Error("the policy is installed by default: users without the verb could create no Turn")
	}
	for name, tc := range map[string]struct{ values, want string }{
		"roles of the chart": {
			"agentUsePolicy.install=true",
			"ask for ClusterRole capstan-system-capstan-turn-author in this namespace, or for a Role",
		},
		"no roles": {"agentUsePolicy.install=true,rbac.create=false", "ask for a Role"},
	} {
		t.Run(name, func(t *testing.T) {
			policies, bindings := ofName(renderChart(t, strings.Split(tc.values, ",")...), "-agent-use")
			if len(policies) != 1 || len(bindings) != 1 {
				t.Fatalf("got %d policies and %d bindings, want one of each", len(policies), len(bindings))
			}
			if message := policies[0].Spec.Validations[0].MessageExpression; !strings.Contains(message, tc.want) {
				t.Errorf("the message is %s; want %q in it: the message must name only roles that exist", message, tc.want)
			}
		})
	}
}
