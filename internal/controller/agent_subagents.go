package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// addSubAgent adds another Agent as a tool.
func (r *AgentReconciler) addSubAgent(ctx context.Context, found *toolFindings, entry *v1alpha1.AgentTool) error {
	ref, a := *entry.AgentRef, found.agent
	sub, err := r.Sharing.Agent(ctx, sharing.From(r.Client), ref, a.Namespace)
	if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
		found.refused = append(found.refused, refused.Error())
		return nil
	}
	if apierrors.IsNotFound(err) {
		found.missingAgents = append(found.missingAgents, fmt.Sprintf("sub-agent %q does not exist", ref))
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to get sub-agent %q: %w", ref, err)
	}
	maxDepth := v1alpha1.MaxDepth(a.Spec.Limits)
	back, err := r.leadsBack(ctx, a, sub)
	switch {
	case err != nil:
		return err
	case maxDepth == 0:
		found.note("sub-agent %q is not offered: limits.maxDepth is 0", ref)
		return nil
	case v1alpha1.MaxDescendants(nil, a.Spec.Limits) == 0:
		found.note("sub-agent %q is not offered: limits.maxDescendants is 0", ref)
		return nil
	case client.ObjectKeyFromObject(sub) == client.ObjectKeyFromObject(a):
		found.note("the agent names itself as a sub-agent: limits.maxDepth bounds how deep that goes")
	case back:
		found.note("sub-agent %q leads back to this agent: limits.maxDepth bounds how deep that goes", ref)
	}
	if objectbudget.IsLeftOut(sub) {
		found.note("sub-agent %q is not ready (%s): its turns wait until it is", ref, v1alpha1.ReasonTooManyObjects)
	}
	tools := []tool.Tool{toolbox.SubAgent(*entry, sub)}
	found.offer(entry, "", tools)
	found.checkPatterns(ctx, entry, fmt.Sprintf("sub-agent %q", ref), tools)
	return nil
}

// maxVisited is the maximum number of Agents that one search visits. Otherwise the owners of other namespaces could
// make the search arbitrarily long.
const maxVisited = 256

// leadsBack reports whether an Agent can be reached from one of its sub-agents. It visits each Agent once, and at most
// maxVisited Agents. It follows a reference to another namespace only with the consent of that namespace.
func (r *AgentReconciler) leadsBack(ctx context.Context, a, from *v1alpha1.Agent) (bool, error) {
	key := client.ObjectKeyFromObject(a)
	seen, next := map[types.NamespacedName]bool{client.ObjectKeyFromObject(from): true}, []*v1alpha1.Agent{from}
	for ; len(next) > 0; next = next[1:] {
		sub := next[0]
		for _, ref := range subAgentRefs(sub) {
			target := ref.Key(sub.Namespace)
			switch {
			case target == key:
				return true, nil
			case seen[target] || len(seen) >= maxVisited:
				continue
			}
			seen[target] = true
			further, err := r.Sharing.Agent(ctx, sharing.From(r.Client), ref, sub.Namespace)
			_, refused := errors.AsType[*sharing.RefusedError](err)
			switch {
			case err == nil:
				next = append(next, further)
			case !refused && !apierrors.IsNotFound(err):
				return false, fmt.Errorf("failed to get agent %q: %w", target, err)
			}
		}
	}
	return false, nil
}

// callers maps an Agent to the Agents that call it as a sub-agent, directly or through other Agents, in any namespace.
// A change of the Agent may affect all of these Agents (see leadsBack). The search for indirect callers visits at most
// maxVisited Agents.
func callers(c client.Client) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		var all []reconcile.Request
		seen := map[types.NamespacedName]bool{}
		next := []types.NamespacedName{client.ObjectKeyFromObject(o)}
		for visited := 0; len(next) > 0 && visited < maxVisited; visited++ {
			key := next[0].String()
			next = next[1:]
			for _, caller := range requestsFor(ctx, c, &v1alpha1.AgentList{}, metav1.NamespaceAll, indexAgentSubAgent, key) {
				if !seen[caller.NamespacedName] {
					seen[caller.NamespacedName] = true
					all, next = append(all, caller), append(next, caller.NamespacedName)
				}
			}
		}
		return all
	})
}

// subAgentRefs returns the references of an Agent to its sub-agents, each once, in order.
func subAgentRefs(a *v1alpha1.Agent) []v1alpha1.SharedReference {
	var refs []v1alpha1.SharedReference
	for _, t := range a.Spec.Tools {
		if t.AgentRef != nil && !slices.Contains(refs, *t.AgentRef) {
			refs = append(refs, *t.AgentRef)
		}
	}
	return refs
}

// subAgentKeys returns the sub-agents of an Agent as NAMESPACE/NAME, each once, in order.
func subAgentKeys(a *v1alpha1.Agent) []string {
	var keys []string
	for _, ref := range subAgentRefs(a) {
		if key := ref.Key(a.Namespace).String(); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
