package harness

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

// Serve serves HTTP from this process on a free port of 127.0.0.1, and returns the URL. Stop closes all connections,
// including those with an unanswered request.
func (h *Harness) Serve(ctx context.Context, handler http.Handler) (url string, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("failed to listen: %w", err)
	}
	web := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(listener) // always http.ErrServerClosed, because the listener cannot fail otherwise
	}()
	h.OnStop(func() error {
		err := web.Close()
		<-done
		return err
	})
	return "http://" + listener.Addr().String(), nil
}

// ServeModel serves a fake model with these rules. baseURL is the URL for spec.baseURL of a ModelProvider. Stop ends
// all hangs and delays.
func (h *Harness) ServeModel(ctx context.Context, rules server.Config, options ...server.Option) (
	model *server.Server, baseURL string, err error,
) {
	model, err = server.New(rules, options...)
	if err != nil {
		return nil, "", fmt.Errorf("failed to set up the fake model: %w", err)
	}
	url, err := h.Serve(ctx, model)
	h.OnStop(func() error {
		model.Close()
		return nil
	})
	return model, url + "/v1", err
}

// ServeTickets serves the tools of the tool server with the tickets of the demo. url is the URL for spec.mcp.url of a
// ToolServer.
func (h *Harness) ServeTickets(ctx context.Context) (desk *tickets.Desk, url string, err error) {
	desk, err = tickets.NewDesk(nil)
	if err != nil {
		return nil, "", fmt.Errorf("failed to set up the tool server: %w", err)
	}
	url, err = h.Serve(ctx, tickets.Handler(desk, nil))
	return desk, url + "/mcp", err
}
