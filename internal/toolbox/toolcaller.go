package toolbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// toolCaller calls one tool of a Turn. It looks up the ToolServer or Agent by its name at each call. A person approves
// a call of one object's tool with one schema, so the call of such a tool fails if the object or the schema has
// changed.
type toolCaller struct {
	box    *Box
	source tool.Source
	// needsApproval is true for a tool that requires approval. schemaHash is then the hash of its schema.
	needsApproval bool
	schemaHash    string
}

// Call calls the tool. A tool that requires approval is checked once more, because much time may pass while the intent
// is written to the journal. A sub-agent is checked only before its Turn is created. A sub-agent of another namespace
// is then checked even if it requires no approval. The call of a ToolServer goes to the object that was checked. A
// sub-agent is called by its name. While the API server gives no answer about the tool, or this process has no socket,
// the call waits: see awaitPassing.
func (r *toolCaller) Call(ctx context.Context, c tool.Call) (result tool.Result, err error) {
	if r.source.Agent != "" {
		// A repeated call needs no check if it finds the Turn that an earlier attempt created, because it causes
		// nothing new then. So the check is made by the code that creates the Turn.
		return r.box.Call(r.source.Agent, func(ctx context.Context) error {
			return awaitPassing(ctx, func() error { return r.checkNewCall(ctx) })
		}).Call(ctx, c)
	}
	err = awaitPassing(ctx, func() (err error) {
		result, err = r.callServer(ctx, c)
		return err
	})
	return result, err
}

// maxWait limits how long a call waits while the API server gives no answer about its tool, or while this process has
// no socket for the call.
const maxWait = 15 * time.Second

// awaitPassing repeats f while tool.MayPass is true for its error, and returns the last error: a short outage of the
// API server, or a shortage of this process, is no failure of the tool, and nothing was sent. It begins no attempt
// after maxWait, or after half of the time until the deadline of ctx, so that time is left for the call, or for the
// model to work without it.
func awaitPassing(ctx context.Context, f func() error) (err error) {
	limit := maxWait
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, max(1, time.Until(deadline)/2)) // 0 would mean no limit
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 2*time.Second
	// The error of f has a class, but the one of Retry may be that of ctx.
	_, _ = backoff.Retry(ctx, func() (struct{}, error) {
		if err = f(); !tool.MayPass(err) || tool.IsUncertain(err) {
			return struct{}{}, nil
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(limit))
	return err
}

func (r *toolCaller) callServer(ctx context.Context, c tool.Call) (tool.Result, error) {
	server, err := r.server(ctx)
	if err == nil && r.needsApproval {
		err = r.checkServer(ctx, server)
	}
	if err != nil {
		return tool.Result{}, err
	}
	return r.box.Servers.Caller(server, r.source.Name).Call(ctx, c)
}

// Check implements tool.Checker. It asks the server for its current tools.
func (r *toolCaller) Check(ctx context.Context) error {
	if r.source.Agent != "" {
		return r.checkAgent(ctx)
	}
	server, err := r.server(ctx)
	if err != nil {
		return err
	}
	return r.checkServer(ctx, server)
}

// checkNewCall is called just before a call creates the Turn of a sub-agent. An Agent of another namespace must still
// allow the call. An Agent of the same namespace may be missing: the new Turn then waits for it.
func (r *toolCaller) checkNewCall(ctx context.Context) error {
	switch {
	case r.needsApproval:
		return r.checkAgent(ctx)
	case strings.Contains(r.source.Agent, "/"):
		_, err := r.agent(ctx)
		return err
	}
	return nil
}

func (r *toolCaller) checkAgent(ctx context.Context) error {
	agent, err := r.agent(ctx)
	if err != nil {
		return err
	}
	return r.checkUID(kindAgent, r.source.Agent, agent.UID)
}

func (r *toolCaller) agent(ctx context.Context) (*v1alpha1.Agent, error) {
	agent, err := r.box.SubAgent(ctx, r.source.Agent)
	if err != nil {
		return nil, &tool.Error{
			Class: tool.Unavailable, Err: unread(err),
			Message: fmt.Sprintf("agent %q could not be read, no longer exists, or may no longer be used", r.source.Agent),
		}
	}
	return agent, nil
}

func (r *toolCaller) checkServer(ctx context.Context, server *v1alpha1.ToolServer) error {
	if err := r.checkUID(kindToolServer, r.source.Server, server.UID); err != nil {
		return err
	}
	tools, err := r.box.Servers.Current(ctx, server)
	if err != nil {
		return &tool.Error{
			Class: tool.Unavailable, Err: err,
			Message: fmt.Sprintf("the call was not made, because tool server %q could not confirm that the tool has not "+
				"changed since this turn began", r.source.Server),
		}
	}
	for _, t := range tools {
		if t.Name != r.source.Name {
			continue
		}
		// The Turn knows the schema as Expose has completed it, so Expose must complete the current schema, too.
		current := tool.Expose(ctx, []tool.Offer{{Server: r.source.Server, Tools: []tool.Tool{t}}}, nil)
		if len(current) == 1 && current[0].SchemaHash() == r.schemaHash {
			return nil
		}
	}
	return changed("the tool %q of tool server %q has changed its schema since this turn began, or no longer exists: answer without it",
		r.source.Name,
		r.source.Server)
}

func (r *toolCaller) server(ctx context.Context) (*v1alpha1.ToolServer, error) {
	server, err := r.box.Server(ctx, r.source.Server)
	if err != nil {
		return nil, &tool.Error{
			Class: tool.Unavailable, Err: unread(err),
			Message: fmt.Sprintf("tool server %q could not be read, no longer exists, or may no longer be used", r.source.Server),
		}
	}
	return server, nil
}

// unread returns an error of reading a ToolServer or an Agent. The error wraps tool.ErrUnread unless the object cannot
// be used.
func unread(err error) error {
	if errors.Is(err, ErrUnusable) {
		return err
	}
	return fmt.Errorf("%w: %w", tool.ErrUnread, err)
}

// The kinds of objects that have tools.
const (
	kindToolServer = "ToolServer"
	kindAgent      = "Agent"
)

// checkUID returns an error if an object is not the one that the Turn knows. Turns of older versions recorded no UID,
// and pass the check.
func (r *toolCaller) checkUID(kind, name string, uid types.UID) error {
	if r.source.UID == "" || r.source.UID == string(uid) {
		return nil
	}
	return changed("the %s %q was replaced by another one with the same name since this turn began: answer without it", kind, name)
}

func changed(format string, args ...any) error {
	return &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf(format, args...), Err: tool.ErrChanged}
}
