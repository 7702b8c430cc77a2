package executor

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// toolbox returns the tools of the Turn's Agent. If a ToolServer or a sub-agent was deleted after the Turn was
// bound, the Turn waits for it.
func (r *run) toolbox(agent *v1alpha1.Agent) *toolbox.Box {
	t := r.turn
	box := &toolbox.Box{
		Agent: agent, MaxDepth: v1alpha1.MaxDepth(t.Spec.Limits, agent.Spec.Limits), Servers: r.executor.Servers,
		MaxDescendants: v1alpha1.MaxDescendants(t.Spec.Limits, agent.Spec.Limits),
		Server: func(ctx context.Context, name string) (*v1alpha1.ToolServer, error) {
			s, err := r.executor.Sharing.ToolServer(ctx, r.executor.object, v1alpha1.ParseSharedReference(name), t.Namespace)
			if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
				return nil, agentNotReady(agent.Name, refused.Error())
			}
			return s, r.found(agent, "ToolServer", name, err)
		},
		SubAgent: func(ctx context.Context, name string) (*v1alpha1.Agent, error) {
			var a v1alpha1.Agent
			return &a, r.entry(ctx, agent, "Agent", name, &a)
		},
		Call: func(name string) tool.Caller {
			return &subAgent{executor: r.executor, parent: t, caller: agent, agent: name}
		},
	}
	if t.Spec.Depth != nil {
		box.Depth = int(*t.Spec.Depth)
	}
	return box
}

// entry reads the object that an entry of the Agent's tools names.
func (r *run) entry(ctx context.Context, agent *v1alpha1.Agent, kind, name string, object client.Object) error {
	return r.found(agent, kind, name, r.executor.object(ctx, client.ObjectKey{Namespace: r.turn.Namespace, Name: name}, object))
}

// found returns the error of reading an object that an entry of the Agent's tools names.
func (r *run) found(agent *v1alpha1.Agent, kind, name string, err error) error {
	if apierrors.IsNotFound(err) {
		return agentNotReady(agent.Name, fmt.Sprintf("%s %q does not exist", kind, name))
	}
	return err
}

// pinned returns the names of the tools that the Agent's profile pins. It returns none if the profile does not
// exist; the preparation of the prompt then reports that.
func (e *Executor) pinned(ctx context.Context, agent *v1alpha1.Agent) ([]string, error) {
	if len(agent.Spec.Tools) == 0 {
		return nil, nil
	}
	ref := agent.Spec.PromptProfileRef
	profile, err := e.Sharing.Profile(ctx, e.object, ref, agent.Namespace)
	if _, refused := errors.AsType[*sharing.RefusedError](err); refused || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get prompt profile %q: %w", ref, err)
	}
	return profile.Spec.PinnedTools, nil
}
