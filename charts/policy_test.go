package charts_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
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

func TestPolicies(t *testing.T) {
	for suffix, tc := range map[string]struct{ source, value string }{
		"-toolapprovals": {"../config/policy/toolapproval_policy.yaml", "approvalPolicy.install"},
		"-references":    {"../config/policy/reference_policy.yaml", "referencePolicy.install"},
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
					t.Errorf("without this binding nothing is refused (-want +got):\n%s", diff)
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
				t.Errorf("got %v, want a name that carries namespace and release: two of them must not meet", policies)
			}
		})
	}
}
