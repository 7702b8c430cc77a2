package charts_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// commandsOf returns the code blocks in the language sh of a page, which are commands for a person to run.
func commandsOf(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		commands = append(commands, block[1])
	}
	if len(commands) == 0 {
		t.Fatalf("%s has no commands", page)
	}
	return commands
}

// shell runs a script as an administrator of the cluster.
func (c cluster) shell(t *testing.T, script string) {
	t.Helper()
	c.shellIn(t, ".", script)
}

// shellIn is like shell, but runs the script in a directory and returns the output.
func (c cluster) shellIn(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "PATH="+filepath.Dir(kubectlPath)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

func (c cluster) clients(t *testing.T) kubernetes.Interface {
	t.Helper()
	clients, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// groupPermissions returns the verbs that a group may use on each resource of a namespace.
func groupPermissions(t *testing.T, clients kubernetes.Interface, namespace, group string) map[string][]string {
	t.Helper()
	return permissionsOf(t, clients, namespace, "ada", group)
}

func permissionsOf(t *testing.T, clients kubernetes.Interface, namespace, user, group string) map[string][]string {
	t.Helper()
	resources := []string{
		"agents", "budgets", "modelproviders", "promptprofiles", "sessions", "toolapprovals", "toolservers", "turns", "turns/log",
		"turns/feedback", "turns/memories", "turns/records", "turns/status",
		"secrets", "configmaps", "events", "pods", "serviceaccounts/token", "rolebindings",
	}
	groups := map[string]string{
		"secrets": "", "configmaps": "", "events": "", "pods": "", "serviceaccounts/token": "",
		"rolebindings": rbacv1.GroupName,
	}
	permissions := map[string][]string{}
	for _, resource := range resources {
		name, subresource, _ := strings.Cut(resource, "/")
		apiGroup, found := groups[resource]
		if !found {
			apiGroup = "capstan.dev"
		}
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
			review, err := clients.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
				&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					User: user, Groups: []string{group, "system:authenticated"},
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: namespace, Verb: verb, Group: apiGroup,
						Resource: name, Subresource: subresource,
					},
				}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed {
				permissions[resource] = append(permissions[resource], verb)
			}
		}
	}
	return permissions
}

// TestCommandsOfAccessPageGiveTeamAccess runs the commands of docs/access.md. Then it asks a real API server for the
// permissions of each group.
func TestCommandsOfAccessPageGiveTeamAccess(t *testing.T) {
	c := startCluster(t)
	c.run(t, kubectlPath, "create", "namespace", "capstan-system")
	c.run(t, kubectlPath, "create", "namespace", "helpdesk")
	c.run(t, helmPath, "upgrade", "--install", "capstan", "capstan", "--namespace", "capstan-system")
	c.run(t, kubectlPath, "wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=capstan", "--timeout=30s")
	blocks := commandsOf(t, "../docs/access.md")
	if n := strings.Count(strings.TrimSpace(blocks[0]), "\n") + 1; n != 3 {
		t.Errorf("the first code block of docs/access.md has %d commands, want the 3 that give a team access:\n%s", n, blocks[0])
	}
	for _, block := range blocks {
		c.shell(t, block)
	}

	read := []string{"get", "list", "watch"}
	write := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	viewer := func(writes ...string) map[string][]string {
		permissions := map[string][]string{"events": read}
		for _, kind := range []string{
			"agents", "budgets", "modelproviders", "promptprofiles", "sessions", "toolapprovals", "toolservers", "turns",
		} {
			permissions[kind] = read
		}
		for _, kind := range writes {
			permissions[kind] = write
		}
		return permissions
	}
	get := []string{"get"}
	author := viewer("turns", "sessions")
	author["turns/feedback"] = []string{"create"}
	want := map[string]map[string][]string{
		"visitors":         viewer(),
		"helpdesk":         author,
		"helpdesk-authors": viewer("agents", "promptprofiles"),
		"platform":         viewer("modelproviders", "toolservers", "budgets"),
		// the permissions of the ServiceAccounts whose tokens auditors use are checked below
		"auditors":       {"turns": get, "turns/log": get, "turns/memories": {"list"}, "turns/records": {"list"}},
		"helpdesk-leads": {"turns": read, "turns/log": get, "toolapprovals": {"get", "list", "create"}},
	}
	clients := c.clients(t)
	for group, permissions := range want {
		if diff := cmp.Diff(permissions, groupPermissions(t, clients, "helpdesk", group)); diff != "" {
			t.Errorf("permissions of group %s in its namespace (-want +got):\n%s", group, diff)
		}
		if permissions := groupPermissions(t, clients, "default", group); len(permissions) > 0 {
			t.Errorf("group %s has permissions in another namespace: %v, want none", group, permissions)
		}
	}
	// Neither ServiceAccount may give feedback: all users of certificates would share it.
	for account, want := range map[string]struct {
		permissions map[string][]string
		groups      map[string]bool // whether they may create tokens
	}{
		"capstan-turn-reader": {
			map[string][]string{"turns": get, "turns/log": get},
			map[string]bool{"auditors": true, "helpdesk-leads": true, "helpdesk": false, "visitors": false},
		},
		"capstan-record-reader": {
			map[string][]string{"turns/memories": {"list"}, "turns/records": {"list"}},
			map[string]bool{"auditors": true, "helpdesk-leads": false, "helpdesk": false, "visitors": false},
		},
	} {
		for group, want := range want.groups {
			review, err := clients.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
				&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					User: "ada", Groups: []string{group},
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: "helpdesk", Verb: "create",
						Resource: "serviceaccounts", Subresource: "token", Name: account,
					},
				}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed != want {
				t.Errorf("group %s may create tokens of %s: %v, want %v", group, account, review.Status.Allowed, want)
			}
		}
		if diff := cmp.Diff(want.permissions, permissionsOf(t, clients, "helpdesk", "system:serviceaccount:helpdesk:"+account,
			"system:serviceaccounts")); diff != "" {
			t.Errorf("permissions of the ServiceAccount %s (-want +got):\n%s", account, diff)
		}
		if permissions := permissionsOf(t, clients, "default", "system:serviceaccount:helpdesk:"+account,
			"system:serviceaccounts"); len(permissions) > 0 {
			t.Errorf("the ServiceAccount %s has permissions in another namespace: %v, want none", account, permissions)
		}
	}
	t.Run("Team", func(t *testing.T) { c.checkTeam(t) })
	t.Run("Aggregation", func(t *testing.T) { checkAggregation(t, c, clients) })
}

// checkTeam checks that each role of the team may do its own work, and not the work of another role.
func (c cluster) checkTeam(t *testing.T) {
	const agent, turn, server, approval,
		turnWithConfigMap = `{apiVersion: capstan.dev/v1alpha1, kind: Agent, metadata: {name: a}, spec: ` +
		`{promptProfileRef: {name: p}, models: [{providerRef: {name: m}, model: x}]}}`,
		`{apiVersion: capstan.dev/v1alpha1, kind: Turn, metadata: {name: t}, spec: {agentRef: {name: a}, message: Hello}}`,
		`{apiVersion: capstan.dev/v1alpha1, kind: ToolServer, metadata: {name: s}, spec: {type: MCP, mcp: {url: ` +
			`"https://tools.example.com/mcp"}, credentialsRef: {name: %s, key: apiKey}}}`,
		`{apiVersion: capstan.dev/v1alpha1, kind: ToolApproval, metadata: {name: d}, spec: {turnRef: {name: t}, ` +
			`turnUID: 2d0c6a54-6f7e-4c56-8c1b-1b1f9c1a7e33, requestID: r, step: 1, callID: c, toolName: close_ticket, schemaHash: ` +
			`add37dd632c5fd2c4f26a37f11cfd6ab0266e13d4835e7f51a98af1d00ef8859, argumentsHash: ` +
			`add37dd632c5fd2c4f26a37f11cfd6ab0266e13d4835e7f51a98af1d00ef8859, decision: Approved, decidedBy: %s}}`,
		`{apiVersion: capstan.dev/v1alpha1, kind: Turn, metadata: {name: u}, spec: {agentRef: {name: a}, ` +
			`message: Hello, context: {contributions: [{name: prices, configMapKeyRef: {name: prices, key: text}}]}}}`
	for name, tc := range map[string]struct {
		user, group, manifest string
		// wantError is part of the API server's error, or empty if the request must succeed.
		wantError string
	}{
		"a Turn author creates a Turn":         {"ada", "helpdesk", turn, ""},
		"a visitor creates no Turn":            {"vic", "visitors", turn, "cannot create resource"},
		"a Turn author creates no Agent":       {"ada", "helpdesk", agent, "cannot create resource"},
		"a Turn author refers to no ConfigMap": {"ada", "helpdesk", turnWithConfigMap, `may not get ConfigMap "prices"`},
		"a Turn author does not approve":       {"ada", "helpdesk", fmt.Sprintf(approval, "ada"), "cannot create resource"},
		"an Agent author creates an Agent":     {"bob", "helpdesk-authors", agent, ""},
		"an Agent author creates no Turn":      {"bob", "helpdesk-authors", turn, "cannot create resource"},
		"an approver decides":                  {"eve", "helpdesk-leads", fmt.Sprintf(approval, "eve"), ""},
		"an approver does not decide as another user": {
			"eve", "helpdesk-leads", fmt.Sprintf(approval, "ada"),
			`spec.decidedBy must be "eve"`,
		},
		"an approver creates no Turn":            {"eve", "helpdesk-leads", turn, "cannot create resource"},
		"an auditor creates no Turn":             {"max", "auditors", turn, "cannot create resource"},
		"the platform team refers to its Secret": {"pat", "platform", fmt.Sprintf(server, "helpdesk-model"), ""},
		"the platform team refers to no Secret of others": {
			"pat", "platform", fmt.Sprintf(server, "payroll"), `may not get Secret "payroll"`,
		},
		"the platform team creates no Agent": {"pat", "platform", agent, "cannot create resource"},
		"an Agent author creates no ToolServer": {
			"bob", "helpdesk-authors", fmt.Sprintf(server, "helpdesk-model"),
			"cannot create resource",
		},
		"a Turn author creates no Turn in another namespace": {
			"ada", "helpdesk",
			strings.Replace(turn, "name: t}", "name: t, namespace: default}", 1), "cannot create resource",
		},
		"an approver approves nothing in another namespace": {
			"eve", "helpdesk-leads",
			strings.Replace(fmt.Sprintf(approval, "eve"), "name: d}", "name: d, namespace: default}", 1), "cannot create resource",
		},
		"a user without a team creates no Turn": {"sam", "strangers", turn, "cannot create resource"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "object.yaml")
			if err := os.WriteFile(file, []byte(tc.manifest), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{
				"--kubeconfig", c.Kubeconfig, "create", "--dry-run=server", "-f", file, "--as", tc.user,
				"--as-group", tc.group,
			}
			if !strings.Contains(tc.manifest, "namespace:") {
				args = append(args, "-n", "helpdesk")
			}
			_, err := output(t.Context(), kubectlPath, args...)
			if (err == nil) != (tc.wantError == "") || (err != nil && !strings.Contains(err.Error(), tc.wantError)) {
				t.Errorf("create = %v, want an error with %q, or none if that is empty", err, tc.wantError)
			}
		})
	}
}

// checkAggregation checks which roles of Capstan belong to view, edit and admin, the roles that the API server
// provides. The controller that aggregates roles does not run here, so checkAggregation evaluates the selectors itself.
func checkAggregation(t *testing.T, c cluster, clients kubernetes.Interface) {
	aggregated := func() map[string][]string {
		parts := map[string][]string{}
		for _, whole := range []string{"view", "edit", "admin"} {
			role, err := clients.RbacV1().ClusterRoles().Get(t.Context(), whole, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			// admin also selects edit, and edit selects view, by other labels. Count only the roles of Capstan.
			for _, selector := range role.AggregationRule.ClusterRoleSelectors {
				selector.MatchLabels["app.kubernetes.io/part-of"] = "capstan"
				list, err := clients.RbacV1().ClusterRoles().List(t.Context(),
					metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&selector)})
				if err != nil {
					t.Fatal(err)
				}
				for _, part := range list.Items {
					parts[whole] = append(parts[whole], part.Labels["capstan.dev/role"])
				}
			}
			slices.Sort(parts[whole])
		}
		return parts
	}
	want := map[string][]string{
		"view": {"viewer"}, "edit": {"agent-author", "turn-author", "viewer"},
		"admin": {"agent-author", "approver", "connection-author", "turn-author", "turn-reader", "viewer"},
	}
	if diff := cmp.Diff(want, aggregated()); diff != "" {
		t.Errorf("the parts of view, edit and admin (-want +got):\n%s", diff)
	}
	c.run(t, helmPath, "upgrade", "capstan", "capstan", "--namespace", "capstan-system", "--set", "rbac.aggregate=false")
	if parts := aggregated(); len(parts["view"])+len(parts["edit"])+len(parts["admin"]) > 0 {
		t.Errorf("with rbac.aggregate=false the parts of view, edit and admin are %v, want none", parts)
	}
}
