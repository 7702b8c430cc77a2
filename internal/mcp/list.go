package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

const (
	// MaxTools is the maximum number of tools that a server may list.
	MaxTools = 1000
	// MaxListBytes is the maximum size of the whole list, in bytes.
	MaxListBytes = 4 << 20
	// MaxName is the maximum length of a tool's name, in bytes. A tool with a longer name is left out.
	MaxName = 128
	// MaxDescription is the maximum length of a tool's description, in bytes. A longer description is cut there, and
	// ends in "...".
	MaxDescription = 8 << 10
	// maxPages is the maximum number of pages of a list.
	maxPages = 200
	// maxCursor is the maximum length of the cursor for another page, in bytes.
	maxCursor = 16 << 10
)

// Listing describes a server and its tools.
type Listing struct {
	// ServerName, ServerVersion and ProtocolVersion come from the server.
	ServerName, ServerVersion, ProtocolVersion string
	// Tools is sorted by name.
	Tools []Tool
	// hash is the same for equal lists.
	hash [sha256.Size]byte
}

// Tool describes a tool of a server.
type Tool struct {
	Name, Description string
	// Schema is the compact JSON Schema of the arguments. It allows any object if the server sends no JSON object as
	// the schema. Otherwise, it may be any JSON object: tool.Unusable checks whether it is a JSON Schema.
	Schema json.RawMessage
	// Hints are the server's hints about the tool's effect.
	Hints tool.Hints
}

// anySchema is the schema of a tool whose arguments are unknown.
var anySchema = json.RawMessage(`{"type":"object"}`)

// wireTool is the JSON form of a tool.
type wireTool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
	Annotations wireHints       `json:"annotations"`
}

// UnmarshalJSON implements json.Unmarshaler. It leaves the tool empty if a member has the wrong type, so that one such
// tool does not make the list of its server unusable.
func (t *wireTool) UnmarshalJSON(data []byte) error {
	type members wireTool // without this method
	var read members
	if json.Unmarshal(data, &read) == nil {
		*t = wireTool(read)
	}
	return nil
}

// wireHints is the JSON form of the hints of a tool.
type wireHints struct {
	ReadOnly    hint `json:"readOnlyHint"`
	Idempotent  hint `json:"idempotentHint"`
	Destructive hint `json:"destructiveHint"`
}

// UnmarshalJSON implements json.Unmarshaler. A value that is not an object has no hints. For example, PHP writes an
// empty object as a list.
func (h *wireHints) UnmarshalJSON(data []byte) error {
	type members wireHints // without this method
	var read members
	if json.Unmarshal(data, &read) == nil {
		*h = wireHints(read)
	}
	return nil
}

// hint is a hint of a tool. It is nil if there is none, or if it is not a boolean.
type hint struct{ value *bool }

// UnmarshalJSON implements json.Unmarshaler.
func (h *hint) UnmarshalJSON(data []byte) error {
	var value bool
	if json.Unmarshal(data, &value) == nil && string(data) != "null" {
		h.value = &value
	}
	return nil
}

func (h hint) isTrue() bool { return h.value != nil && *h.value }

// list lists all tools of a session. Memory for the pages that have arrived is reserved while further pages arrive.
func (c *Client) list(ctx context.Context, s *session) (kept *Listing, err error) {
	l := &Listing{}
	reservation, err := c.cfg.Listings.TryReserve(0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if kept != l {
			reservation.Release()
		}
	}()
	if r := s.InitializeResult(); r != nil {
		l.ProtocolVersion = c.redactor.Redact(r.ProtocolVersion)
		if r.ServerInfo != nil {
			l.ServerName, l.ServerVersion = c.redactor.Redact(r.ServerInfo.Name), c.redactor.Redact(r.ServerInfo.Version)
		}
	}
	seen := map[string]bool{}
	cursor, left := "", MaxListBytes
	for pages := range maxPages {
		page, size, err := s.page(ctx, cursor)
		if err != nil && pages > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, c.unfinished(pages, err)
		}
		if err != nil {
			return nil, err
		}
		if left -= size; left < 0 {
			return nil, fmt.Errorf("%w: its list of tools exceeds %d MiB", errLimit, MaxListBytes>>20)
		}
		release := fairgate.AcquireProcessor(ctx, size)
		for _, t := range page.Tools {
			if t.Name == "" || len(t.Name) > MaxName || !utf8.ValidString(t.Name) || seen[t.Name] || c.redactor.Redact(t.Name) != t.Name {
				continue // such a tool cannot be called, has no unique name that can be shown, or could not be read
			}
			seen[t.Name] = true
			l.Tools = append(l.Tools, c.tool(t))
		}
		release()
		if len(l.Tools) > MaxTools {
			return nil, fmt.Errorf("%w: it lists more than %d tools", errLimit, MaxTools)
		}
		if page.NextCursor == "" || page.NextCursor == cursor {
			release := fairgate.AcquireProcessor(ctx, int(l.bytes()))
			l.finish()
			release()
			return c.reserveListing(l, reservation)
		}
		if cursor = page.NextCursor; len(cursor) > maxCursor {
			return nil, fmt.Errorf("%w: the cursor of a page of its list of tools exceeds %d KiB", errLimit, maxCursor>>10)
		}
		if err := l.reserve(reservation); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: its list of tools has more than %d pages", errLimit, maxPages)
}

// unfinished returns the error for a list of which only some pages arrived in time.
func (c *Client) unfinished(pages int, err error) *Error {
	arrived := "1 page has arrived"
	if pages > 1 {
		arrived = fmt.Sprintf("%d pages have arrived", pages)
	}
	return &Error{Kind: Unreachable, Err: err, Message: fmt.Sprintf("the list of tools did not end within %s (connectTimeoutSeconds): "+
		"%s, and the server says that there are more", c.cfg.ConnectTimeout, arrived)}
}

// wirePage is the JSON form of a page of a list.
type wirePage struct {
	Tools      elements[wireTool] `json:"tools"`
	NextCursor string             `json:"nextCursor"`
}

// sendCursor is a middleware of the SDK that adds the cursor to a request for tools. If the SDK knew the cursor, it
// would keep it, with an empty list, until the session ends: in newer versions of the protocol, the SDK caches each
// page by its cursor. A server could send new cursors without end.
func sendCursor(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if params, ok := req.GetParams().(*sdk.ListToolsParams); ok {
			params.Cursor = exchangeOf(ctx).cursor
			defer func() { params.Cursor = "" }()
		}
		return next(ctx, method, req)
	}
}

// page requests one page of the list, and returns it with its size in bytes.
func (s *session) page(ctx context.Context, cursor string) (*wirePage, int, error) {
	ex := &exchange{cursor: cursor}
	defer ex.end()
	_, err := s.ListTools(withExchange(ctx, ex), &sdk.ListToolsParams{})
	page := &wirePage{}
	release := fairgate.AcquireProcessor(ctx, ex.size())
	remoteErr, decodeErr := ex.decode(page)
	release()
	switch {
	case errors.Is(decodeErr, errBroken):
		if isLost(err, ex) {
			s.lost.Store(true)
		}
		return nil, 0, ex.cause(err)
	case errors.Is(decodeErr, errElements):
		return nil, 0, fmt.Errorf("%w: %w", errLimit, errElements)
	case decodeErr != nil:
		return nil, 0, decodeErr
	case remoteErr != nil:
		return nil, 0, remoteErr
	}
	return page, ex.size(), nil
}

// errNoMemory means that there is not enough memory for a list.
var errNoMemory = errors.New("the memory for lists of tools is used up")

// perTool is the memory for a tool without its texts, in bytes. It includes the values that are derived from the tool
// for Agents.
const perTool = 1 << 10

// bytes returns roughly how much memory a list needs, including the facts about the server.
func (l *Listing) bytes() int64 {
	n := int64(perTool)
	for _, t := range l.Tools {
		n += int64(len(t.Name)+len(t.Description)+len(t.Schema)) + perTool
	}
	return n
}

// reserve makes a reservation as large as the list. It returns errNoMemory if the budget of the namespace is used up.
func (l *Listing) reserve(reservation *bytebudget.Reservation) error {
	if err := reservation.Resize(l.bytes()); err != nil {
		return fmt.Errorf("%w: its list takes %d KiB, and the tool servers of the namespace may hold no "+
			"more: have the server list fewer tools or shorter "+
			"schemas, delete ToolServers, or raise the manager's memory limit", errNoMemory, l.bytes()>>10)
	}
	return nil
}

// reserveListing returns a list with memory for all of it, which is released when the list is garbage-collected. If the
// known list is equal, reserveListing returns that list instead. The error is errNoMemory.
func (c *Client) reserveListing(l *Listing, reservation *bytebudget.Reservation) (*Listing, error) {
	if known := c.Known(); known != nil && known.hash == l.hash {
		return known, nil
	}
	if err := l.reserve(reservation); err != nil {
		return nil, err
	}
	runtime.AddCleanup(l, func(reservation *bytebudget.Reservation) { reservation.Release() }, reservation)
	return l, nil
}

// errLimit means that the list of a server exceeds a limit: on its size, its pages, its tools, or its cursors.
var errLimit = errors.New("the server offers too much")

// finish sorts the tools and computes the hash.
func (l *Listing) finish() *Listing {
	slices.SortFunc(l.Tools, func(a, b Tool) int { return strings.Compare(a.Name, b.Name) })
	h := sha256.New()
	h.Write(fmt.Appendf(nil, "%q %q %q", l.ServerName, l.ServerVersion, l.ProtocolVersion))
	for _, t := range l.Tools {
		destroys := t.Hints.Destructive
		h.Write(fmt.Appendf(nil, "%q %q %q %t %t %t %t", t.Name, t.Description, t.Schema, t.Hints.ReadOnly, t.Hints.Idempotent,
			destroys != nil, destroys != nil && *destroys))
	}
	h.Sum(l.hash[:0])
	return l
}

// tool converts the JSON form of a tool. It redacts credentials that the server repeats.
func (c *Client) tool(t wireTool) Tool {
	description := t.Description
	if description == "" {
		description = t.Title
	}
	// Redact first, and shorten then: shortening may leave a part of a credential, which the redactor would not
	// recognize.
	if description = c.redactor.Redact(strings.ToValidUTF8(description, "\uFFFD")); len(description) > MaxDescription {
		description = strings.ToValidUTF8(description[:MaxDescription], "") + "..."
	}
	kept := Tool{Name: t.Name, Description: description, Schema: anySchema}
	var schema bytes.Buffer
	if err := json.Compact(&schema, []byte(c.redactor.Redact(string(t.InputSchema)))); err == nil &&
		bytes.HasPrefix(schema.Bytes(), []byte("{")) {
		kept.Schema = slices.Clone(schema.Bytes()) // a schema that is no JSON object after redaction counts as missing
	}
	hints := t.Annotations
	kept.Hints = tool.Hints{ReadOnly: hints.ReadOnly.isTrue(), Idempotent: hints.Idempotent.isTrue(), Destructive: hints.Destructive.value}
	return kept
}

// SchemaHash returns the first 16 hexadecimal digits of the SHA-256 of a JSON Schema. White space and the order of
// members do not change it. If the schema is invalid JSON, its text is hashed.
func SchemaHash(schema json.RawMessage) string {
	canonical := []byte(schema)
	decoder := json.NewDecoder(bytes.NewReader(schema))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err == nil {
		if sorted, err := json.Marshal(value); err == nil {
			canonical = sorted
		}
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:8])
}
