package cli_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// toolServer is an MCP server with two tools, built with the reference SDK.
type toolServer struct {
	url string

	mu     sync.Mutex
	closed []string
}

// closedTickets returns the tickets that were closed.
func (s *toolServer) closedTickets() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.closed, ",")
}

// serveTools serves tools until the test ends. If token is not empty, the server requires it.
func serveTools(t *testing.T, token string) *toolServer {
	t.Helper()
	s := &toolServer{}
	server := mcp.NewServer(&mcp.Implementation{Name: "tickets", Version: "1"}, nil)
	type ticket struct {
		ID   string `json:"id"`
		Note string `json:"note,omitempty"`
	}
	text := func(text string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	}
	read := &mcp.ToolAnnotations{ReadOnlyHint: true}
	mcp.AddTool(server, &mcp.Tool{Name: "get_ticket", Description: "Returns a ticket.", Annotations: read},
		func(_ context.Context, _ *mcp.CallToolRequest, in ticket) (*mcp.CallToolResult, any, error) {
			if in.ID == "long" {
				return text("\x1b[2J" + strings.Repeat("0123456789", 2000)), nil, nil
			}
			return text("Ticket " + in.ID + " is open."), nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "close_ticket", Description: "Closes a ticket."},
		func(_ context.Context, _ *mcp.CallToolRequest, in ticket) (*mcp.CallToolResult, any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.closed = append(s.closed, in.ID)
			return text("Ticket " + in.ID + " is closed."), nil, nil
		})
	handler := http.Handler(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	s.url = web.URL + "/mcp"
	return s
}

const (
	toolServerYAML = `apiVersion: capstan.dev/v1alpha1
kind: ToolServer
metadata: {name: tickets}
spec:
  type: MCP
  mcp: {url: TOOLSURL}
`
	// closing has the rules of a model that closes the requested ticket and then repeats the result of the call.
	closing = `rules:
- {when: {toolMessages: 0, hasTools: true}, ` +
		`reply: {toolCalls: [{id: call_1, name: close_ticket, arguments: '{"id": "1042", "note": "a\nb"}'}]}}
- {reply: {text: 'It said: {{ range .Messages }}{{ if eq .Role "tool" }}{{ .Content }}{{ end }}{{ end }}'}}
`
)

// withTools returns all manifests that a run with tools needs. more is added to the entry of the Agent's tools.
func withTools(t *testing.T, url, more string) files {
	t.Helper()
	f := complete().with(t, "agent.yaml", "  limits:", "  tools:\n  - serverRef: {name: tickets}\n"+more+"  limits:")
	f["tools.yaml"] = strings.ReplaceAll(toolServerYAML, "TOOLSURL", url)
	return f
}

// requiresApproval is a field of an entry of the Agent's tools: closing a ticket requires approval.
const requiresApproval = "    requireApproval: [\"close_*\"]\n"
