package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

const (
	// maxExposed is how many tools the status of an agent lists.
	maxExposed = 128
	// maxNotes is how many remarks the message of a condition makes: an agent may have 32 entries of 128 patterns each.
	maxNotes = 8
)

// toolFindings are what one look at the tools of an agent found.
type toolFindings struct {
	agent *v1alpha1.Agent
	// offers of the entries, in their order.
	offers []tool.Offer
	// missing are the ToolServers and the sub-agents that are not there, unasked the ToolServers that nobody has asked for their
	// tools yet, or that are new and do not answer, and notes what else people should know.
	missingServers, missingAgents, unasked, notes []string
	// after is when to look again, 0 if an event will tell.
	after time.Duration
}

// resolveTools finds the ToolServers and sub-agents of an agent, and says which tools a Turn would be offered by now. Nobody
// is asked: a server's tools are those of its status. One that is away does not count: calls of its tools fail, or, if it was never
// reached, Turns run without them and say so. But it must have been asked, and one that is new may be about to start: Turns wait for
// that as they wait for what is missing.
func (r *AgentReconciler) resolveTools(ctx context.Context, a *v1alpha1.Agent) (finding, []v1alpha1.ExposedTool, error) {
	if len(a.Spec.Tools) == 0 {
		return finding{holds: true, reason: v1alpha1.ReasonResolved, message: "the agent names no tools"}, nil, nil
	}
	found := &toolFindings{agent: a}
	for i := range a.Spec.Tools {
		look := r.lookAtServer
		if a.Spec.Tools[i].AgentRef != nil {
			look = r.lookAtSubAgent
		}
		if err := look(ctx, found, &a.Spec.Tools[i]); err != nil {
			return finding{}, nil, err
		}
	}
	pinned, err := r.pinned(ctx, a)
	if err != nil {
		return finding{}, nil, err
	}
	exposed := found.exposed(pinned)
	return found.sum(), exposed, nil
}

// lookAtServer adds what a ToolServer offers.
func (r *AgentReconciler) lookAtServer(ctx context.Context, found *toolFindings, entry *v1alpha1.AgentTool) error {
	name := entry.ServerRef.Name
	var s v1alpha1.ToolServer
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: found.agent.Namespace, Name: name}, &s); err != nil {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("failed to get tool server %q: %w", name, err)
		}
		found.missingServers = append(found.missingServers, fmt.Sprintf("ToolServer %q does not exist", name))
		return nil
	}
	// The reason is said and the message is not: it is on the ToolServer, and would be written to each Agent whenever it changes.
	c, known := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady), s.Status.LastDiscoveryTime != nil
	why, left := r.awaited("ToolServer", &s, c)
	switch {
	case !asked(&s) && c != nil && c.ObservedGeneration == s.Generation:
		found.unasked = append(found.unasked, fmt.Sprintf("ToolServer %q could not be asked for its tools yet (%s)", name, c.Reason))
	case !asked(&s):
		found.unasked = append(found.unasked, fmt.Sprintf("ToolServer %q is not checked yet", name))
	case !known && why != "":
		found.unasked, found.after = append(found.unasked, why), earliest(found.after, left)
	case c != nil && c.Status != metav1.ConditionTrue && known:
		found.note("ToolServer %q is not ready (%s): calls of its tools fail until it is", name, c.Reason)
	case c != nil && c.Status != metav1.ConditionTrue:
		found.note("ToolServer %q is not ready (%s) and was never reached: turns run without its tools until it is", name, c.Reason)
	}
	tools, unusable := discovered(&s)
	found.offer(entry, name, tools)
	if n := len(matching(unusable, entry.Allow)); n > 0 {
		found.note("no model can be offered %d of the tools of ToolServer %q: its status.tools[].unusable says why", n, name)
	}
	if all := slices.Concat(tools, unusable); known && int(s.Status.ToolCount) == len(all) { // else there may be more than are known
		found.check(entry, fmt.Sprintf("ToolServer %q", name), all)
	}
	return nil
}

// asked says whether a server was asked for its tools since its spec is what it is, or has told them before. One whose Secret
// is missing was not.
func asked(s *v1alpha1.ToolServer) bool {
	c := ready(s.Status.Conditions, s.Generation)
	return s.Status.LastDiscoveryTime != nil || c != nil && !asksNobody(c.Reason)
}

// discovered are the tools of a server by its status, and those of which it says that no model can be offered them.
func discovered(s *v1alpha1.ToolServer) (tools, unusable []tool.Tool) {
	for i := range s.Status.Tools {
		t := &s.Status.Tools[i]
		one := tool.Tool{
			Tool: prompt.Tool{Name: t.Name, Description: t.Description}, Effect: toolservers.KnownEffect(s, t), Role: tool.Role(t.Role),
		}
		if t.Unusable != "" {
			unusable = append(unusable, one)
			continue
		}
		tools = append(tools, one)
	}
	return tools, unusable
}

// matching are the tools whose names fit one of the patterns; all if there are none.
func matching(tools []tool.Tool, patterns []string) []tool.Tool {
	names := make([]tool.Tool, 0, len(tools)) // without a server: only the names matter here
	for _, t := range tools {
		names = append(names, tool.Tool{Tool: prompt.Tool{Name: t.Name}})
	}
	return tool.Expose([]tool.Offer{{Tools: names, Allow: patterns}}, nil)
}

// pinned are the tools that the agent's profile pins; none if there is no profile, which another condition says.
func (r *AgentReconciler) pinned(ctx context.Context, a *v1alpha1.Agent) ([]string, error) {
	var p v1alpha1.PromptProfile
	key := client.ObjectKey{Namespace: a.Namespace, Name: a.Spec.PromptProfileRef.Name}
	if err := r.Client.Get(ctx, key, &p); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("failed to get prompt profile %q: %w", key.Name, err)
	}
	return p.Spec.PinnedTools, nil
}

func (f *toolFindings) note(format string, args ...any) {
	if len(f.notes) <= maxNotes {
		f.notes = append(f.notes, fmt.Sprintf(format, args...))
	}
}

func (f *toolFindings) offer(entry *v1alpha1.AgentTool, server string, tools []tool.Tool) {
	f.offers = append(f.offers, tool.Offer{Server: server, Tools: tools, Allow: entry.Allow, RequireApproval: entry.RequireApproval})
}

// check says which patterns of an entry match none of its tools: one that was to have a call approved and does not is worse
// than one that was to allow it.
func (f *toolFindings) check(entry *v1alpha1.AgentTool, of string, tools []tool.Tool) {
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"allow", entry.Allow}, {"requireApproval", entry.RequireApproval}} {
		for _, pattern := range list.patterns {
			if len(matching(tools, []string{pattern})) == 0 {
				f.note("%s %q matches no tool of %s", list.field, pattern, of)
			}
		}
	}
}

// exposed are the tools that a Turn would be offered, and after them those that fill its context.
func (f *toolFindings) exposed(pinned []string) []v1alpha1.ExposedTool {
	policy := v1alpha1.ToolPolicy{}
	if p := f.agent.Spec.ToolPolicy; p != nil {
		policy = *p
	}
	offered, packs := tool.Packs(tool.Expose(f.offers, tool.Reserved()))
	most := int(cmp.Or(policy.MaxToolsPerTurn, v1alpha1.DefaultMaxToolsPerTurn))
	kept, leftOut := tool.Select(offered, tool.Selection{Most: most, Pinned: pinned})
	switch {
	case leftOut > 0 && policy.Selection == v1alpha1.ToolSelectionSemantic:
		kept = offered
		f.note("a turn is offered those tools that fit its message best: toolPolicy.maxToolsPerTurn is %d", most)
	case leftOut > 0:
		f.note("not all tools are offered: toolPolicy.maxToolsPerTurn is %d", most)
	}
	if len(packs) > tool.MaxPacks {
		packs = packs[:tool.MaxPacks]
		f.note("only the first %d tools of the role ContextPack are called", tool.MaxPacks)
	}
	var all []v1alpha1.ExposedTool
	for _, t := range slices.Concat(kept, packs) {
		if len(all) == maxExposed {
			break
		}
		all = append(all, v1alpha1.ExposedTool{
			Name: t.Name, Server: t.Source.Server, Agent: t.Source.Agent, RequiresApproval: t.RequiresApproval,
			Effect: v1alpha1.ToolEffect(cmp.Or(t.Effect, tool.Destructive)), Role: v1alpha1.ToolRole(cmp.Or(t.Role, tool.Other)),
		})
	}
	return all
}

// sum is the finding of all entries together.
func (f *toolFindings) sum() finding {
	all := slices.Concat(f.missingServers, f.missingAgents, f.unasked, f.notes)
	switch {
	case len(f.missingServers) > 0:
		return finding{reason: v1alpha1.ReasonToolServerNotFound, message: several(all)}
	case len(f.missingAgents) > 0:
		return finding{reason: v1alpha1.ReasonSubAgentNotFound, message: several(all)}
	case len(f.unasked) > 0:
		return finding{reason: v1alpha1.ReasonToolServerNotReady, message: several(all), after: f.after}
	case len(all) > 0:
		return finding{holds: true, reason: v1alpha1.ReasonResolved, message: several(all)}
	}
	return finding{holds: true, reason: v1alpha1.ReasonResolved, message: "all tool servers and sub-agents are there"}
}

// several joins remarks, each once, as many as a message may have.
func several(remarks []string) string {
	var once []string
	for _, remark := range remarks {
		if !slices.Contains(once, remark) {
			once = append(once, remark)
		}
	}
	if len(once) > maxNotes {
		return strings.Join(once[:maxNotes], "; ") + "; and more"
	}
	return strings.Join(once, "; ")
}

// toolServerNames are the ToolServers that an agent names, each once, in order.
func toolServerNames(a *v1alpha1.Agent) []string {
	return namedBy(a, func(t v1alpha1.AgentTool) *v1alpha1.ObjectReference { return t.ServerRef })
}

func namedBy(a *v1alpha1.Agent, ref func(v1alpha1.AgentTool) *v1alpha1.ObjectReference) []string {
	var names []string
	for _, t := range a.Spec.Tools {
		if to := ref(t); to != nil && !slices.Contains(names, to.Name) {
			names = append(names, to.Name)
		}
	}
	return names
}
