package controller

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// addSubAgent adds another Agent as a tool.
func (r *AgentReconciler) addSubAgent(ctx context.Context, found *toolFindings, entry *v1alpha1.AgentTool) error {
	name, a := entry.AgentRef.Name, found.agent
	var sub v1alpha1.Agent
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: name}, &sub); err != nil {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("failed to get sub-agent %q: %w", name, err)
		}
		found.missingAgents = append(found.missingAgents, fmt.Sprintf("sub-agent %q does not exist", name))
		return nil
	}
	most := v1alpha1.MaxDepth(a.Spec.Limits)
	back, err := r.leadsBack(ctx, a, name)
	switch {
	case err != nil:
		return err
	case most == 0:
		found.note("sub-agent %q is not offered: limits.maxDepth is 0", name)
		return nil
	case v1alpha1.MaxDescendants(nil, a.Spec.Limits) == 0:
		found.note("sub-agent %q is not offered: limits.maxDescendants is 0", name)
		return nil
	case name == a.Name:
		found.note("the agent names itself as a sub-agent: limits.maxDepth bounds how deep that goes")
	case back:
		found.note("sub-agent %q leads back to this agent: limits.maxDepth bounds how deep that goes", name)
	}
	tools := []tool.Tool{toolbox.SubAgent(*entry, &sub)}
	found.offer(entry, "", tools)
	found.checkPatterns(entry, fmt.Sprintf("sub-agent %q", name), tools)
	return nil
}

// leadsBack reports whether an Agent can be reached from one of its sub-agents. It visits each Agent once.
func (r *AgentReconciler) leadsBack(ctx context.Context, a *v1alpha1.Agent, from string) (bool, error) {
	seen, next := map[string]bool{from: true}, []string{from}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		if name == a.Name {
			return true, nil
		}
		var sub v1alpha1.Agent
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: name}, &sub)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("failed to get agent %q: %w", name, err)
		}
		for _, further := range subAgentNames(&sub) {
			if !seen[further] {
				seen[further] = true
				next = append(next, further)
			}
		}
	}
	return false, nil
}

// callers maps an Agent to the Agents that reach it as a sub-agent, directly or through others. Whether an Agent
// leads back to itself depends on all Agents in between.
func callers(c client.Client) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		var all []reconcile.Request
		seen := map[string]bool{}
		for next := []string{o.GetName()}; len(next) > 0; next = next[1:] {
			for _, caller := range requestsFor(ctx, c, &v1alpha1.AgentList{}, o.GetNamespace(), indexAgentSubAgent, next[0]) {
				if !seen[caller.Name] {
					seen[caller.Name] = true
					all, next = append(all, caller), append(next, caller.Name)
				}
			}
		}
		return all
	})
}

// subAgentNames returns the sub-agents that an Agent names, each once, in order.
func subAgentNames(a *v1alpha1.Agent) []string {
	var names []string
	for _, t := range a.Spec.Tools {
		if t.AgentRef != nil && !slices.Contains(names, t.AgentRef.Name) {
			names = append(names, t.AgentRef.Name)
		}
	}
	return names
}
