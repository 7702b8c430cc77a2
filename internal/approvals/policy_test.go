package approvals

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// shipped reads an object of config/policy, which was created a minute ago.
func shipped[T metav1.Object](t *testing.T, file string, object T) T {
	t.Helper()
	text, err := os.ReadFile("../../config/policy/" + file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		t.Fatal(err)
	}
	object.SetCreationTimestamp(metav1.NewTime(now.Add(-time.Minute)))
	return object
}

// unconfirmed returns why the API server may not check names with this policy for ToolApprovals or, if requester is
// true, for requesters. It is empty if the policy counts. checked has the ToolApproval that counts.
func unconfirmed(
	t *testing.T, policy *admissionv1.ValidatingAdmissionPolicy, requester bool,
) (checked []v1alpha1.ToolApproval, why string) {
	t.Helper()
	file := "toolapproval_binding.yaml"
	if requester {
		file = "requester_binding.yaml"
	}
	api := fake.NewClientset(policy, shipped(t, file, &admissionv1.ValidatingAdmissionPolicyBinding{})).AdmissionregistrationV1()
	clock := func() time.Time { return now }
	var err error
	if requester {
		why, err = NewRequesterPolicy(DefaultRequesterPolicy, api, clock, logr.Discard()).CheckRequester(t.Context(), now)
	} else {
		made := named("a")
		made[0].Spec.DecidedByGroups = []string{"leads"}
		checked, why, err = NewPolicy(DefaultPolicy, api, clock, logr.Discard()).Check(t.Context(), made)
	}
	if err != nil {
		t.Fatal(err)
	}
	return checked, why
}

func TestPolicyThatLetsForgedNamesThroughDoesNotCount(t *testing.T) {
	type policy = admissionv1.ValidatingAdmissionPolicy
	rule := func(p *policy) *admissionv1.NamedRuleWithOperations { return &p.Spec.MatchConstraints.ResourceRules[0] }
	const lacks, misses, again = " lacks the expression by which Capstan checks ", " does not apply to each creation of ",
		": install it again with kubectl apply -k config/policy, or with the chart and "
	const approvalsAgain = again + "approvalPolicy.install=true, under the name in --approval-policy"
	const requestersAgain = again + "requesterPolicy.install=true, under the name in --requester-policy"
	for name, tc := range map[string]struct {
		reason string
		change func(*policy)
		// approvals and requesters are parts of the reports; empty if the policy counts.
		approvals, requesters string
	}{
		"as shipped": {reason: "it checks all names", change: func(*policy) {}},
		"with defaults": {
			reason: "the API server adds these values", change: func(p *policy) {
				rule(p).Scope = new(admissionv1.AllScopes)
				p.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{}
				p.Spec.MatchConstraints.ObjectSelector = &metav1.LabelSelector{}
			},
		},
		"stricter": {
			reason: "more validations and rules refuse more", change: func(p *policy) {
				p.Spec.Validations = append([]admissionv1.Validation{{Expression: "has(object.metadata.labels)"}}, p.Spec.Validations...)
				p.Spec.MatchConstraints.ResourceRules = append([]admissionv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Delete}},
				}}, p.Spec.MatchConstraints.ResourceRules...)
			},
		},
		"all kinds": {
			reason: "the rule has each creation", change: func(p *policy) {
				r := rule(p)
				r.Operations = []admissionv1.OperationType{admissionv1.OperationAll}
				r.APIGroups, r.APIVersions, r.Resources = []string{"*"}, []string{"*"}, []string{"*/*"}
			},
		},
		"a policy with the first validation only": {
			reason: "the policy of an older version has fewer validations",
			change: func(p *policy) { p.Spec.Validations = p.Spec.Validations[:1] },
		},
		"without the first validation": {
			"the expression in the message does not count", func(p *policy) {
				first, second := p.Spec.Validations[0].Expression, &p.Spec.Validations[1]
				second.MessageExpression = first
				p.Spec.Validations = p.Spec.Validations[1:]
			},
			lacks + "spec.decidedBy" + approvalsAgain,
			lacks + "spec.requestedBy" + requestersAgain,
		},
		"with an alternative": {
			"the expression is true for one user",
			func(p *policy) {
				p.Spec.Validations[0].Expression += " || request.userInfo.username == 'mallory'"
			},
			lacks + "spec.decidedBy", lacks + "spec.requestedBy",
		},
		"with parameters": {
			"a binding can allow all requests without parameters",
			func(p *policy) { p.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"} },
			" has a paramKind, ", " has a paramKind, ",
		},
		"without rules": {
			"nothing is checked", func(p *policy) { p.Spec.MatchConstraints.ResourceRules = nil },
			misses + "toolapprovals" + approvalsAgain, misses + "turns" + requestersAgain,
		},
		"updates only": {
			"creations are not checked",
			func(p *policy) { rule(p).Operations = []admissionv1.OperationType{admissionv1.Update} },
			misses + "toolapprovals", misses + "turns",
		},
		"another resource": {
			"it does not apply to this one", func(p *policy) { rule(p).Resources = []string{"agents"} },
			misses + "toolapprovals", misses + "turns",
		},
		"another group": {
			"the kinds are not in it", func(p *policy) { rule(p).APIGroups = []string{"example.com"} },
			misses + "toolapprovals", misses + "turns",
		},
		"another version": {
			"the API server serves v1alpha1", func(p *policy) { rule(p).APIVersions = []string{"v1"} },
			misses + "toolapprovals", misses + "turns",
		},
		"one version exactly": {
			"another served version would not be checked",
			func(p *policy) { p.Spec.MatchConstraints.MatchPolicy = new(admissionv1.Exact) },
			misses + "toolapprovals", misses + "turns",
		},
		"some names": {
			"objects of other names are not checked", func(p *policy) { rule(p).ResourceNames = []string{"checked"} },
			misses + "toolapprovals", misses + "turns",
		},
		"objects of the cluster": {
			"the objects have namespaces", func(p *policy) { rule(p).Scope = new(admissionv1.ClusterScope) },
			misses + "toolapprovals", misses + "turns",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, of := range []struct {
				file      string
				requester bool
				want      string
			}{{"toolapproval_policy.yaml", false, tc.approvals}, {"requester_policy.yaml", true, tc.requesters}} {
				p := shipped(t, of.file, &policy{})
				tc.change(p)
				checked, why := unconfirmed(t, p, of.requester)
				if !strings.Contains(why, of.want) || (why == "") != (of.want == "") {
					t.Errorf("%s: the report is %q, want one with %q: %s", of.file, why, of.want, tc.reason)
				}
				if counts := len(checked) > 0; !of.requester && counts != (of.want == "") {
					t.Errorf("a decision counts: %t: %s", counts, tc.reason)
				}
			}
		})
	}
}

func TestGroupsCountOnlyIfThePolicyChecksThem(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*admissionv1.Validation)
		want   int
	}{
		"as shipped": {func(*admissionv1.Validation) {}, 1},
		"with an alternative": {
			func(v *admissionv1.Validation) { v.Expression += " || request.userInfo.username == 'mallory'" }, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := shipped(t, "toolapproval_policy.yaml", &admissionv1.ValidatingAdmissionPolicy{})
			tc.change(&p.Spec.Validations[1])
			checked, why := unconfirmed(t, p, false)
			if len(checked) != 1 || len(checked[0].Spec.DecidedByGroups) != tc.want {
				t.Errorf("%v counts (%q), want one decision with %d groups", checked, why, tc.want)
			}
		})
	}
}

// TestShippedPoliciesKeepCheckedExpressions fails if a policy no longer has an expression that the manager looks for.
// The managers that an upgrade replaces look for it, too: see the comment at these constants.
func TestShippedPoliciesKeepCheckedExpressions(t *testing.T) {
	for file, expressions := range map[string][]string{
		"toolapproval_policy.yaml": {validatesDecidedBy, validatesDecidedByGroups},
		"requester_policy.yaml":    {validatesRequestedBy},
	} {
		for _, e := range expressions {
			if !validates(shipped(t, file, &admissionv1.ValidatingAdmissionPolicy{}), e) {
				t.Errorf("%s does not have the expression %q: keep it, and add another validation instead", file, e)
			}
		}
	}
}
