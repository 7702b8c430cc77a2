// Package tickets is a server of tools: an MCP server over streamable HTTP, with the tickets of a small helpdesk. The demo and
// tests serve it over real HTTP:
//
//	desk, err := tickets.NewDesk(nil)
//	web := httptest.NewServer(tickets.Handler(desk, nil))
//	defer web.Close()
//	url := web.URL + "/mcp"
//
// Beside the tools it serves GET /healthz, and GET /tickets, all tickets as JSON, so that people and tests can see what became
// of them.
package tickets

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sessionTimeout ends the sessions of clients that have gone without a word.
const sessionTimeout = 10 * time.Minute

// Handler serves a desk. log gets a line for each call of a tool; nil for none.
func Handler(d *Desk, log *slog.Logger) http.Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "tickets", Version: "1.0.0"}, nil)
	server.AddReceivingMiddleware(logged(log))
	addTools(server, d)
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{SessionTimeout: sessionTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /tickets", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d.Tickets()) // a client that has gone needs no answer
	})
	return mux
}
