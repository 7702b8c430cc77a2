// Package toolbox gives a Turn the tools of its Agent: those of ToolServers, and other Agents.
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

// ErrUnknown means that nothing is known of the tools of a server: it is out of reach, and nobody has ever reached it.
var ErrUnknown = errors.New("the server was never reached, and its tools are not known")

// Servers are connections to ToolServers.
type Servers interface {
	// Tools returns the tools of a server as they are known, with what the ToolServer says of them. It may connect, and then
	// takes no longer than the server's connectTimeoutSeconds. A server that is out of reach has those that it had before; if
	// nothing is known of it, those of its status, with schemas that allow everything. It returns ErrUnknown if that has none
	// either, because nobody has ever reached the server.
	Tools(ctx context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error)
	// Current returns the tools of a server as it has them now: it asks the server, and takes no longer than the server's
	// connectTimeoutSeconds. It fails if the server cannot be asked.
	Current(ctx context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error)
	// Caller returns what calls a tool by the name that its server gives it. It never fails: a call of a tool that cannot be
	// called says why.
	Caller(s *v1alpha1.ToolServer, name string) tool.Caller
}

// Box is the toolbox of one Turn. It implements turn.Toolbox.
type Box struct {
	// Agent whose tools they are.
	Agent *v1alpha1.Agent
	// Depth of the Turn, and MaxDepth: a Turn that is as deep has no sub-agents.
	Depth, MaxDepth int
	// MaxDescendants is how many Turns sub-agents may create; with 0 the Turn has no sub-agents.
	MaxDescendants int
	// Server and SubAgent return the ToolServer and the Agent of a name.
	Server   func(ctx context.Context, name string) (*v1alpha1.ToolServer, error)
	SubAgent func(ctx context.Context, name string) (*v1alpha1.Agent, error)
	// Servers are the connections.
	Servers Servers
	// Call returns what calls a sub-agent.
	Call func(agent string) tool.Caller
}

// Offers returns what the entries of the Agent's tools offer now, in their order. A server of whose tools nothing is known is
// an offer without tools that says so.
func (b *Box) Offers(ctx context.Context) ([]tool.Offer, error) {
	var offers []tool.Offer
	for _, entry := range b.Agent.Spec.Tools {
		o := tool.Offer{Allow: entry.Allow, RequireApproval: entry.RequireApproval}
		if entry.MaxCalls != nil {
			o.MaxCalls = int(*entry.MaxCalls)
		}
		switch {
		case entry.ServerRef != nil:
			server, err := b.Server(ctx, entry.ServerRef.Name)
			if err != nil {
				return nil, fmt.Errorf("failed to get tool server %q: %w", entry.ServerRef.Name, err)
			}
			o.Server, o.UID = server.Name, string(server.UID)
			o.Tools, err = b.Servers.Tools(ctx, server)
			o.Missing = errors.Is(err, ErrUnknown)
			if err != nil && !o.Missing {
				return nil, fmt.Errorf("failed to get the tools of tool server %q: %w", server.Name, err)
			}
		case entry.AgentRef != nil && b.Depth < b.MaxDepth && b.MaxDescendants > 0:
			agent, err := b.SubAgent(ctx, entry.AgentRef.Name)
			if err != nil {
				return nil, fmt.Errorf("failed to get sub-agent %q: %w", entry.AgentRef.Name, err)
			}
			o.Tools = []tool.Tool{SubAgent(entry, agent)}
		}
		offers = append(offers, o)
	}
	return offers, nil
}

// SubAgent is another Agent as a tool. A call of it may be made again: it finds the Turn that it has made.
func SubAgent(entry v1alpha1.AgentTool, agent *v1alpha1.Agent) tool.Tool {
	name := entry.Name
	if name == "" {
		name = strings.NewReplacer(".", "_").Replace(entry.AgentRef.Name)
	}
	return tool.Tool{
		Tool: prompt.SubAgent(name, agent.Spec.Description), Effect: tool.Idempotent,
		Source: tool.Source{Agent: entry.AgentRef.Name, UID: string(agent.UID)},
	}
}

// Effect returns the effect that a tool has by what its ToolServer declares now: Destructive where that declares none, is gone, or is
// another one than the Turn knows. A sub-agent keeps its effect: a call of it finds its Turn. It fails only when ctx ends.
func (b *Box) Effect(ctx context.Context, t tool.Tool) (tool.Effect, error) {
	if t.Source.Server == "" {
		return t.Effect, nil
	}
	server, err := b.Server(ctx, t.Source.Server)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil, t.Source.UID != "" && t.Source.UID != string(server.UID):
		return tool.Destructive, nil //nolint:nilerr // because a ToolServer that cannot be read declares nothing
	}
	return tool.Judge(DeclaredEffect(server, t.Source.Name), tool.Hints{}), nil
}

// DeclaredEffect returns the effect that a ToolServer declares of a tool, by the tool's name at its server; empty for none.
func DeclaredEffect(s *v1alpha1.ToolServer, name string) tool.Effect {
	i := slices.IndexFunc(s.Spec.Tools, func(d v1alpha1.ToolDeclaration) bool { return d.Name == name })
	if i < 0 {
		return ""
	}
	return tool.Effect(s.Spec.Tools[i].Effect)
}

// Caller returns what calls a tool that was offered, now or to an earlier run. It is a tool.Checker.
func (b *Box) Caller(t tool.Tool) tool.Caller {
	r := &route{box: b, source: t.Source, approved: t.RequiresApproval}
	if r.approved {
		r.schema = t.SchemaHash()
	}
	return r
}
