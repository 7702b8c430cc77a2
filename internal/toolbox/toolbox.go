// Package toolbox provides the tools of an Agent to its Turns: the tools of ToolServers, and other Agents.
package toolbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// ErrUnknown means that the tools of a server are unknown: it cannot be reached now, and was never reached before.
var ErrUnknown = errors.New("the server was never reached, and its tools are not known")

// ErrUnusable means that a ToolServer or an Agent does not exist, or that its owner does not consent to its use.
// Another error of reading such an object says nothing about the object.
var ErrUnusable = errors.New("the object does not exist, or may not be used")

// Servers are connections to ToolServers.
type Servers interface {
	// Tools returns the known tools of a server, with the declarations of its ToolServer. It may connect, which takes
	// at most the server's connectTimeoutSeconds. If the server cannot be reached, Tools returns the first of these
	// that it can:
	//  1. The tools that the server listed the last time.
	//  2. The tools in the ToolServer's status, with schemas that allow everything.
	//  3. ErrUnknown, or an error that wraps tool.ErrOwnShortage if this process had no socket to reach the server.
	Tools(ctx context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error)
	// Current asks the server which tools it has now. It takes at most the server's connectTimeoutSeconds, plus the
	// time to read Secrets, and fails if the server does not answer. Its error wraps tool.ErrUnread if the API server
	// did not return the Secrets for the moment.
	Current(ctx context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error)
	// Caller returns the caller of a tool, given the tool's name at its server. It never fails: if the tool cannot
	// be called, each call returns the cause.
	Caller(s *v1alpha1.ToolServer, name string) tool.Caller
}

// Box is the toolbox of one Turn. It implements turn.Toolbox.
type Box struct {
	// Agent is the Agent whose tools the Box provides.
	Agent *v1alpha1.Agent
	// Depth is the depth of the Turn. At MaxDepth the Turn has no sub-agents.
	Depth, MaxDepth int
	// MaxDescendants is how many Turns sub-agents may create. If it is 0, the Turn has no sub-agents.
	MaxDescendants int
	// Server returns the ToolServer, and SubAgent the Agent, with a name, which may be NAMESPACE/NAME. If the object
	// cannot be used, the error matches ErrUnusable.
	Server   func(ctx context.Context, name string) (*v1alpha1.ToolServer, error)
	SubAgent func(ctx context.Context, name string) (*v1alpha1.Agent, error)
	// Servers holds the connections to ToolServers.
	Servers Servers
	// Call returns the caller of a sub-agent. The caller must call mayCreate before it creates the Turn of a call. If
	// mayCreate returns an error, the caller must not create the Turn, and the call fails with this error.
	Call func(agent string, mayCreate func(context.Context) error) tool.Caller
}

// Offers returns what the Agent's tool entries offer now, in the order of the entries. If the tools of a server are
// unknown, its offer has no tools, and Missing is set.
func (b *Box) Offers(ctx context.Context) ([]tool.Offer, error) {
	var offers []tool.Offer
	for _, entry := range b.Agent.Spec.Tools {
		o := tool.Offer{Allow: entry.Allow, RequireApproval: entry.RequireApproval}
		if entry.MaxCalls != nil {
			o.MaxCalls = int(*entry.MaxCalls)
		}
		switch {
		case entry.ServerRef != nil:
			server, err := b.Server(ctx, entry.ServerRef.String())
			if err != nil {
				return nil, fmt.Errorf("failed to get tool server %q: %w", entry.ServerRef, err)
			}
			o.Server, o.UID = entry.ServerRef.String(), string(server.UID)
			o.Tools, err = b.Servers.Tools(ctx, server)
			o.Missing = errors.Is(err, ErrUnknown)
			if err != nil && !o.Missing {
				return nil, fmt.Errorf("failed to get the tools of tool server %q: %w", o.Server, err)
			}
		case entry.AgentRef != nil && b.Depth < b.MaxDepth && b.MaxDescendants > 0:
			agent, err := b.SubAgent(ctx, entry.AgentRef.String())
			if err != nil {
				return nil, fmt.Errorf("failed to get sub-agent %q: %w", entry.AgentRef, err)
			}
			o.Tools = []tool.Tool{SubAgent(entry, agent)}
		}
		offers = append(offers, o)
	}
	return offers, nil
}

// SubAgent returns another Agent as a tool. Its effect is Idempotent: a repeated call finds the Turn that the first
// one created.
func SubAgent(entry v1alpha1.AgentTool, agent *v1alpha1.Agent) tool.Tool {
	name := entry.Name
	if name == "" {
		name = strings.NewReplacer(".", "_").Replace(entry.AgentRef.Name)
	}
	return tool.Tool{
		Tool: prompt.SubAgent(name, agent.Spec.Description), Effect: tool.Idempotent,
		Source: tool.Source{Agent: entry.AgentRef.String(), UID: string(agent.UID)},
	}
}

// Effect returns the effect that a tool's ToolServer declares now. The effect is Destructive if the ToolServer declares
// none, does not exist any more, may no longer be used, or is not the one that the Turn knows. A sub-agent keeps its
// effect, because a repeated call finds the Turn that exists. Effect fails if the ToolServer could not be read: its
// tools would be Destructive for the whole run, although the cause may pass within a second.
func (b *Box) Effect(ctx context.Context, t tool.Tool) (tool.Effect, error) {
	if t.Source.Server == "" {
		return t.Effect, nil
	}
	server, err := b.Server(ctx, t.Source.Server)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, ErrUnusable):
		return tool.Destructive, nil
	case err != nil:
		return "", fmt.Errorf("failed to get tool server %q: %w", t.Source.Server, err)
	case t.Source.UID != "" && t.Source.UID != string(server.UID):
		return tool.Destructive, nil
	}
	return tool.ResolveEffect(DeclaredEffect(server, t.Source.Name), tool.Hints{}), nil
}

// DeclaredEffect returns the effect that a ToolServer declares for a tool, given the tool's name at its server. It
// returns "" if none is declared.
func DeclaredEffect(s *v1alpha1.ToolServer, name string) tool.Effect {
	i := slices.IndexFunc(s.Spec.Tools, func(d v1alpha1.ToolDeclaration) bool { return d.Name == name })
	if i < 0 {
		return ""
	}
	return tool.Effect(s.Spec.Tools[i].Effect)
}

// Caller returns the caller of a tool that was offered to this run or an earlier one. The caller implements
// tool.Checker.
func (b *Box) Caller(t tool.Tool) tool.Caller {
	r := &toolCaller{box: b, source: t.Source, needsApproval: t.RequiresApproval}
	if r.needsApproval {
		r.schemaHash = t.SchemaHash()
	}
	return r
}
