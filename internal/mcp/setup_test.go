package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for any event. It is longer than any step needs.
const patience = time.Minute

const token = "tok-0123456789abcdefghijklmnop"

// site is an MCP server of the SDK that serves over HTTP. A test may change its responses.
type site struct {
	*sdk.Server
	URL string
	// web is the HTTP server.
	web *httptest.Server

	mu     sync.Mutex
	before func(http.ResponseWriter, *http.Request, message) bool
	seen   []*http.Request
	lists  int
}

// message holds the parts of a protocol message that the tests use.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name    string         `json:"name"`
		Cursor  string         `json:"cursor"`
		Version string         `json:"protocolVersion"`
		Meta    map[string]any `json:"_meta"`
	} `json:"params"`
}

// serve starts a server with options and tools.
func serve(t *testing.T, options *sdk.StreamableHTTPOptions, tools ...func(*sdk.Server)) *site {
	t.Helper()
	s := &site{Server: sdk.NewServer(&sdk.Implementation{Name: "site", Version: "1.2.3"}, nil)}
	for _, add := range tools {
		add(s.Server)
	}
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.Server }, options)
	//nolint:contextcheck // because the record of a request is used after the request has ended
	s.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, handler) }))
	s.URL = s.web.URL + "/mcp"
	t.Cleanup(func() {
		for session := range s.Sessions() {
			_ = session.Close() // the test is over
		}
		s.web.CloseClientConnections()
		s.web.Close()
	})
	return s
}

// tamper sets a function that is called with each request first. It returns true if it has handled the request;
// otherwise the server handles it.
func (s *site) tamper(before func(http.ResponseWriter, *http.Request, message) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func (s *site) handle(w http.ResponseWriter, r *http.Request, next http.Handler) {
	body, m := peek(r)
	s.mu.Lock()
	before := s.before
	s.seen = append(s.seen, r.Clone(context.Background()))
	if m.Method == "tools/list" {
		s.lists++
	}
	s.mu.Unlock()
	if before != nil && before(w, r, m) {
		return
	}
	r.Body = body
	next.ServeHTTP(w, r)
}

// requests returns the requests so far, without bodies.
func (s *site) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*http.Request{}, s.seen...)
}

// listings returns how often the tools were listed.
func (s *site) listings() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// client returns a client that is closed when the test ends.
func client(t *testing.T, url string, mutate ...func(*mcp.Config)) *mcp.Client {
	t.Helper()
	cfg := mcp.Config{
		Name: "demo", URL: url, Token: token, CredentialsFrom: `key "token" of Secret "demo"`, ConnectTimeout: 30 * time.Second,
		Policy: netpolicy.NewLocalPolicy(), Now: time.Now, Log: logr.Discard(),
	}
	for _, m := range mutate {
		m(&cfg)
	}
	c := mcp.New(cfg)
	t.Cleanup(c.Close)
	return c
}

// patient returns a context that ends with the test, or after patience.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// call calls a tool with JSON arguments.
func call(ctx context.Context, c *mcp.Client, name, arguments string) (string, error) {
	result, err := c.Call(ctx, name, tool.Call{IdempotencyKey: "turn-1/2/c3", Arguments: json.RawMessage(arguments)})
	return result.Whole(), err
}

// failure calls a tool and returns the error. The error must be a *tool.Error without credentials.
func failure(t *testing.T, c *mcp.Client, name string) *tool.Error {
	t.Helper()
	got, err := call(patient(t), c, name, `{}`)
	e, ok := errors.AsType[*tool.Error](err)
	if !ok {
		t.Fatalf("Call = %q, %v; want a *tool.Error", got, err)
	}
	if strings.Contains(e.Error(), token) || strings.Contains(e.Error(), "http://") {
		t.Errorf("the message %q contains a credential or the URL", e.Error())
	}
	return e
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// text returns a result with one text.
func text(s string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}
}

// plain adds a tool that accepts any arguments.
func plain(name string, handle sdk.ToolHandler) func(*sdk.Server) {
	return func(s *sdk.Server) {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, handle)
	}
}

// says adds a tool that always returns the same text.
func says(name, answer string) func(*sdk.Server) {
	return plain(name, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text(answer), nil })
}
