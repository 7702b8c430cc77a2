package turn

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// expose selects the tools of the Turn, once. They stay the same for the Turn's whole life, but their effects may
// become stricter. The next write to the journal includes them.
func (r *run) expose(ctx context.Context, message string) error {
	if r.replayed.exposure != nil || r.exposure != nil {
		return nil
	}
	var x tool.Exposure
	if r.in.Toolbox != nil {
		offers, err := r.in.Toolbox.Offers(ctx)
		if err != nil {
			return fmt.Errorf("failed to list the agent's tools: %w", err)
		}
		reserved := tool.Reserved()
		for _, t := range r.in.Tools {
			reserved = append(reserved, t.Name)
		}
		selection := r.in.Selection
		if selection.Query == "" {
			selection.Query = message
		}
		var failure error
		selection.Similar = func(texts []string) (all []*float64) {
			all, failure = r.similarities(ctx, selection.Query, texts)
			return all
		}
		if x = tool.NewExposure(ctx, offers, reserved, selection); failure != nil {
			return failure
		}
	}
	x.Nonce = rand.Text()
	r.replayed.shares.shareTools(&x)
	r.exposure = &x
	r.pending = append(r.pending, journal.Record{Kind: journal.ToolsExposed, Payload: x})
	return nil
}

// tighten gives each tool of an earlier run the stricter of its recorded effect and its current effect, because
// people may have corrected a declaration. The journal stays unchanged.
func (r *run) tighten(ctx context.Context) error {
	x := r.replayed.exposure
	if x == nil || r.in.Toolbox == nil {
		return nil
	}
	for _, list := range []*[]tool.Tool{&x.Tools, &x.ContextTools} {
		own := slices.Clone(*list) // because other Turns share this list
		for i := range own {
			current, err := r.in.Toolbox.Effect(ctx, own[i])
			if err != nil {
				return fmt.Errorf("failed to determine the effect of tool %q: %w", own[i].Name, err)
			}
			own[i].Effect = tool.Stricter(own[i].Effect, current)
		}
		*list = own
	}
	r.replayed.shares.shareTools(x)
	return nil
}

// exposed returns the tools of the Turn, or no tools before they are determined.
func (r *run) exposed() tool.Exposure {
	switch {
	case r.replayed.exposure != nil:
		return *r.replayed.exposure // as read back from the journal, with effects that may be stricter
	case r.exposure != nil:
		return *r.exposure
	}
	return tool.Exposure{}
}

// withCaller returns an exposed tool with a Caller, so that the tool can be called.
func (r *run) withCaller(t tool.Tool) tool.Tool {
	if r.in.Toolbox != nil {
		t.Caller = r.in.Toolbox.Caller(t)
	}
	if t.Caller == nil {
		t.Caller = tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
			return tool.Result{}, &tool.Error{
				Class:   tool.Unavailable,
				Message: fmt.Sprintf("%q can no longer be called", t.Name),
			}
		})
	}
	if r.replayed.undo != nil {
		t.Caller = &undoCaller{run: r, inner: t.Caller}
	}
	return t
}
