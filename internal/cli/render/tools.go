package render

import (
	"context"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/translate"
)

// connections returns connections to the ToolServers. Without --discover, it connects to no server, and no tools are
// listed. The caller must call disconnect.
func (r *Options) connections(p *bundle.Bundle) (servers toolbox.Servers, disconnect func()) {
	if !r.Discover {
		return noServers{}, func() {}
	}
	connected := p.Connect(&r.Env)
	return connected, connected.Close
}

// noServers is a toolbox.Servers without connections.
type noServers struct{}

// Tools returns no tools.
func (noServers) Tools(context.Context, *v1alpha1.ToolServer) ([]tool.Tool, error) { return nil, nil }

// Current returns no tools: it is used only before a call, and render makes no calls.
func (noServers) Current(context.Context, *v1alpha1.ToolServer) ([]tool.Tool, error) { return nil, nil }

// Caller returns nil, because no tool is called.
func (noServers) Caller(*v1alpha1.ToolServer, string) tool.Caller { return nil }

// tools returns the tools that are offered to the model. They are selected as in a run, but never by the similarity of
// their meaning to that of the message (embeddings), because that would need a request to a model.
func tools(ctx context.Context, p *bundle.Bundle, servers toolbox.Servers) ([]prompt.Tool, error) {
	offers, err := p.Box(p.Turn, servers).Offers(ctx)
	if err != nil {
		return nil, err
	}
	in, err := translate.Input(p.Turn, p.Agent, nil, p.Session, nil)
	if err != nil {
		return nil, err
	}
	in.Selection.Pinned = p.Profile.Spec.PinnedTools
	if in.Selection.Query, err = p.Message(ctx, p.Turn); err != nil {
		return nil, err
	}
	return tool.DescribeForPrompt(tool.NewExposure(ctx, offers, tool.Reserved(), in.Selection).Tools), nil
}

// noteTools prints a note that names the ToolServers whose tools are not shown.
func (r *Options) noteTools(p *bundle.Bundle) {
	if r.Discover {
		return
	}
	var names []string
	for _, s := range p.ToolServers() {
		name := s.Name
		if s.Namespace != p.Turn.Namespace {
			name = s.Namespace + "/" + name
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		r.Env.Logf("note: the tools of ToolServer %s are not shown: add --discover to list them", strings.Join(names, ", "))
	}
}
