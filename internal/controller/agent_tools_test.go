package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// newServer returns a ToolServer that has listed these tools.
func newServer(name string, tools ...v1alpha1.DiscoveredTool) *v1alpha1.ToolServer {
	found := metav1.NewTime(now)
	var declared []v1alpha1.ToolDeclaration // a status grants no effect that the spec does not declare
	for _, t := range tools {
		declared = append(declared, v1alpha1.ToolDeclaration{Name: t.Name, Effect: t.Effect, Role: t.Role})
	}
	return &v1alpha1.ToolServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: name, Generation: 1},
		Spec:       v1alpha1.ToolServerSpec{Tools: declared},
		Status: v1alpha1.ToolServerStatus{
			ObservedGeneration: 1, LastDiscoveryTime: &found, ToolCount: int32(len(tools)), Tools: tools,
			Conditions: []metav1.Condition{readyAs(metav1.ConditionTrue, v1alpha1.ReasonReady)},
		},
	}
}

func readyAs(status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, ObservedGeneration: 1}
}

// notReady makes a ToolServer not ready for this reason.
func notReady(reason string) func(*v1alpha1.ToolServer) {
	return func(s *v1alpha1.ToolServer) {
		s.Status.Conditions = []metav1.Condition{readyAs(metav1.ConditionFalse, reason)}
	}
}

// neverReached changes a ToolServer as if it had never been reached.
func neverReached(reason string) func(*v1alpha1.ToolServer) {
	return func(s *v1alpha1.ToolServer) {
		s.Status.LastDiscoveryTime, s.Status.ToolCount, s.Status.Tools = nil, 0, nil
		notReady(reason)(s)
	}
}

// createdAgo sets the age of a ToolServer.
func createdAgo(d time.Duration) func(*v1alpha1.ToolServer) {
	return func(s *v1alpha1.ToolServer) { s.CreationTimestamp = metav1.NewTime(now.Add(-d)) }
}

func altered[T client.Object](object T, how ...func(T)) T {
	for _, f := range how {
		f(object)
	}
	return object
}

func toolOf(name string, effect v1alpha1.ToolEffect) v1alpha1.DiscoveredTool {
	return v1alpha1.DiscoveredTool{Name: name, Effect: effect, Role: v1alpha1.ToolRoleOther, SchemaHash: "a1b2"}
}

// unusableTool returns a tool that no model can be offered.
func unusableTool(name string) v1alpha1.DiscoveredTool {
	t := toolOf(name, v1alpha1.ToolEffectReadOnly)
	t.Unusable = `the type of the schema is not "object"`
	return t
}

func packOf(name string) v1alpha1.DiscoveredTool {
	return v1alpha1.DiscoveredTool{Name: name, Effect: v1alpha1.ToolEffectReadOnly, Role: v1alpha1.ToolRoleContextPack}
}

func toolsNamed(n int, format string) []v1alpha1.DiscoveredTool {
	all := make([]v1alpha1.DiscoveredTool, n)
	for i := range all {
		all[i] = toolOf(fmt.Sprintf(format, i), v1alpha1.ToolEffectReadOnly)
	}
	return all
}

func ofServer(name string, change ...func(*v1alpha1.AgentTool)) v1alpha1.AgentTool {
	entry := v1alpha1.AgentTool{ServerRef: &v1alpha1.SharedReference{Name: name}}
	for _, f := range change {
		f(&entry)
	}
	return entry
}

func ofAgent(name string, change ...func(*v1alpha1.AgentTool)) v1alpha1.AgentTool {
	entry := v1alpha1.AgentTool{AgentRef: &v1alpha1.SharedReference{Name: name}}
	for _, f := range change {
		f(&entry)
	}
	return entry
}

func allow(patterns ...string) func(*v1alpha1.AgentTool) {
	return func(t *v1alpha1.AgentTool) { t.Allow = patterns }
}

func approved(patterns ...string) func(*v1alpha1.AgentTool) {
	return func(t *v1alpha1.AgentTool) { t.RequireApproval = patterns }
}

// subAgent returns an Agent with these entries in spec.tools.
func subAgent(name string, tools ...v1alpha1.AgentTool) *v1alpha1.Agent {
	return &v1alpha1.Agent{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: name, Generation: 1}, Spec: v1alpha1.AgentSpec{Tools: tools},
	}
}

// reconcileTools returns the condition of an Agent's tools as "reason: message", and the tools that it is offered as
// "name source effect role". A star marks a tool that requires approval.
func reconcileTools(t *testing.T, a *v1alpha1.Agent, others ...client.Object) (message string, holds bool, offered []string) {
	t.Helper()
	clock := func() time.Time { return now }
	r := &AgentReconciler{Client: inMemory(t, append(others, a)...), Now: clock, ServerClock: clock, ProbeInterval: time.Minute}
	found, exposed, err := r.resolveTools(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exposed {
		line := fmt.Sprintf("%s %s%s %s %s", e.Name, e.Server, e.Agent, e.Effect, e.Role)
		if e.RequiresApproval {
			line += " *"
		}
		offered = append(offered, line)
	}
	return found.reason + ": " + found.message, found.holds, offered
}

func TestToolsOfAnAgent(t *testing.T) {
	tickets := func() *v1alpha1.ToolServer {
		return newServer("tickets", toolOf("close_ticket", v1alpha1.ToolEffectDestructive),
			toolOf("search_tickets", v1alpha1.ToolEffectReadOnly))
	}
	const (
		search = "search_tickets tickets ReadOnly Other"
		closes = "close_ticket tickets Destructive Other"
	)
	for name, tc := range map[string]struct {
		reason string
		agent  *v1alpha1.Agent
		others []client.Object
		want   string
		lacks  bool
		offers []string
	}{
		"none": {
			"an agent need not have tools", subAgent("desk"), nil, "Resolved: the agent names no tools", false, nil,
		},
		"everything exists": {
			"each tool is listed once, in the server's order, with its approval",
			subAgent("desk", ofServer("tickets", approved("close_*"))),
			[]client.Object{tickets()},
			"Resolved: all tool servers and sub-agents exist", false,
			[]string{closes + " *", search},
		},
		"a server that is missing": {
			"its tools are unknown; the others are still listed",
			subAgent("desk", ofServer("gone"), ofServer("tickets", allow("search_*"))),
			[]client.Object{tickets()},
			`ToolServerNotFound: ToolServer "gone" does not exist`, true,
			[]string{search},
		},
		"a sub-agent that is missing": {
			"it cannot be called", subAgent("desk", ofAgent("gone")), nil,
			`SubAgentNotFound: sub-agent "gone" does not exist`, true, nil,
		},
		"both missing": {
			"the message names both, and the reason is that of the servers",
			subAgent("desk", ofAgent("a"), ofServer("b"), ofServer("b")), nil,
			`ToolServerNotFound: ToolServer "b" does not exist; sub-agent "a" does not exist`, true, nil,
		},
		"a server that is down": {
			"it may be back when a Turn calls it, and its tools are known", subAgent("desk", ofServer("tickets", allow("search_*"))),
			[]client.Object{altered(tickets(), notReady(v1alpha1.ReasonEndpointUnreachable))},
			`Resolved: ToolServer "tickets" is not ready (EndpointUnreachable): calls of its tools fail until it is`, false,
			[]string{search},
		},
		"a server that is not checked yet": {
			"turns wait for the first check, and patterns are not checked before",
			subAgent("desk", ofServer("new", allow("x")), ofServer("new")),
			[]client.Object{&v1alpha1.ToolServer{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "new"}}},
			`ToolServerNotReady: ToolServer "new" is not checked yet`, true, nil,
		},
		"a server that was never reached": {
			"turns wait only for the first check, and then run without its tools", subAgent("desk", ofServer("new", allow("x"))),
			[]client.Object{altered(newServer("new"), neverReached(v1alpha1.ReasonEndpointUnreachable))},
			`Resolved: ToolServer "new" is not ready (EndpointUnreachable) and was never reached: turns run without its tools until it is`,
			false, nil,
		},
		"a new server that was not reached yet": {
			"its Pods may still be starting, and a turn keeps its first tool list", subAgent("desk", ofServer("new", allow("x"))),
			[]client.Object{altered(newServer("new"), neverReached(v1alpha1.ReasonEndpointUnreachable), createdAgo(119*time.Second))},
			`ToolServerNotReady: ToolServer "new" is new and does not answer (EndpointUnreachable): turns wait for it until it is 2m0s old`,
			true, nil,
		},
		"a server that was new for two minutes": {
			"it is unreachable", subAgent("desk", ofServer("new", allow("x"))),
			[]client.Object{altered(newServer("new"), neverReached(v1alpha1.ReasonEndpointUnreachable), createdAgo(2*time.Minute))},
			`Resolved: ToolServer "new" is not ready (EndpointUnreachable) and was never reached: turns run without its tools until it is`,
			false, nil,
		},
		"a new server at an address that is refused": {
			"a Pod that starts does not change that", subAgent("desk", ofServer("new", allow("x"))),
			[]client.Object{altered(newServer("new"), neverReached(v1alpha1.ReasonAddressRefused), createdAgo(time.Second))},
			`Resolved: ToolServer "new" is not ready (AddressRefused) and was never reached: turns run without its tools until it is`,
			false, nil,
		},
		"a new server that was reached before": {
			"its tools are known", subAgent("desk", ofServer("tickets", allow("search_*"))),
			[]client.Object{altered(tickets(), notReady(v1alpha1.ReasonEndpointUnreachable), createdAgo(time.Second))},
			`Resolved: ToolServer "tickets" is not ready (EndpointUnreachable): calls of its tools fail until it is`, false,
			[]string{search},
		},
		"a corrected server that was never reached": {
			"the corrected address may work", subAgent("desk", ofServer("new")),
			[]client.Object{altered(newServer("new"), neverReached(v1alpha1.ReasonEndpointUnreachable),
				func(s *v1alpha1.ToolServer) { s.Generation++ })},
			`ToolServerNotReady: ToolServer "new" is not checked yet`, true, nil,
		},
		"a server that lacks its Secret": {
			"it could not be asked: its Secret may be applied later", subAgent("desk", ofServer("new")),
			[]client.Object{altered(newServer("new"), neverReached(v1alpha1.ReasonSecretNotFound))},
			`ToolServerNotReady: the tools of ToolServer "new" are not known (SecretNotFound)`, true, nil,
		},
		"a changed server whose tools are known": {
			"each turn asks the server itself, and uses the known tools if that fails",
			subAgent("desk", ofServer("tickets", allow("search_*"))),
			[]client.Object{altered(tickets(), notReady(v1alpha1.ReasonSecretNotFound),
				func(s *v1alpha1.ToolServer) { s.Generation++ })},
			`Resolved: ToolServer "tickets" is not ready (SecretNotFound): calls of its tools fail until it is`, false,
			[]string{search},
		},
		"tools that no model can be offered": {
			"they are not offered, and the message counts the allowed ones; a pattern that matches one is not misspelt",
			subAgent("desk", ofServer("odd", allow("a*", "good", "bad"), approved("bad"))),
			[]client.Object{newServer("odd", unusableTool("arr"), unusableTool("array"), unusableTool("bad"),
				toolOf("good", v1alpha1.ToolEffectReadOnly), unusableTool("worse"))},
			`Resolved: models cannot be offered 3 of the tools of ToolServer "odd": see its status.tools[].unusable`, false,
			[]string{"good odd ReadOnly Other"},
		},
		"patterns that match nothing": {
			"a misspelt requireApproval lets calls through without approval",
			subAgent("desk", ofServer("tickets", allow("search_*", "find_*"), approved("Close_ticket"))),
			[]client.Object{tickets()},
			`Resolved: allow "find_*" matches no tool of ToolServer "tickets"; requireApproval "Close_ticket" ` +
				`matches no tool of ToolServer "tickets"`,
			false,
			[]string{search},
		},
		"more tools than are listed": {
			"a pattern may match a tool that is not listed", subAgent("desk", ofServer("tickets", allow("search_*", "find_*"))),
			[]client.Object{altered(tickets(), func(s *v1alpha1.ToolServer) { s.Status.ToolCount = 300 })},
			"Resolved: all tool servers and sub-agents exist", false,
			[]string{search},
		},
		"two servers with tools of the same name": {
			"both names get their server as a prefix", subAgent("desk", ofServer("a"), ofServer("b")),
			[]client.Object{
				newServer("a", toolOf("find", v1alpha1.ToolEffectReadOnly)),
				newServer("b", toolOf("find", v1alpha1.ToolEffectIdempotent)),
			},
			"Resolved: all tool servers and sub-agents exist", false,
			[]string{"a_find a ReadOnly Other", "b_find b Idempotent Other"},
		},
		"a context pack": {
			"it is listed after the tools that the model is offered", subAgent("desk", ofServer("a")),
			[]client.Object{newServer("a", packOf("notes"), toolOf("z", v1alpha1.ToolEffectReadOnly))},
			"Resolved: all tool servers and sub-agents exist", false,
			[]string{"z a ReadOnly Other", "notes a ReadOnly ContextPack"},
		},
		"too many context packs": {
			"only the first four are called", subAgent("desk", ofServer("a")),
			[]client.Object{newServer("a", packOf("p1"), packOf("p2"), packOf("p3"), packOf("p4"), packOf("p5"))},
			"Resolved: only the first 4 tools of the role ContextPack are called", false,
			[]string{"p1 a ReadOnly ContextPack", "p2 a ReadOnly ContextPack", "p3 a ReadOnly ContextPack", "p4 a ReadOnly ContextPack"},
		},
		"a sub-agent": {
			"its name is valid for a model, and it may require approval",
			subAgent("desk", ofAgent("research.team", approved("*"))),
			[]client.Object{subAgent("research.team")},
			"Resolved: all tool servers and sub-agents exist", false,
			[]string{"research_team research.team Idempotent Other *"},
		},
		"a sub-agent under another name": {
			"a requireApproval pattern with the Agent's name matches nothing", subAgent("desk",
				ofAgent("research", approved("research"), func(e *v1alpha1.AgentTool) { e.Name = "ask" })),
			[]client.Object{subAgent("research")},
			`Resolved: requireApproval "research" matches no tool of sub-agent "research"`, false,
			[]string{"ask research Idempotent Other"},
		},
		"itself": {
			"it is allowed, and the message says so", subAgent("desk", ofAgent("desk")), nil,
			"Resolved: the agent names itself as a sub-agent: limits.maxDepth bounds how deep that goes", false,
			[]string{"desk desk Idempotent Other"},
		},
		"a cycle": {
			"it is allowed, and the message says so for any length", subAgent("desk", ofAgent("a")),
			[]client.Object{subAgent("a", ofAgent("b")), subAgent("b", ofAgent("b"), ofAgent("gone"), ofAgent("desk"))},
			`Resolved: sub-agent "a" leads back to this agent: limits.maxDepth bounds how deep that goes`, false,
			[]string{"a a Idempotent Other"},
		},
		"a cycle of other agents": {
			"it does not include this agent", subAgent("desk", ofAgent("a")),
			[]client.Object{subAgent("a", ofAgent("a"))},
			"Resolved: all tool servers and sub-agents exist", false,
			[]string{"a a Idempotent Other"},
		},
		"no depth": {
			"an agent without depth has no sub-agents", altered(subAgent("desk", ofAgent("a")), func(a *v1alpha1.Agent) {
				a.Spec.Limits = &v1alpha1.Limits{MaxDepth: new(int32(0))}
			}),
			[]client.Object{subAgent("a")},
			`Resolved: sub-agent "a" is not offered: limits.maxDepth is 0`, false, nil,
		},
		"no descendants": {
			"an agent without descendants has no sub-agents", altered(subAgent("desk", ofAgent("a")), func(a *v1alpha1.Agent) {
				a.Spec.Limits = &v1alpha1.Limits{MaxDescendants: new(int32(0))}
			}),
			[]client.Object{subAgent("a")},
			`Resolved: sub-agent "a" is not offered: limits.maxDescendants is 0`, false, nil,
		},
		"too many tools": {
			"the first tools are offered, and the pinned ones", altered(subAgent("desk", ofServer("a")), func(a *v1alpha1.Agent) {
				a.Spec.PromptProfileRef.Name = "house"
				a.Spec.ToolPolicy = &v1alpha1.ToolPolicy{MaxToolsPerTurn: 2}
			}),
			[]client.Object{
				newServer("a", toolsNamed(9, "t%d")...),
				houseProfile(func(p *v1alpha1.PromptProfileSpec) { p.PinnedTools = []string{"t7"} }),
			},
			"Resolved: not all tools are offered: toolPolicy.maxToolsPerTurn is 2", false,
			[]string{"t0 a ReadOnly Other", "t7 a ReadOnly Other"},
		},
		"too many tools, chosen by message": {
			"the choice depends on the message", altered(subAgent("desk", ofServer("a")), func(a *v1alpha1.Agent) {
				a.Spec.ToolPolicy = &v1alpha1.ToolPolicy{MaxToolsPerTurn: 1, Selection: v1alpha1.ToolSelectionSemantic}
			}),
			[]client.Object{newServer("a", toolsNamed(2, "t%d")...)},
			"Resolved: a turn is offered the tools that fit its message best: toolPolicy.maxToolsPerTurn is 1", false,
			[]string{"t0 a ReadOnly Other", "t1 a ReadOnly Other"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			message, holds, offered := reconcileTools(t, tc.agent, tc.others...)
			if message != tc.want || holds == tc.lacks {
				t.Errorf("got %t, %s\nwant %t, %s: %s", holds, message, !tc.lacks, tc.want, tc.reason)
			}
			if diff := cmp.Diff(tc.offers, offered); diff != "" {
				t.Errorf("offered (-want +got): %s\n%s", tc.reason, diff)
			}
		})
	}
}

func TestMessageAboutToolsIsBounded(t *testing.T) {
	patterns := make([]string, 64)
	for i := range patterns {
		patterns[i] = fmt.Sprintf("%03d-%s", i, strings.Repeat("x", 100))
	}
	var entries []v1alpha1.AgentTool
	for range 32 {
		entries = append(entries, ofServer("a", allow(patterns...), approved(patterns...)))
	}
	message, _, _ := reconcileTools(t, subAgent("desk", entries...), newServer("a", toolOf("b", v1alpha1.ToolEffectReadOnly)))
	if len(message) > 2048 || !strings.HasSuffix(message, "; and more") {
		t.Errorf("got %d bytes, want the first notes and \"and more\": %s", len(message), message)
	}
	policy := func(a *v1alpha1.Agent) {
		a.Spec.ToolPolicy = &v1alpha1.ToolPolicy{MaxToolsPerTurn: 1, Selection: v1alpha1.ToolSelectionSemantic}
	}
	_, _, offered := reconcileTools(t, altered(subAgent("desk", ofServer("a")), policy), newServer("a", toolsNamed(256, "t%03d")...))
	if len(offered) != 128 {
		t.Errorf("the status lists %d tools, want the first 128", len(offered))
	}
}

// TestAnAgentWithoutItsToolsIsNotReady checks that an Agent is not ready until its ToolServer exists, and that a
// further reconciliation writes nothing.
func TestAnAgentWithoutItsToolsIsNotReady(t *testing.T) {
	a := deskAgent(func(s *v1alpha1.AgentSpec) { s.Models, s.Tools = nil, []v1alpha1.AgentTool{ofServer("tickets")} })
	a.Spec.Models = []v1alpha1.ModelReference{{Model: "m", ProviderRef: v1alpha1.SharedReference{Name: "demo"}}}
	provider := &v1alpha1.ModelProvider{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "demo", Generation: 1},
		Status:     v1alpha1.ModelProviderStatus{Conditions: []metav1.Condition{readyAs(metav1.ConditionTrue, v1alpha1.ReasonReady)}},
	}
	c := inMemory(t, houseProfile(), provider, a)
	if _, err := reconcileProfile(t, c, nil); err != nil {
		t.Fatal(err)
	}
	reconcileAgent := func() *v1alpha1.Agent {
		t.Helper()
		r := &AgentReconciler{Client: c, Now: func() time.Time { return now }, ConfigMaps: texts{}.in}
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(a)}); err != nil {
			t.Fatal(err)
		}
		var got v1alpha1.Agent
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(a), &got); err != nil {
			t.Fatal(err)
		}
		return &got
	}
	conditionsOf := func(a *v1alpha1.Agent) string {
		var all []string
		for _, c := range a.Status.Conditions {
			all = append(all, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
		return strings.Join(all, ", ")
	}
	first := reconcileAgent()
	const lacking = "ProfileResolved=True Resolved, ModelsResolved=True Resolved, ToolsResolved=False " +
		"ToolServerNotFound, Ready=False ToolServerNotFound"
	if got := conditionsOf(first); got != lacking {
		t.Errorf("got %s\nwant %s", got, lacking)
	}
	if err := c.Create(t.Context(), newServer("tickets", toolOf("search", v1alpha1.ToolEffectReadOnly))); err != nil {
		t.Fatal(err)
	}
	second := reconcileAgent()
	const complete = "ProfileResolved=True Resolved, ModelsResolved=True Resolved, ToolsResolved=True Resolved, Ready=True Ready"
	if got := conditionsOf(second); got != complete {
		t.Errorf("got %s\nwant %s", got, complete)
	}
	want := []v1alpha1.ExposedTool{{Name: "search", Server: "tickets", Effect: v1alpha1.ToolEffectReadOnly, Role: v1alpha1.ToolRoleOther}}
	if diff := cmp.Diff(want, second.Status.Tools); diff != "" {
		t.Errorf("status.tools (-want +got):\n%s", diff)
	}
	if second.Status.PromptRenderHash == "" || second.Status.PromptRenderHash != first.Status.PromptRenderHash {
		t.Errorf("the hash changed from %q to %q, want a hash that does not depend on tools",
			first.Status.PromptRenderHash, second.Status.PromptRenderHash)
	}
	if third := reconcileAgent(); third.ResourceVersion != second.ResourceVersion {
		t.Error("a reconciliation without changes wrote the status")
	}
}
