package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

const (
	// maxExposed is the maximum number of tools in the status of an Agent.
	maxExposed = 128
	// maxNotes limits the number of notes in the message of a condition. An Agent may have 32 entries of 128
	// patterns each.
	maxNotes = 8
)

// toolFindings holds the results of one check of an Agent's tools.
type toolFindings struct {
	agent *v1alpha1.Agent
	// offers holds the tools that each entry of spec.tools offers, in order.
	offers []tool.Offer
	// missingServers and missingAgents name ToolServers and sub-agents that do not exist. refused says which
	// ToolServers and sub-agents of other namespaces may not be used. unasked names ToolServers whose tools are not
	// known, because the servers have not been asked, are new and do not answer, or were dropped by the cache. notes
	// holds further remarks for people.
	missingServers, missingAgents, refused, unasked, notes []string
	// after is the time until the next check; 0 if an event will start the next check.
	after time.Duration
}

// resolveTools finds the ToolServers and sub-agents of an Agent, and returns the tools that a Turn would be offered
// now. It takes the tools of a server from the status of the ToolServer, and sends no requests to the server.
//
// An unreachable server does not make the Agent unready. Calls of its tools fail. If the server was never reached,
// Turns run without its tools and report this. There are three exceptions: Turns wait for a server that has not been
// asked yet, for a new server that may still be starting, and for a ToolServer whose content the cache has dropped.
func (r *AgentReconciler) resolveTools(ctx context.Context, a *v1alpha1.Agent) (finding, []v1alpha1.ExposedTool, error) {
	if len(a.Spec.Tools) == 0 {
		return finding{holds: true, reason: v1alpha1.ReasonResolved, message: "the agent names no tools"}, nil, nil
	}
	found := &toolFindings{agent: a}
	for i := range a.Spec.Tools {
		add := r.addServer
		if a.Spec.Tools[i].AgentRef != nil {
			add = r.addSubAgent
		}
		if err := add(ctx, found, &a.Spec.Tools[i]); err != nil {
			return finding{}, nil, err
		}
	}
	pinned, err := r.pinnedTools(ctx, a)
	if err != nil {
		return finding{}, nil, err
	}
	exposed := found.exposedTools(ctx, pinned)
	return found.combined(), exposed, nil
}

// addServer adds the tools that a ToolServer offers.
func (r *AgentReconciler) addServer(ctx context.Context, found *toolFindings, entry *v1alpha1.AgentTool) error {
	name := entry.ServerRef.String()
	s, err := r.Sharing.ToolServer(ctx, sharing.From(r.Client), *entry.ServerRef, found.agent.Namespace)
	if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
		found.refused = append(found.refused, refused.Error())
		return nil
	}
	if apierrors.IsNotFound(err) {
		found.missingServers = append(found.missingServers, fmt.Sprintf("ToolServer %q does not exist", name))
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to get tool server %q: %w", name, err)
	}
	// The notes contain the reason of the ToolServer's condition, but not its message: each change of the message would
	// be written to every Agent.
	c, known := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady), s.Status.LastDiscoveryTime != nil
	why, left := r.awaitedNew("ToolServer", s, c)
	switch {
	case !wasAsked(s) && c != nil && c.ObservedGeneration == s.Generation:
		found.unasked = append(found.unasked, fmt.Sprintf("the tools of ToolServer %q are not known (%s)", name, c.Reason))
	case !wasAsked(s):
		found.unasked = append(found.unasked, fmt.Sprintf("ToolServer %q is not checked yet", name))
	case !known && why != "":
		found.unasked, found.after = append(found.unasked, why), earliest(found.after, left)
	case c != nil && c.Status != metav1.ConditionTrue && known:
		found.note("ToolServer %q is not ready (%s): calls of its tools fail until it is", name, c.Reason)
	case c != nil && c.Status != metav1.ConditionTrue:
		found.note("ToolServer %q is not ready (%s) and was never reached: turns run without its tools until it is", name, c.Reason)
	}
	tools, unusable := toolsInStatus(s)
	found.offer(entry, name, tools)
	if n := len(matchingTools(ctx, unusable, entry.Allow)); n > 0 {
		found.note("models cannot be offered %d of the tools of ToolServer %q: see its status.tools[].unusable", n, name)
	}
	// If the status does not list all tools of the server, a pattern may match a tool that is not listed.
	if all := slices.Concat(tools, unusable); known && int(s.Status.ToolCount) == len(all) {
		found.checkPatterns(ctx, entry, fmt.Sprintf("ToolServer %q", name), all)
	}
	return nil
}

// wasAsked reports whether a server was asked for its tools since its spec last changed, or has listed them before. If
// the server has never listed its tools, wasAsked returns false while its Secret is missing. It also returns false if
// the cache has dropped the content of the object, because the tools are then unknown. It returns true for a server
// with InvalidCompensation, whose tools Turns use.
func wasAsked(s *v1alpha1.ToolServer) bool {
	c := ready(s.Status.Conditions, s.Generation)
	return s.Status.LastDiscoveryTime != nil || c != nil && !blocksRequests(c.Reason)
}

// toolsInStatus returns the tools in the status of a server. unusable holds the tools that the status marks as
// unusable, which cannot be offered to models.
func toolsInStatus(s *v1alpha1.ToolServer) (tools, unusable []tool.Tool) {
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

// matchingTools returns the tools whose names match one of the patterns. If there are no patterns, it returns all
// tools. The returned tools have only a name.
func matchingTools(ctx context.Context, tools []tool.Tool, patterns []string) []tool.Tool {
	nameOnly := make([]tool.Tool, 0, len(tools))
	for _, t := range tools {
		nameOnly = append(nameOnly, tool.Tool{Tool: prompt.Tool{Name: t.Name}})
	}
	return tool.Expose(ctx, []tool.Offer{{Tools: nameOnly, Allow: patterns}}, nil)
}

// pinnedTools returns the tools that the Agent's profile pins. If the profile does not exist or may not be used, it
// returns no tools: another condition reports the profile.
func (r *AgentReconciler) pinnedTools(ctx context.Context, a *v1alpha1.Agent) ([]string, error) {
	p, err := r.Sharing.Profile(ctx, sharing.From(r.Client), a.Spec.PromptProfileRef, a.Namespace)
	if _, refused := errors.AsType[*sharing.RefusedError](err); refused || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get prompt profile %q: %w", a.Spec.PromptProfileRef, err)
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

// checkPatterns adds notes about the patterns of an entry that match none of its tools. For requireApproval, the note
// is important: the calls for which the pattern was intended are made without approval.
func (f *toolFindings) checkPatterns(ctx context.Context, entry *v1alpha1.AgentTool, of string, tools []tool.Tool) {
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"allow", entry.Allow}, {"requireApproval", entry.RequireApproval}} {
		for _, pattern := range list.patterns {
			if len(matchingTools(ctx, tools, []string{pattern})) == 0 {
				f.note("%s %q matches no tool of %s", list.field, pattern, of)
			}
		}
	}
}

// exposedTools returns the tools that a Turn would be offered, followed by the context packs.
func (f *toolFindings) exposedTools(ctx context.Context, pinned []string) []v1alpha1.ExposedTool {
	policy := v1alpha1.ToolPolicy{}
	if p := f.agent.Spec.ToolPolicy; p != nil {
		policy = *p
	}
	offered, packs := tool.SplitContextTools(tool.Expose(ctx, f.offers, tool.Reserved()))
	limit := int(cmp.Or(policy.MaxToolsPerTurn, v1alpha1.DefaultMaxToolsPerTurn))
	kept, leftOut := tool.Select(offered, tool.Selection{Most: limit, Pinned: pinned})
	switch {
	case leftOut > 0 && policy.Selection == v1alpha1.ToolSelectionSemantic:
		kept = offered
		f.note("a turn is offered the tools that fit its message best: toolPolicy.maxToolsPerTurn is %d", limit)
	case leftOut > 0:
		f.note("not all tools are offered: toolPolicy.maxToolsPerTurn is %d", limit)
	}
	if len(packs) > tool.MaxContextTools {
		packs = packs[:tool.MaxContextTools]
		f.note("only the first %d tools of the role ContextPack are called", tool.MaxContextTools)
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

// combined returns the finding for all entries together.
func (f *toolFindings) combined() finding {
	all := slices.Concat(f.missingServers, f.missingAgents, f.refused, f.unasked, f.notes)
	switch {
	case len(f.missingServers) > 0:
		return finding{reason: v1alpha1.ReasonToolServerNotFound, message: joinNotes(all)}
	case len(f.missingAgents) > 0:
		return finding{reason: v1alpha1.ReasonSubAgentNotFound, message: joinNotes(all)}
	case len(f.refused) > 0:
		return finding{reason: v1alpha1.ReasonReferenceNotAllowed, message: joinNotes(all)}
	case len(f.unasked) > 0:
		return finding{reason: v1alpha1.ReasonToolServerNotReady, message: joinNotes(all), after: f.after}
	case len(all) > 0:
		return finding{holds: true, reason: v1alpha1.ReasonResolved, message: joinNotes(all)}
	}
	return finding{holds: true, reason: v1alpha1.ReasonResolved, message: "all tool servers and sub-agents exist"}
}

// joinNotes joins remarks, each once, up to maxNotes.
func joinNotes(remarks []string) string {
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

// toolServerKeys returns the ToolServers that an Agent names as NAMESPACE/NAME, each once, in order.
func toolServerKeys(a *v1alpha1.Agent) []string {
	var keys []string
	for _, t := range a.Spec.Tools {
		if t.ServerRef == nil {
			continue
		}
		if key := t.ServerRef.Key(a.Namespace).String(); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
