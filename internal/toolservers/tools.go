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
	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// Listing is what a server says of itself, and its tools with what the ToolServer says of them.
type Listing struct {
	// ServerName, ServerVersion and ProtocolVersion are as the server says, cut to what a status can hold.
	ServerName, ServerVersion, ProtocolVersion string
	// Tools by name. Their schemas are shared and not to be written to.
	Tools []tool.Tool
	// Hints of the server on the effects of tools that have any, by name. They are for people: the Tools have the effects that count.
	Hints map[string]tool.Hints
}

// SchemaHash is the first 16 hexadecimal digits of the SHA-256 of a JSON Schema, whatever its white space and the order of its
// members.
func SchemaHash(schema json.RawMessage) string { return mcp.SchemaHash(schema) }

// Discover asks a server for its tools now, with Secrets read now, and takes no longer than connectTimeoutSeconds beside the
// reading of Secrets. The error is a *secrets.Error, an *mcp.Error, or that of reading a Secret.
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
	clean := c.known.In(s.Namespace)
	return Listing{
		ServerName: cut(clean(l.ServerName), 253), ServerVersion: cut(clean(l.ServerVersion), 64), ProtocolVersion: cut(clean(l.ProtocolVersion), 32),
		Tools: c.offers(e, s, l), Hints: hints(l),
	}, nil
}

// hints are those of the tools that have any.
func hints(l *mcp.Listing) map[string]tool.Hints {
	all := map[string]tool.Hints{}
	for _, t := range l.Tools {
		if t.Hints != (tool.Hints{}) {
			all[t.Name] = t.Hints
		}
	}
	return all
}

// cut makes a text fit for a field of so many characters: on one line, without those that no terminal should get.
func cut(text string, most int) string {
	kept, _ := fence.Cap(fence.StripLine(text), most)
	return strings.TrimSpace(kept)
}

// Tools returns the tools of a server, by name, as they were known at most a minute ago. It connects if need be, and then takes no longer than
// the server's connectTimeoutSeconds. A server that is out of reach has those that it had before; if nothing is known of it,
// those of its status, with schemas that allow everything. It fails when ctx ends, and with toolbox.ErrUnknown if the status says
// that nobody has ever reached the server.
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
		l = e.before(ctx, s)
	}
	switch {
	case err != nil && l == nil && s.Status.LastDiscoveryTime == nil && len(s.Status.Tools) == 0:
		c.log.Info("A tool server that was never reached has no tools to offer", "toolServer", e.key.String(), "reason", err.Error())
		return nil, toolbox.ErrUnknown
	case err != nil:
		c.log.V(1).Info("Offering tools as they were known before", "toolServer", e.key.String(), "known", l != nil, "reason", err.Error())
	}
	if l == nil {
		return ofStatus(s), nil
	}
	return c.offers(e, s, l), nil
}

// Current returns the tools of a server as it has them now. It asks the server, and takes no longer than the server's
// connectTimeoutSeconds beside the reading of Secrets. It fails if the server cannot be asked.
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

// Caller returns what calls a tool by the name that its server gives it. It never fails: a call of a tool that cannot be
// called says why.
func (c *Cache) Caller(s *v1alpha1.ToolServer, name string) tool.Caller {
	return tool.CallerFunc(func(ctx context.Context, call tool.Call) (tool.Result, error) {
		for again := true; ; again = false {
			result, err := c.call(ctx, s, name, call)
			if again && errors.Is(err, mcp.ErrClosed) && tool.AsError(err).Class == tool.Unavailable {
				continue // the connection was replaced just then, and nothing was sent
			}
			return result, err
		}
	})
}

func (c *Cache) call(ctx context.Context, s *v1alpha1.ToolServer, name string, call tool.Call) (tool.Result, error) {
	e, err := c.entry(s)
	var client *mcp.Client
	if err == nil {
		client, err = c.connection(ctx, e, s, secretTTL)
	}
	if err != nil {
		return tool.Result{}, unusable(s.Name, err)
	}
	return client.Call(ctx, name, call)
}

// unusable is the failure of a call for which there is no connection.
func unusable(server string, err error) *tool.Error {
	message, said := "its credentials could not be read, and the call was not made", ""
	if e, ok := errors.AsType[*secrets.Error](err); ok {
		message = e.Reason
	} else if e, ok := errors.AsType[*mcp.Error](err); ok {
		message, said = e.Message, e.Said
	}
	return &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf("tool server %q: %s", server, message), Said: said, Err: err}
}

// offers returns what a list offers by what an object says of it.
func (c *Cache) offers(e *entry, s *v1alpha1.ToolServer, l *mcp.Listing) []tool.Tool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known, e.knownUID = l, s.UID
	if e.offeredAs != l || e.offeredFor != s.Generation || s.Generation == 0 {
		e.offered, e.offeredAs, e.offeredFor = merge(s, l, c.known.In(s.Namespace)), l, s.Generation
	}
	return slices.Clone(e.offered)
}

// before returns what an object was last known to offer, nil for nothing.
func (e *entry) before(ctx context.Context, s *v1alpha1.ToolServer) *mcp.Listing {
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

// merge adds what an object says of its tools to what its server says. redact returns a text without the credentials of the
// namespace: a server may know those of another one. A tool that has one in its name could not be called, and is left out.
func merge(s *v1alpha1.ToolServer, l *mcp.Listing, redact func(text string) string) []tool.Tool {
	tools := make([]tool.Tool, 0, len(l.Tools))
	for _, t := range l.Tools {
		if redact(t.Name) != t.Name {
			continue
		}
		schema := t.Schema
		if clean := redact(string(schema)); clean != string(schema) {
			if schema = json.RawMessage(clean); !json.Valid(schema) {
				schema = anything
			}
		}
		tools = append(tools, declared(s, tool.Tool{
			Tool: prompt.Tool{Name: t.Name, Description: redact(t.Description)}, Schema: schema, Effect: tool.Judge(toolbox.DeclaredEffect(s, t.Name), t.Hints),
		}))
	}
	return tools
}

// ofStatus returns the tools that the status of an object lists, but for those that it says no model can be told of.
func ofStatus(s *v1alpha1.ToolServer) []tool.Tool {
	tools := make([]tool.Tool, 0, len(s.Status.Tools))
	for _, t := range s.Status.Tools {
		if t.Unusable != "" {
			continue
		}
		tools = append(tools, declared(s, tool.Tool{
			Tool: prompt.Tool{Name: t.Name, Description: t.Description}, Schema: anything, Effect: KnownEffect(s, &t),
		}))
	}
	return tools
}

// KnownEffect returns the effect of a tool of which only the status of an object is known: the one that the object declares, or a
// stricter one if the status has it, which is then by a hint of the server. A status that an older version wrote grants nothing.
func KnownEffect(s *v1alpha1.ToolServer, t *v1alpha1.DiscoveredTool) tool.Effect {
	return tool.Stricter(toolbox.DeclaredEffect(s, t.Name), tool.Effect(t.Effect))
}

// anything is the schema of arguments of which nothing is known.
var anything = json.RawMessage(`{"type":"object"}`)

// declared adds what an object says of a tool, but for its effect, to what is known of it.
func declared(s *v1alpha1.ToolServer, t tool.Tool) tool.Tool {
	t.Source = tool.Source{Server: s.Name, Name: t.Name}
	t.Role = tool.Other
	t.Timeout = time.Duration(s.Spec.CallTimeoutSeconds) * time.Second
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
		t.RetryOnTimeout = d.RetryOnTimeout == v1alpha1.RetryOnTimeoutOnce
		t.EndsTurn = d.EndsTurn == v1alpha1.EndsTurnOnSuccess
	}
	return t
}
