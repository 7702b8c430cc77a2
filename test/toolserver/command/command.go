// Package command is the command line of the tool server. The program toolserver and the example servers share it.
package command

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/test/serving"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

// New returns the command, which serves until its context ends.
func New() *cobra.Command {
	var listen, data string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "toolserver",
		Short: "Serve the tickets of a small helpdesk as tools, over MCP",
		Long: "toolserver serves the tickets of a small helpdesk as tools, over the Model Context Protocol (streamable HTTP) at\n" +
			"/mcp: search_tickets, get_ticket, close_ticket, add_note, remove_note, hand_over and ticket_context. GET /tickets\n" +
			"shows all tickets. They are in memory, and a restart resets them. No endpoint requires a key: listen\n" +
			"on a loopback address.",
		Example:       "  toolserver --listen 127.0.0.1:8090\n\n  curl -s http://127.0.0.1:8090/tickets",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			if quiet {
				log = slog.New(slog.DiscardHandler)
			}
			return run(cmd.Context(), listen, data, log)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8090", "address to listen on; port 0 picks a free one")
	cmd.Flags().StringVar(&data, "data", "", "file with the tickets to begin with (JSON); default: those of the demo")
	cmd.Flags().BoolVar(&quiet, "quiet", false, "do not log calls")
	return cmd
}

// run serves until ctx ends. It reads the file with the tickets before it listens, and fails if the file is
// invalid.
func run(ctx context.Context, listen, data string, log *slog.Logger) error {
	desk, err := loadDesk(data)
	if err != nil {
		return err
	}
	listener, err := serving.Listen(ctx, listen)
	if err != nil {
		return err
	}
	log.Info("Serving tools", "url", "http://"+listener.Addr().String()+"/mcp", "tickets", len(desk.Tickets()))
	return serving.Serve(ctx, listener, &http.Server{ //nolint:gosec // because serving.Serve bounds the headers
		Handler:     tickets.Handler(desk, log),
		BaseContext: func(net.Listener) context.Context { return ctx }, // ends the open streams of clients
	})
}

// loadDesk returns a desk with the tickets of a file, or with the demo's tickets if path is empty.
func loadDesk(path string) (*tickets.Desk, error) {
	if path == "" {
		return tickets.NewDesk(nil)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read --data: %w", err)
	}
	return tickets.NewDesk(data)
}
