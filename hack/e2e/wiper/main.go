// Command wiper is an MCP server with one destructive tool: wipe. It counts each call by disk when the call
// arrives, because that is when the effect happens. It answers after the number of seconds in the call. GET /wiped
// shows the counts.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// address is the address that the Service in the manifests expects.
const address = ":8090"

// sessionTimeout is the time after which the server ends the MCP session of a manager that was killed.
const sessionTimeout = time.Minute

// arguments are the arguments of wipe.
type arguments struct {
	Disk    string `json:"disk"`
	Seconds int    `json:"seconds"`
}

// counter counts the effects by disk.
type counter struct {
	mu sync.Mutex
	// wiped counts how often each disk was wiped.
	wiped map[string]int
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "wiper:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	c := &counter{wiped: map[string]int{}}
	server := mcp.NewServer(&mcp.Implementation{Name: "wiper", Version: "1.0.0"}, nil)
	tool := &mcp.Tool{Name: "wipe", Description: "Wipes a disk.", Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true)}}
	mcp.AddTool(server, tool, func(ctx context.Context, _ *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, any, error) {
		if err := c.wipe(ctx, a); err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "The disk is empty."}}}, nil, nil
	})
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{SessionTimeout: sessionTimeout}))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /wiped", c.show)
	web := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = web.Close() })
	if err := web.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// wipe counts a call and waits for its duration. A caller that has disconnected gets no answer, but its disk is wiped.
func (c *counter) wipe(ctx context.Context, a arguments) error {
	c.mu.Lock()
	c.wiped[a.Disk]++
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(time.Duration(a.Seconds) * time.Second):
		return nil
	}
}

func (c *counter) show(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	counts := map[string]any{"wiped": maps.Clone(c.wiped)}
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(counts) // a disconnected client needs no answer
}
