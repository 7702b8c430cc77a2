package charts_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// generatedRules returns the rules of the ClusterRole and of the Role that controller-gen has generated from
// internal/controller/rbac.go.
func generatedRules(t *testing.T) (cluster, own []rbacv1.PolicyRule) {
	t.Helper()
	manifest, err := os.ReadFile("../config/rbac/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects := decode(t, manifest)
	return one[*rbacv1.ClusterRole](t, objects).Rules, one[*rbacv1.Role](t, objects).Rules
}

// manifests returns the objects of several ways to install Capstan, by name.
func manifests(t *testing.T) map[string][]runtime.Object {
	t.Helper()
	return map[string][]runtime.Object{
		"ChartClusterWide": renderChart(t),
		"ChartNamespaced":  renderChart(t, "watchNamespaces={helpdesk,research}"),
		"ChartEmptyDir":    renderChart(t, "persistence.enabled=false", "metrics.enabled=false"),
		"ChartPostgreSQL":  renderChart(t, storeURL, "replicas=3"),
		"Config":           renderConfig(t),
	}
}

// withChartPolicies returns the rules with the names of the policies that the chart installs.
func withChartPolicies(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	named := slices.Clone(rules)
	for i, rule := range named {
		if slices.Equal(rule.ResourceNames, []string{"capstan-requesters", "capstan-toolapprovals"}) {
			named[i].ResourceNames = []string{"capstan-system-capstan-requesters", "capstan-system-capstan-toolapprovals"}
		}
	}
	return named
}

func TestChartRulesMatchGeneratedRules(t *testing.T) {
	generated, ownRules := generatedRules(t)
	clusterRules := withChartPolicies(generated)
	policyRules := slices.DeleteFunc(slices.Clone(clusterRules), func(r rbacv1.PolicyRule) bool {
		return len(r.ResourceNames) == 0 && !slices.Contains(r.Resources, "requesters")
	})
	if len(policyRules) != 2 {
		t.Fatalf("got %d rules, want one about policies and one about requesters", len(policyRules))
	}
	// withNamespaces adds the permission to find out that a watched namespace was deleted, together with its Role.
	withNamespaces := func(names ...string) []rbacv1.PolicyRule {
		get := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}, ResourceNames: names}
		return append([]rbacv1.PolicyRule{get}, policyRules...)
	}

	t.Run("ClusterWide", func(t *testing.T) {
		objects := renderChart(t)
		if diff := cmp.Diff(clusterRules, managerRole(t, objects).Rules); diff != "" {
			t.Errorf("ClusterRole differs from config/rbac/role.yaml; run go run ./hack/chart (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(ownRules, one[*rbacv1.Role](t, objects).Rules); diff != "" {
			t.Errorf("Role differs from config/rbac/role.yaml; run go run ./hack/chart (-want +got):\n%s", diff)
		}
	})

	t.Run("PolicyOfConfig", func(t *testing.T) {
		objects := renderChart(t, "approvalPolicy.install=false", "requesterPolicy.install=false")
		if diff := cmp.Diff(generated, managerRole(t, objects).Rules); diff != "" {
			t.Errorf("ClusterRole differs from config/rbac/role.yaml, which names the policies of config/policy (-want +got):\n%s", diff)
		}
	})

	t.Run("Namespaced", func(t *testing.T) {
		objects := renderChart(t, "watchNamespaces={helpdesk,research}")
		want := map[string][]rbacv1.PolicyRule{"helpdesk": clusterRules, "research": clusterRules, "capstan-system": ownRules}
		got := map[string][]rbacv1.PolicyRule{}
		for _, role := range every[*rbacv1.Role](objects) {
			got[role.Namespace] = role.Rules
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Roles by namespace (-want +got):\n%s", diff)
		}
		const policyRole, networkRole = "capstan-system-capstan-approval-policy", "capstan-system-capstan-network"
		roles := []string{
			"capstan-system-capstan-agent-author", policyRole, "capstan-system-capstan-approver",
			"capstan-system-capstan-budget-author", "capstan-system-capstan-connection-author", "capstan-system-capstan-metrics-reader",
			networkRole, "capstan-system-capstan-turn-author", "capstan-system-capstan-turn-reader", "capstan-system-capstan-viewer",
		}
		if diff := cmp.Diff(roles, slices.Sorted(slices.Values(clusterRoles(objects)))); diff != "" {
			t.Errorf("names of the ClusterRoles (-want +got); only those of the policy and of the network are for the "+
				"manager, because all other kinds that it reads are namespaced:\n%s", diff)
		}
		own := map[string][]rbacv1.PolicyRule{}
		for _, role := range every[*rbacv1.ClusterRole](objects) {
			if !notForManager(role.Name) {
				own[role.Name] = role.Rules
			}
		}
		network := slices.DeleteFunc(slices.Clone(clusterRules), func(r rbacv1.PolicyRule) bool {
			return !slices.ContainsFunc(r.Resources, func(kind string) bool {
				return kind == "nodes" || kind == "servicecidrs" || kind == "endpointslices"
			})
		})
		wantOwn := map[string][]rbacv1.PolicyRule{policyRole: withNamespaces("helpdesk", "research"), networkRole: network}
		if diff := cmp.Diff(wantOwn, own); diff != "" {
			t.Errorf("the ClusterRoles of the policy and of the network (-want +got):\n%s", diff)
		}
		var bound []string
		for _, binding := range every[*rbacv1.ClusterRoleBinding](objects) {
			bound = append(bound, binding.RoleRef.Name)
		}
		if diff := cmp.Diff([]string{"system:auth-delegator", policyRole, networkRole}, bound); diff != "" {
			t.Errorf("ClusterRoles of the manager, which may only authenticate and authorize readers of journals, get the "+
				"policies, and read the addresses of the cluster (-want +got):\n%s", diff)
		}
	})

	t.Run("NamespacedWithRanges", func(t *testing.T) {
		objects := renderChart(t, "watchNamespaces={helpdesk}", "connections.clusterCIDRs={10.96.0.0/16}")
		if diff := cmp.Diff(withNamespaces("helpdesk"), managerRole(t, objects).Rules); diff != "" {
			t.Errorf("the ClusterRoles of a manager with flags for the ranges of the cluster, want that of the "+
				"policy alone (-want +got):\n%s", diff)
		}
	})

	t.Run("OwnNamespaceWatched", func(t *testing.T) {
		roles := map[string]bool{}
		for _, role := range every[*rbacv1.Role](renderChart(t, "watchNamespaces={capstan-system}")) {
			roles[role.Namespace+"/"+role.Name] = true
		}
		if len(roles) != 2 {
			t.Errorf("got Roles %v, want two of different names: the second would replace the first", roles)
		}
	})

	t.Run("Off", func(t *testing.T) {
		objects := renderChart(t, "rbac.create=false")
		if n := len(every[*rbacv1.ClusterRole](objects)) + len(every[*rbacv1.Role](objects)) +
			len(every[*rbacv1.RoleBinding](objects)); n != 0 {
			t.Errorf("got %d roles and bindings with rbac.create=false, want none", n)
		}
	})
}

// peopleRoles lists the suffixes of the names of the roles for people, which have no bindings.
var peopleRoles = []string{"viewer", "turn-reader", "turn-author", "agent-author", "connection-author", "budget-author", "approver"}

// metricsReader is the suffix of the name of the role for scrapers.
const metricsReader = "capstan-metrics-reader"

// forPeople reports whether a role is one of peopleRoles.
func forPeople(name string) bool {
	return slices.ContainsFunc(peopleRoles, func(end string) bool { return strings.HasSuffix(name, "capstan-"+end) })
}

// notForManager reports whether a role is for people or for scrapers.
func notForManager(name string) bool {
	return forPeople(name) || strings.HasSuffix(name, metricsReader)
}

func clusterRoles(objects []runtime.Object) []string {
	var names []string
	for _, role := range every[*rbacv1.ClusterRole](objects) {
		names = append(names, role.Name)
	}
	return names
}

// managerRole returns the only ClusterRole of the manager.
func managerRole(t *testing.T, objects []runtime.Object) *rbacv1.ClusterRole {
	t.Helper()
	roles := slices.DeleteFunc(every[*rbacv1.ClusterRole](objects), func(r *rbacv1.ClusterRole) bool { return notForManager(r.Name) })
	if len(roles) != 1 {
		t.Fatalf("got %d ClusterRoles of the manager, want one", len(roles))
	}
	return roles[0]
}

// TestRolesForPeople checks that all manifests have the same roles for people. The roles view and edit of Kubernetes
// must not include the roles that read conversations, approve calls or write connections.
// TestCommandsOfAccessPageGiveTeamAccess asks an API server for the permissions of each role.
func TestRolesForPeople(t *testing.T) {
	const aggregate = "rbac.authorization.k8s.io/aggregate-to-"
	source := map[string]*rbacv1.ClusterRole{}
	for _, role := range every[*rbacv1.ClusterRole](renderConfig(t)) {
		if forPeople(role.Name) {
			source[role.Labels["capstan.dev/role"]] = role
		}
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(peopleRoles)), slices.Sorted(maps.Keys(source))); diff != "" {
		t.Fatalf("the labels capstan.dev/role in config/rbac (-want +got):\n%s", diff)
	}
	for _, name := range []string{"turn-reader", "approver", "connection-author"} {
		for _, whole := range []string{"view", "edit"} {
			if source[name].Labels[aggregate+whole] != "" {
				t.Errorf("%s is part of %s, want it only part of admin", name, whole)
			}
		}
	}
	for _, whole := range []string{"view", "edit", "admin"} {
		if source["budget-author"].Labels[aggregate+whole] != "" {
			t.Errorf("budget-author is part of %s, want it part of no other role: users who spend must not raise their limit", whole)
		}
	}
	for name, objects := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			found := 0
			for _, role := range every[*rbacv1.ClusterRole](objects) {
				if !forPeople(role.Name) {
					continue
				}
				found++
				want := source[role.Labels["capstan.dev/role"]]
				if want == nil || !strings.HasSuffix(role.Name, "capstan-"+role.Labels["capstan.dev/role"]) {
					t.Errorf("role %s has the label %q, want the end of its name", role.Name, role.Labels["capstan.dev/role"])
					continue
				}
				if diff := cmp.Diff(want.Rules, role.Rules); diff != "" {
					t.Errorf("rules of %s (-want +got):\n%s", role.Name, diff)
				}
				for _, whole := range []string{"view", "edit", "admin"} {
					if got := role.Labels[aggregate+whole]; got != want.Labels[aggregate+whole] {
						t.Errorf("label %s%s of %s = %q, want %q", aggregate, whole, role.Name, got, want.Labels[aggregate+whole])
					}
				}
			}
			if found != len(peopleRoles) {
				t.Errorf("got %d roles for people, want %d", found, len(peopleRoles))
			}
		})
	}
}

func TestRulesAreLeastPrivilege(t *testing.T) {
	for name, objects := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			var rules []rbacv1.PolicyRule
			for _, role := range every[*rbacv1.ClusterRole](objects) {
				if !forPeople(role.Name) { // another test compares these rules literally
					rules = append(rules, role.Rules...)
				}
			}
			for _, role := range every[*rbacv1.Role](objects) {
				rules = append(rules, role.Rules...)
			}
			if len(rules) == 0 {
				t.Fatal("got no rule at all")
			}
			for _, rule := range rules {
				checkRule(t, rule)
			}
		})
	}
}

// checkRule fails the test for a rule that grants more than the manager may ever need.
func checkRule(t *testing.T, rule rbacv1.PolicyRule) {
	t.Helper()
	for _, list := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs} {
		if slices.Contains(list, "*") {
			t.Errorf("rule %v has a wildcard", rule)
		}
	}
	// The resource requesters exists only in roles. With the verb impersonate on it, the requester policy lets the
	// manager set the requester of a sub-agent's Turn.
	requesters := slices.Equal(rule.APIGroups, []string{"capstan.dev"}) && slices.Equal(rule.Resources, []string{"requesters"}) &&
		slices.Equal(rule.Verbs, []string{"impersonate"})
	for _, verb := range []string{"escalate", "bind", "impersonate", "deletecollection"} {
		if slices.Contains(rule.Verbs, verb) && !requesters {
			t.Errorf("rule %v has the verb %s", rule, verb)
		}
	}
	if slices.Contains(rule.Resources, "secrets") && !slices.Equal(rule.Verbs, []string{"get"}) {
		t.Errorf("verbs on Secrets = %v, want get only: with list or watch every Secret of the namespace can be read", rule.Verbs)
	}
	foreign := func(name string) bool {
		return !strings.HasSuffix(name, "capstan-toolapprovals") && !strings.HasSuffix(name, "capstan-requesters")
	}
	if slices.Contains(rule.APIGroups, "admissionregistration.k8s.io") && (!slices.Equal(rule.Verbs, []string{"get"}) ||
		len(rule.ResourceNames) == 0 || slices.ContainsFunc(rule.ResourceNames, foreign)) {
		t.Errorf("rule %v grants more than get on the policies that the manager relies on and on their bindings", rule)
	}
	// The manager creates only Turns, for sub-agents. It patches only Turns, to cancel those of sub-agents: the
	// rest of their spec is immutable.
	userWritten := []string{"configmaps", "agents", "modelproviders", "promptprofiles", "toolapprovals", "toolservers"}
	if slices.Contains(rule.Resources, "turns") && (len(rule.Resources) > 1 || slices.Contains(rule.Verbs, "update")) {
		t.Errorf("rule %v has the verb update or also names other kinds, want a rule for Turns alone and without update", rule)
	}
	if slices.ContainsFunc(rule.Resources, func(r string) bool { return slices.Contains(userWritten, r) }) {
		for _, verb := range []string{"create", "update", "patch"} {
			if slices.Contains(rule.Verbs, verb) {
				t.Errorf("rule %v may change a spec or a ConfigMap, which only users may write", rule)
			}
		}
	}
}

func TestBindingsJoinRolesAndServiceAccount(t *testing.T) {
	for name, objects := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			account := subjectOf(t, objects)
			known := map[string]bool{}
			for _, role := range clusterRoles(objects) {
				known["ClusterRole/"+role] = !notForManager(role)
			}
			if strings.Contains(name, "Namespaced") {
				known["ClusterRole/system:auth-delegator"] = true // every cluster has it
			}
			for _, role := range every[*rbacv1.Role](objects) {
				known["Role/"+role.Namespace+"/"+role.Name] = true
			}
			check := func(role string, subjects []rbacv1.Subject) {
				if !known[role] {
					t.Errorf("a binding names %s, which is already bound or does not exist", role)
				}
				delete(known, role)
				if diff := cmp.Diff([]rbacv1.Subject{account}, subjects); diff != "" {
					t.Errorf("subjects of the binding to %s (-want +got):\n%s", role, diff)
				}
			}
			for _, binding := range every[*rbacv1.ClusterRoleBinding](objects) {
				check("ClusterRole/"+binding.RoleRef.Name, binding.Subjects)
			}
			for _, binding := range every[*rbacv1.RoleBinding](objects) {
				check("Role/"+binding.Namespace+"/"+binding.RoleRef.Name, binding.Subjects)
			}
			for role, used := range known {
				if used {
					t.Errorf("%s has no binding", role)
				}
			}
		})
	}
}
