package executor

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// toolbox returns the tools of the Turn's Agent. If a ToolServer or a sub-agent was deleted after the Turn was
// bound, the Turn waits for it.
func (r *run) toolbox(agent *v1alpha1.Agent) *toolbox.Box {
	e, t := r.executor, r.turn
	box := &toolbox.Box{
		Agent: agent, MaxDepth: v1alpha1.MaxDepth(t.Spec.Limits, agent.Spec.Limits), Servers: sharedServers{e.Servers, e, t},
		MaxDescendants: v1alpha1.MaxDescendants(t.Spec.Limits, agent.Spec.Limits),
		Server: func(ctx context.Context, name string) (*v1alpha1.ToolServer, error) {
			var s *v1alpha1.ToolServer
			err := e.checkConsent(ctx, t)
			if err == nil {
				s, err = e.Sharing.ToolServer(ctx, e.objects(t.Namespace), v1alpha1.ParseSharedReference(name), agent.Namespace)
			}
			return s, unusable(t, "ToolServer", name, err)
		},
		SubAgent: func(ctx context.Context, name string) (*v1alpha1.Agent, error) {
			var a *v1alpha1.Agent
			err := e.checkConsent(ctx, t)
			if err == nil {
				a, err = e.Sharing.SubAgent(ctx, e.objects(t.Namespace), v1alpha1.ParseSharedReference(name), agent.Namespace, t.Namespace)
			}
			return a, unusable(t, "Agent", name, err)
		},
		Call: func(name string, mayCreate func(context.Context) error) tool.Caller {
			return &subAgent{executor: e, parent: t, caller: agent, agent: name, mayCreate: mayCreate}
		},
	}
	if t.Spec.Depth != nil {
		box.Depth = int(*t.Spec.Depth)
	}
	return box
}

// unusable returns the error of reading an object that an entry of the Agent's tools names. The Turn waits for an
// object that does not exist or may not be used.
func unusable(t *v1alpha1.Turn, kind, name string, err error) error {
	refused, isRefused := errors.AsType[*sharing.RefusedError](err)
	switch {
	case isRefused && refused.Kind == "Agent" && t.IsOfForeignAgent(): // the model already knows the Agent that the message names
		return &notReadyError{reason: v1alpha1.TurnReasonWaitingForAgent, message: refused.Error()}
	case isRefused:
		return agentNotReady(t, refused.Error())
	case apierrors.IsNotFound(err):
		return agentNotReady(t, fmt.Sprintf("%s %q does not exist", kind, name))
	}
	return err
}

// pinned returns the names of the tools that the Agent's profile pins. It returns none if the profile does not
// exist; the preparation of the prompt then reports that.
func (r *run) pinned(ctx context.Context, agent *v1alpha1.Agent) ([]string, error) {
	if len(agent.Spec.Tools) == 0 {
		return nil, nil
	}
	ref, e := agent.Spec.PromptProfileRef, r.executor
	profile, err := e.Sharing.Profile(ctx, e.objects(r.namespace), ref, agent.Namespace)
	if _, refused := errors.AsType[*sharing.RefusedError](err); refused || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get prompt profile %q: %w", ref, err)
	}
	return profile.Spec.PinnedTools, nil
}
