package manifest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manifest"
)

const (
	toolServer = `apiVersion: capstan.dev/v1alpha1
kind: ToolServer
metadata: {name: tickets}
spec:
  type: MCP
  mcp: {url: "http://tickets.tools:8080/mcp"}
  tools: [{name: close_ticket, effect: Destructive}]
`
	toolApproval = `apiVersion: capstan.dev/v1alpha1
kind: ToolApproval
metadata: {name: first-1}
spec: {turnRef: {name: first}, turnUID: u, requestID: r, step: 1, callID: c, toolName: t, ` +
		`schemaHash: cd, argumentsHash: ab, decision: Approved, decidedBy: ada}
`
)

// withTools returns the Agent with additional text in its spec.
func withTools(more string) string {
	return strings.Replace(agent, "{promptProfileRef", "{"+more+", promptProfileRef", 1)
}

func TestToolServer(t *testing.T) {
	t.Parallel()
	set := loaded(t, toolServer)
	got, ok := set.ToolServer("default", "tickets")
	if !ok || got.Spec.MCP.URL != "http://tickets.tools:8080/mcp" || got.Spec.CallTimeoutSeconds != 45 ||
		got.Spec.ConnectTimeoutSeconds != 5 {
		t.Errorf("ToolServer returned %+v, %t: want the spec of the manifest, with its defaults", got, ok)
	}
	if got.Status.ObservedGeneration != 0 || len(got.Status.Conditions) != 0 {
		t.Errorf("the status is %+v, want none: no controller has processed it", got.Status)
	}
	if _, ok := set.ToolServer("helpdesk", "tickets"); ok {
		t.Error("the ToolServer is also in another namespace")
	}
	if names := set.Names("ToolServer"); !cmp.Equal(names, []string{"default/tickets"}) {
		t.Errorf("Names(ToolServer) returned %q", names)
	}
	below := loaded(t, strings.Replace(toolServer, "8080", "9090", 1))
	if over, _ := set.Over(below).ToolServer("default", "tickets"); over != got {
		t.Error("Over returned the ToolServer of the base")
	}
	if _, ok := loaded(t, turn).Over(below).ToolServer("default", "tickets"); !ok {
		t.Error("the set lacks the ToolServer, which only the base has")
	}
}

func TestSecretFromEnvInNamespaceOfToolServer(t *testing.T) {
	t.Parallel()
	set := loaded(t, strings.Replace(toolServer, "{name: tickets}", "{name: tickets, namespace: helpdesk}", 1))
	if err := set.SetSecretFromEnv("tickets/token=KEY", func(string) (string, bool) { return "value", true }); err != nil {
		t.Fatal(err)
	}
	if _, ok := set.Secret("helpdesk", "tickets"); !ok {
		t.Error("want the Secret in the namespace of the ToolServer, which is the only object there")
	}
}

func TestBudgetIsValidatedAndIgnored(t *testing.T) {
	t.Parallel()
	const budget = "apiVersion: capstan.dev/v1alpha1\nkind: Budget\nmetadata: {name: day}\nspec: {period: Day, limits: {tokens: 9}}\n"
	want := []string{"-:1: Budget default/day: ignored: a Budget limits the Turns of a cluster, whose store counts them; " +
		"for one Turn, use its limits"}
	if diff := cmp.Diff(want, loaded(t, budget, turn).Ignored); diff != "" {
		t.Errorf("Ignored (-want +got):\n%s", diff)
	}
}

func TestToolApprovalIsValidatedAndIgnored(t *testing.T) {
	t.Parallel()
	want := []string{"-:1: ToolApproval default/first-1: ignored: a ToolApproval decides about a Turn in a " +
		"cluster; capstan run asks for decisions, or takes --approve"}
	if diff := cmp.Diff(want, loaded(t, toolApproval, turn).Ignored); diff != "" {
		t.Errorf("Ignored (-want +got):\n%s", diff)
	}
}

func TestInvalidToolsAreRejected(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, text, want string }{
		"no endpoint": {"an MCP server needs a URL", strings.Replace(toolServer,
			`  mcp: {url: "http://tickets.tools:8080/mcp"}`+"\n", "", 1), "mcp must be given for a server of type MCP"},
		"credentials in a URL": {
			"a URL must not contain a token",
			strings.Replace(toolServer, "tickets.tools", "u:p@tickets.tools", 1), "url must not contain credentials",
		},
		"unknown field": {"a misspelled field is reported", toolServer + "  tool: []\n", "spec.tool: unknown field"},
		"unknown decision": {
			"a decision has one of two values", strings.Replace(toolApproval, "Approved", "Yes", 1),
			"spec.decision: Unsupported value",
		},
		"a tool of neither": {
			"a tool belongs to a server or an Agent", withTools("tools: [{maxCalls: 3}]"),
			"exactly one of serverRef and agentRef must be given",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := manifest.Load(t.Context(), []string{"-"}, manifest.Options{Stdin: strings.NewReader(tc.text)})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: error = %v, want one with %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestToolPolicyGetsDefaults(t *testing.T) {
	t.Parallel()
	set := loaded(t, withTools("tools: [{serverRef: {name: tickets}, allow: [get_*]}], toolPolicy: {effects: ReadOnly}"))
	got, ok := set.Agent("default", "support")
	want := v1alpha1.ToolPolicy{
		ArgumentValidation: v1alpha1.ArgumentValidationEnforce, Selection: v1alpha1.ToolSelectionDeclared,
		MaxToolsPerTurn: v1alpha1.DefaultMaxToolsPerTurn, Execution: v1alpha1.ToolExecutionParallel,
		Effects: v1alpha1.AllowedEffectsReadOnly,
	}
	if !ok || got.Spec.ToolPolicy == nil {
		t.Fatalf("Agent returned %+v, %t", got, ok)
	}
	if diff := cmp.Diff(want, *got.Spec.ToolPolicy); diff != "" {
		t.Errorf("toolPolicy (-want +got):\n%s", diff)
	}
}
