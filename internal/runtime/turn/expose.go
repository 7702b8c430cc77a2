package turn

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// expose chooses the tools of the Turn, once: what it has is the same for its whole life, but for effects, which may get stricter. The journal is told with what is
// written next.
func (r *run) expose(ctx context.Context, message string) error {
	if r.past.exposure != nil || r.exposure != nil {
		return nil
	}
	var x tool.Exposure
	if r.in.Toolbox != nil {
		offers, err := r.in.Toolbox.Offers(ctx)
		if err != nil {
			return fmt.Errorf("failed to find out which tools there are: %w", err)
		}
		reserved := tool.Reserved()
		for _, t := range r.in.Tools {
			reserved = append(reserved, t.Name)
		}
		selection := r.in.Selection
		if selection.Query == "" {
			selection.Query = message
		}
		x = tool.Choose(offers, reserved, selection)
	}
	x.Nonce = rand.Text()
	r.past.shares.exposed(&x)
	r.exposure = &x
	r.pending = append(r.pending, journal.Record{Kind: journal.ToolsExposed, Payload: x})
	return nil
}

// tighten gives each tool that an earlier run was exposed to the stricter of its effect then and its effect now: people may have
// corrected what they declare. The journal stays as it is.
func (r *run) tighten(ctx context.Context) error {
	x := r.past.exposure
	if x == nil || r.in.Toolbox == nil {
		return nil
	}
	for _, list := range []*[]tool.Tool{&x.Tools, &x.Packs} {
		own := slices.Clone(*list) // other Turns have the list, too
		for i := range own {
			now, err := r.in.Toolbox.Effect(ctx, own[i])
			if err != nil {
				return fmt.Errorf("failed to find out the effect of tool %q: %w", own[i].Name, err)
			}
			own[i].Effect = tool.Stricter(own[i].Effect, now)
		}
		*list = own
	}
	r.past.shares.exposed(x)
	return nil
}

// exposed is what the Turn has of tools; nothing before that was found out.
func (r *run) exposed() tool.Exposure {
	switch {
	case r.past.exposure != nil:
		return *r.past.exposure // as it comes back from the journal, with effects that may be stricter
	case r.exposure != nil:
		return *r.exposure
	}
	return tool.Exposure{}
}

// bound is a tool of the exposure that can be called.
func (r *run) bound(t tool.Tool) tool.Tool {
	if r.in.Toolbox != nil {
		t.Caller = r.in.Toolbox.Caller(t)
	}
	if t.Caller == nil {
		t.Caller = tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
			return tool.Result{}, &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf("there is nothing any more that could call %q", t.Name)}
		})
	}
	return t
}
