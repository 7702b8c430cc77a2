package toolservers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/compensation"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// Listing is a server's description of itself, and its tools combined with the declarations of the ToolServer.
type Listing struct {
	// ServerName, ServerVersion and ProtocolVersion are what the server says about itself, shortened to fit into a
	// status.
	ServerName, ServerVersion, ProtocolVersion string
	// Tools is sorted by name. Their schemas are shared and must not be changed.
	Tools []tool.Tool
	// Hints maps the names of tools to the server's hints about their effects, for tools that have any. Hints are shown
	// to people; the effects in Tools are the ones that apply.
	Hints map[string]tool.Hints
}

// SchemaHash returns the first 16 hexadecimal digits of the SHA-256 of a JSON Schema. White space and the order of
// members do not change the hash.
func SchemaHash(schema json.RawMessage) string { return mcp.SchemaHash(schema) }

// Discover requests the tools of a server now, with Secrets that are read now. It takes no longer than
// connectTimeoutSeconds, plus the time to read Secrets. The error is a *secrets.Error, an *mcp.Error, or the error
// of reading a Secret.
func (c *Cache) Discover(ctx context.Context, s *v1alpha1.ToolServer) (Listing, error) {
	e, err := c.entry(s)
	if err != nil {
		return Listing{}, err
	}
	client, err := c.connection(ctx, e, s, 0)
	if err != nil {
		return Listing{}, err
	}
	l, err := client.Discover(ctx)
	if err != nil {
		return Listing{}, err
	}
	clean := c.known.RedactFunc(s.Namespace)
	return Listing{
		ServerName: shorten(clean(l.ServerName), 253), ServerVersion: shorten(clean(l.ServerVersion), 64),
		ProtocolVersion: shorten(clean(l.ProtocolVersion), 32),
		Tools:           c.offers(e, s, l), Hints: hints(l),
	}, nil
}

// hints returns the hints of the tools that have any.
func hints(l *mcp.Listing) map[string]tool.Hints {
	all := map[string]tool.Hints{}
	for _, t := range l.Tools {
		if t.Hints != (tool.Hints{}) {
			all[t.Name] = t.Hints
		}
	}
	return all
}

// shorten makes a text fit into a field of limit characters, on one line and without characters that are unsafe for
// terminals.
func shorten(text string, limit int) string {
	kept, _ := untrusted.Cap(untrusted.StripLine(text), limit)
	return strings.TrimSpace(kept)
}

// Tools returns the tools of a server, sorted by name, from a list that is at most a minute old. It connects if
// necessary, which takes no longer than the server's connectTimeoutSeconds.
//
// If the server is unreachable, Tools returns the last known tools, or else the tools in the object's status, with
// schemas that allow everything. If the status says that the server was never reached, it returns toolbox.ErrUnknown.
// It also fails when ctx ends.
func (c *Cache) Tools(ctx context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error) {
	e, err := c.entry(s)
	if err != nil {
		return nil, err
	}
	var l *mcp.Listing
	client, err := c.connection(ctx, e, s, secretTTL)
	if err == nil {
		l, err = client.Tools(ctx, listTTL)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if l == nil {
		l = e.lastKnown(ctx, s)
	}
	isUnknown := err != nil && l == nil && s.Status.LastDiscoveryTime == nil && len(s.Status.Tools) == 0
	switch {
	case isUnknown && errors.Is(err, tool.ErrOwnShortage): // the Turn waits, and does not run without these tools
		return nil, err
	case isUnknown:
		c.log.Info("A tool server that was never reached has no known tools", "toolServer", e.key.String(), "reason", err.Error())
		return nil, toolbox.ErrUnknown
	case err != nil:
		c.log.V(1).Info("Offering the last known tools of a tool server", "toolServer", e.key.String(), "known", l != nil,
			"reason", err.Error())
	}
	if l == nil {
		return toolsInStatus(s), nil
	}
	return c.offers(e, s, l), nil
}

// Current returns the tools that a server has now. It asks the server, which takes no longer than its
// connectTimeoutSeconds, plus the time to read Secrets. It fails if the server does not answer. Its error wraps
// tool.ErrUnread if the API server did not return the Secrets for the moment.
func (c *Cache) Current(ctx context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error) {
	e, err := c.entry(s)
	if err != nil {
		return nil, err
	}
	client, err := c.connection(ctx, e, s, secretTTL)
	if err != nil {
		return nil, err
	}
	l, err := client.Discover(ctx)
	if err != nil {
		return nil, err
	}
	return c.offers(e, s, l), nil
}

// Caller returns the caller of a tool. name is the tool's name at its server. Caller never fails: if the tool cannot be
// called, each call returns the cause.
func (c *Cache) Caller(s *v1alpha1.ToolServer, name string) tool.Caller {
	return tool.CallerFunc(func(ctx context.Context, call tool.Call) (tool.Result, error) {
		return onReplacement(func() (tool.Result, error) { return c.call(ctx, s, name, call) })
	})
}

// onReplacement makes a call, and makes it again if its connection was replaced at that moment and nothing was sent on
// that connection. The call may have been sent in an earlier session only if it is repeatable. The error says so even
// if the last attempt sent nothing.
func onReplacement(call func() (tool.Result, error)) (tool.Result, error) {
	result, err := call()
	if !errors.Is(err, mcp.ErrClosed) || tool.AsError(err).Class != tool.Unavailable {
		return result, err
	}
	mayHaveActed := tool.AsError(err).MayHaveActed
	if result, err = call(); err != nil && mayHaveActed {
		failure := *tool.AsError(err)
		failure.MayHaveActed = true
		return tool.Result{}, &failure
	}
	return result, err
}

func (c *Cache) call(ctx context.Context, s *v1alpha1.ToolServer, name string, call tool.Call) (tool.Result, error) {
	e, err := c.entry(s)
	var client *mcp.Client
	if err == nil {
		client, err = c.connection(ctx, e, s, secretTTL)
	}
	if err != nil {
		return tool.Result{}, connectionError(s.Name, err)
	}
	return client.Call(ctx, name, call)
}

// connectionError returns the error of a call for which there is no connection. It matches tool.ErrUnread if err does.
func connectionError(server string, err error) *tool.Error {
	message, remote := "its credentials could not be read, and the call was not made", ""
	if e, ok := errors.AsType[*secrets.Error](err); ok {
		message = e.Reason
	} else if e, ok := errors.AsType[*mcp.Error](err); ok {
		message, remote = e.Message, e.RemoteMessage
	}
	return &tool.Error{
		Class: tool.Unavailable, Message: fmt.Sprintf("tool server %q: %s", server, message), RemoteMessage: remote,
		Err: err,
	}
}

// offers returns the tools of a list with the declarations of the object. If neither has changed, it returns a copy of
// the last result.
func (c *Cache) offers(e *entry, s *v1alpha1.ToolServer, l *mcp.Listing) []tool.Tool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known, e.knownUID = l, s.UID
	if e.offeredAs != l || e.offeredFor != s.Generation || s.Generation == 0 {
		e.offered, e.offeredAs, e.offeredFor = merge(s, l, c.known.RedactFunc(s.Namespace)), l, s.Generation
	}
	return slices.Clone(e.offered)
}

// lastKnown returns the last known list of an object, or nil.
func (e *entry) lastKnown(ctx context.Context, s *v1alpha1.ToolServer) *mcp.Listing {
	if e.acquire(ctx) == nil {
		defer e.unlock()
		if e.client != nil && e.uid == s.UID && e.client.Known() != nil {
			return e.client.Known()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.knownUID != s.UID {
		return nil
	}
	return e.known
}

// merge combines the tools of a server with the declarations of its ToolServer. redact removes all credentials of the
// namespace from a text, because a server may know the credentials of another server. merge leaves out a tool with a
// credential in its name: it could not be called.
func merge(s *v1alpha1.ToolServer, l *mcp.Listing, redact func(text string) string) []tool.Tool {
	tools := make([]tool.Tool, 0, len(l.Tools))
	for _, t := range l.Tools {
		if redact(t.Name) != t.Name {
			continue
		}
		schema := t.Schema
		if clean := redact(string(schema)); clean != string(schema) {
			if schema = json.RawMessage(clean); !json.Valid(schema) {
				schema = anySchema
			}
		}
		tools = append(tools, withDeclarations(s, tool.Tool{
			Tool: prompt.Tool{Name: t.Name, Description: redact(t.Description)}, Schema: schema,
			Effect: tool.ResolveEffect(toolbox.DeclaredEffect(s, t.Name), t.Hints),
		}))
	}
	return tools
}

// toolsInStatus returns the tools in the status of an object, except those that the status marks as unusable.
func toolsInStatus(s *v1alpha1.ToolServer) []tool.Tool {
	tools := make([]tool.Tool, 0, len(s.Status.Tools))
	for _, t := range s.Status.Tools {
		if t.Unusable != "" {
			continue
		}
		tools = append(tools, withDeclarations(s, tool.Tool{
			Tool: prompt.Tool{Name: t.Name, Description: t.Description}, Schema: anySchema, Effect: KnownEffect(s, &t),
		}))
	}
	return tools
}

// KnownEffect returns the effect of a tool when only the object's status describes it. It is the stricter of the
// declared effect and the one in the status. A stricter one in the status comes from a hint of the server. A status
// that an older version wrote grants nothing.
func KnownEffect(s *v1alpha1.ToolServer, t *v1alpha1.DiscoveredTool) tool.Effect {
	return tool.Stricter(toolbox.DeclaredEffect(s, t.Name), tool.Effect(t.Effect))
}

// anySchema is the schema of a tool whose arguments are unknown.
var anySchema = json.RawMessage(`{"type":"object"}`)

// withDeclarations adds the declarations of the ToolServer to a tool, except for the effect.
func withDeclarations(s *v1alpha1.ToolServer, t tool.Tool) tool.Tool {
	t.Source = tool.Source{Server: s.Name, Name: t.Name}
	t.Role = tool.Other
	t.Timeout = time.Duration(s.Spec.CallTimeoutSeconds) * time.Second
	t.RetryOnTimeout = t.Effect == tool.ReadOnly // such a call does no harm if it is made twice
	for i := range s.Spec.Tools {
		d := &s.Spec.Tools[i]
		if d.Name != t.Name {
			continue
		}
		if d.Role != "" {
			t.Role = tool.Role(d.Role)
		}
		if d.CallTimeoutSeconds != nil {
			t.Timeout = time.Duration(*d.CallTimeoutSeconds) * time.Second
		}
		if d.RetryOnTimeout != "" {
			t.RetryOnTimeout = d.RetryOnTimeout == v1alpha1.RetryOnTimeoutOnce
		}
		t.EndsTurn = d.EndsTurn == v1alpha1.EndsTurnOnSuccess
		t.Compensation = compensationOf(d.Compensation)
	}
	return t
}

// compensationOf returns a declared compensation in the form that the engine uses, or nil if there is none.
func compensationOf(c *v1alpha1.Compensation) *tool.Compensation {
	if c == nil {
		return nil
	}
	out := &tool.Compensation{Tool: c.Tool}
	for _, a := range c.Arguments {
		out.Arguments = append(out.Arguments, tool.CompensationArgument{Name: a.Name, Value: a.Value})
	}
	return out
}

// CheckCompensations returns an *invalid.Error for the first expression of a compensation that cannot be used.
// Namespaces take turns at this work: see fairgate.
func CheckCompensations(ctx context.Context, s *v1alpha1.ToolServer) error {
	for i := range s.Spec.Tools {
		c := compensationOf(s.Spec.Tools[i].Compensation)
		if c == nil {
			continue
		}
		if err := compensation.Check(ctx, fmt.Sprintf("spec.tools[%d].compensation", i), c); err != nil {
			return err
		}
	}
	return nil
}
