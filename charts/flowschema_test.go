package charts_test

import (
	"slices"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// TestFlowSchema checks that requests for Leases match the FlowSchema before those of Kubernetes for all
// ServiceAccounts, and that the FlowSchema has the ServiceAccount and the namespace of the manager.
func TestFlowSchema(t *testing.T) {
	cases := manifests(t)
	cases["ChartNames"] = renderChart(t, "serviceAccount.name=mine,flowSchema.install=true")
	for name, objects := range cases {
		t.Run(name, func(t *testing.T) {
			spec := one[*flowcontrolv1.FlowSchema](t, objects).Spec
			others := flowcontrolbootstrap.SuggestedFlowSchemaServiceAccounts.Spec
			if spec.MatchingPrecedence >= others.MatchingPrecedence {
				t.Errorf("the precedence is %d, want less than %d", spec.MatchingPrecedence, others.MatchingPrecedence)
			}
			level := flowcontrolbootstrap.SuggestedPriorityLevelConfigurationLeaderElection.Name
			if spec.PriorityLevelConfiguration.Name != level {
				t.Errorf("the priority level is %s, want %s", spec.PriorityLevelConfiguration.Name, level)
			}
			if len(spec.Rules) != 1 || len(spec.Rules[0].Subjects) != 1 || len(spec.Rules[0].ResourceRules) != 1 {
				t.Fatalf("the rules are %+v, want one with one subject", spec.Rules)
			}
			account, rule := spec.Rules[0].Subjects[0].ServiceAccount, spec.Rules[0].ResourceRules[0]
			if want := managerSubjects(objects); account == nil || !slices.Equal(want, []string{account.Namespace + "/" + account.Name}) {
				t.Errorf("the subject is %+v, want %v", account, want)
			}
			if !slices.Equal(rule.Namespaces, []string{"capstan-system"}) || !slices.Equal(rule.Resources, []string{"leases"}) {
				t.Errorf("the rule is %+v, want the Leases of the manager's namespace", rule)
			}
		})
	}
	for name, tc := range map[string]struct {
		objects []runtime.Object
		want    []string
	}{
		"Off":         {renderChart(t, "flowSchema.install=false"), nil},
		"TwoReleases": {renderChart(t, "fullnameOverride=other"), []string{"capstan-system-other-leases"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range every[*flowcontrolv1.FlowSchema](tc.objects) {
				got = append(got, s.Name)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("the FlowSchemas are %v, want %v", got, tc.want)
			}
		})
	}
}
