package charts_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

func TestThePolicyOfToolApprovals(t *testing.T) {
	source, err := os.ReadFile("../config/policy/toolapproval_policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := one[*admissionregistrationv1.ValidatingAdmissionPolicy](t, decode(t, source)).Spec
	for name, objects := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			policy := one[*admissionregistrationv1.ValidatingAdmissionPolicy](t, objects)
			if diff := cmp.Diff(want, policy.Spec); diff != "" {
				t.Errorf("the policy differs from config/policy; run go run ./hack/chart (-want +got):\n%s", diff)
			}
			binding := one[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, objects)
			bound := admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			}
			if diff := cmp.Diff(bound, binding.Spec); diff != "" {
				t.Errorf("without this binding nothing is refused (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("Off", func(t *testing.T) {
		objects := renderChart(t, "approvalPolicy.install=false")
		if n := len(every[*admissionregistrationv1.ValidatingAdmissionPolicy](objects)) +
			len(every[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](objects)); n != 0 {
			t.Errorf("got %d policies and bindings with approvalPolicy.install=false, want none", n)
		}
	})
	t.Run("TwoReleases", func(t *testing.T) {
		policy := one[*admissionregistrationv1.ValidatingAdmissionPolicy](t, renderChart(t, "fullnameOverride=other"))
		if policy.Name != "capstan-system-other-toolapprovals" {
			t.Errorf("name = %q, want it to carry namespace and release: two of them must not meet", policy.Name)
		}
	})
}
