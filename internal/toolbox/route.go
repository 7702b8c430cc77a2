package toolbox

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// route leads from a tool of a Turn to what calls it: objects are found by their names when a call is made. A person who approves a
// call approves it for one object and one schema, so the route of such a tool ends where either has changed.
type route struct {
	box    *Box
	source tool.Source
	// approved is true for a tool that requires approval, and schema is the hash of its schema then.
	approved bool
	schema   string
}

// Call calls the tool. A tool that requires approval is looked at once more, as writing the intent to the journal may take long: the
// call goes to the very object that was looked at.
func (r *route) Call(ctx context.Context, c tool.Call) (tool.Result, error) {
	if r.source.Agent != "" {
		// A call that is made again looks for the Turn that it has made: nothing new is released.
		if r.approved && c.Attempt <= 1 {
			if err := r.checkAgent(ctx); err != nil {
				return tool.Result{}, err
			}
		}
		return r.box.Call(r.source.Agent).Call(ctx, c)
	}
	server, err := r.server(ctx)
	if err == nil && r.approved {
		err = r.checkServer(ctx, server)
	}
	if err != nil {
		return tool.Result{}, err
	}
	return r.box.Servers.Caller(server, r.source.Name).Call(ctx, c)
}

// Check implements tool.Checker. It asks the server for its tools.
func (r *route) Check(ctx context.Context) error {
	if r.source.Agent != "" {
		return r.checkAgent(ctx)
	}
	server, err := r.server(ctx)
	if err != nil {
		return err
	}
	return r.checkServer(ctx, server)
}

func (r *route) checkAgent(ctx context.Context) error {
	agent, err := r.box.SubAgent(ctx, r.source.Agent)
	if err != nil {
		return &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf("there is no agent %q any more", r.source.Agent), Err: err}
	}
	return r.same(kindAgent, r.source.Agent, agent.UID)
}

func (r *route) checkServer(ctx context.Context, server *v1alpha1.ToolServer) error {
	if err := r.same(kindToolServer, r.source.Server, server.UID); err != nil {
		return err
	}
	tools, err := r.box.Servers.Current(ctx, server)
	if err != nil {
		return &tool.Error{
			Class: tool.Unavailable, Err: err,
			Message: fmt.Sprintf("tool server %q could not be asked whether the tool is still the one that was approved, and the call was not made", r.source.Server),
		}
	}
	for _, t := range tools {
		if t.Name != r.source.Name {
			continue
		}
		// What the Turn has went through Expose, too, which completes a schema.
		if now := tool.Expose([]tool.Offer{{Server: server.Name, Tools: []tool.Tool{t}}}, nil); len(now) == 1 && now[0].SchemaHash() == r.schema {
			return nil
		}
	}
	return changed("the tool %q of tool server %q has another schema since this turn began, or is gone: answer without it", r.source.Name, r.source.Server)
}

func (r *route) server(ctx context.Context) (*v1alpha1.ToolServer, error) {
	server, err := r.box.Server(ctx, r.source.Server)
	if err != nil {
		return nil, &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf("there is no tool server %q any more", r.source.Server), Err: err}
	}
	return server, nil
}

// The kinds of objects that have tools.
const (
	kindToolServer = "ToolServer"
	kindAgent      = "Agent"
)

// same returns an error if an object is not the one that the Turn knows. The Turn of an older version knows no UID.
func (r *route) same(kind, name string, uid types.UID) error {
	if r.source.UID == "" || r.source.UID == string(uid) {
		return nil
	}
	return changed("the %s %q was replaced by another one of its name since this turn began: answer without it", kind, name)
}

func changed(format string, args ...any) error {
	return &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf(format, args...), Err: tool.ErrChanged}
}
