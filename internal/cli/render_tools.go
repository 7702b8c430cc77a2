package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/toolservers"
	"github.com/capstan-dev/capstan/internal/translate"
)

// connections returns connections to the ToolServers. Without --discover it connects to none and lists no tools.
func (r *renderer) connections(p *bundle) (known toolbox.Servers, closed func()) {
	if !r.discover {
		return unasked{}, func() {}
	}
	cache := toolservers.NewCache(p.readSecret, netpolicy.Permissive(), r.env.Now, logr.Discard())
	return &reachable{Cache: cache, tell: func(text string) { r.env.tell("%s", text) }}, cache.Close
}

// unasked is a toolbox.Servers without connections.
type unasked struct{}

// Tools returns no tools.
func (unasked) Tools(context.Context, *v1alpha1.ToolServer) ([]tool.Tool, error) { return nil, nil }

// Current returns no tools, because none is called.
func (unasked) Current(context.Context, *v1alpha1.ToolServer) ([]tool.Tool, error) { return nil, nil }

// Caller returns nil, because no tool is called.
func (unasked) Caller(*v1alpha1.ToolServer, string) tool.Caller { return nil }

// tools returns the tools that the model is offered. They are selected as in a run.
func (p *bundle) tools(ctx context.Context, known toolbox.Servers) ([]prompt.Tool, error) {
	offers, err := p.box(p.turn, known).Offers(ctx)
	if err != nil {
		return nil, err
	}
	in, err := translate.Input(p.turn, p.agent, nil, p.session, nil)
	if err != nil {
		return nil, err
	}
	in.Selection.Query, in.Selection.Pinned = p.turn.Spec.Message, p.profile.Spec.PinnedTools
	return tool.Prompted(tool.Choose(offers, tool.Reserved(), in.Selection).Tools), nil
}

// withoutTools prints a note that names the ToolServers whose tools are not shown.
func (r *renderer) withoutTools(p *bundle) {
	if r.discover {
		return
	}
	var names []string
	for _, s := range p.servers() {
		if !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	if len(names) > 0 {
		r.env.tell("note: the tools of ToolServer %s are not shown: add --discover to list them", strings.Join(names, ", "))
	}
}
