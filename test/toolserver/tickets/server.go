// Package tickets is a tool server: an MCP server over streamable HTTP, with the tickets of a small helpdesk. The
// demo and the tests serve it over real HTTP:
//
//	desk, err := tickets.NewDesk(nil)
//	web := httptest.NewServer(tickets.Handler(desk, nil))
//	defer web.Close()
//	url := web.URL + "/mcp"
//
// In addition to the tools, it serves GET /healthz and GET /tickets, which returns all tickets as JSON, so that
// people and tests can see the effects of the calls.
package tickets

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sessionTimeout is the idle time after which the server ends a session that its client has not closed.
const sessionTimeout = 10 * time.Minute

// Handler returns the HTTP handler of a desk. log receives a line for each tool call. If log is nil, nothing is
// logged.
func Handler(d *Desk, log *slog.Logger) http.Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "tickets", Version: "1.0.0"}, nil)
	server.AddReceivingMiddleware(logCalls(log))
	addTools(server, d)
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{SessionTimeout: sessionTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /tickets", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d.Tickets()) // ignore that the client has disconnected
	})
	return mux
}
