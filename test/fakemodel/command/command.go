// Package command is the command line of the fake model. The program fakemodel and the example servers share it.
package command

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/serving"
)

// New returns the command, which serves until its context ends.
func New() *cobra.Command {
	var listen, rules string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "fakemodel",
		Short: "Serve a fake model over the OpenAI chat-completions API",
		Long: "fakemodel serves the OpenAI chat-completions API, streaming and not, with answers and faults computed from the\n" +
			"requests by rules in a YAML file. Without a file it repeats the user's message, for any key and any model.\n\n" +
			"GET /_fake/stats and GET /_fake/requests show the requests, GET /_fake/billing shows the cost of each answer,\n" +
			"PUT /_fake/rules replaces the rules, and POST /_fake/reset clears the counts. They require no key: listen on a\n" +
			"loopback address.",
		Example: "  fakemodel --listen 127.0.0.1:8089 --rules test/fakemodel/rules.yaml\n\n" +
			"  curl -N http://127.0.0.1:8089/v1/chat/completions -H 'Authorization: Bearer demo-key' \\\n" +
			"    -d '{\"model\":\"demo-small\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			if quiet {
				log = slog.New(slog.DiscardHandler)
			}
			return run(cmd.Context(), listen, rules, log)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8089", "address to listen on; port 0 picks a free one")
	cmd.Flags().StringVar(&rules, "rules", "", "rules file (YAML); without one, every request gets the default answer")
	cmd.Flags().BoolVar(&quiet, "quiet", false, "do not log requests")
	return cmd
}

// run serves until ctx ends. It reads the rules file before it listens, and fails if the file is invalid.
func run(ctx context.Context, listen, rules string, log *slog.Logger) error {
	var cfg server.Config
	if rules != "" {
		var err error
		if cfg, err = server.LoadConfig(rules); err != nil {
			return err
		}
	}
	fake, err := server.New(cfg, server.WithLogger(log))
	if err != nil {
		return fmt.Errorf("failed to make the server: %w", err)
	}
	listener, err := serving.Listen(ctx, listen)
	if err != nil {
		return err
	}
	log.Info("Serving the fake model", "url", "http://"+listener.Addr().String()+"/v1", "rules", len(cfg.Rules))
	return serve(ctx, listener, fake)
}

// serve answers requests until ctx ends. After that, unfinished answers have a grace period, but hangs and delays end
// immediately.
func serve(ctx context.Context, listener net.Listener, fake *server.Server) error {
	web := &http.Server{Handler: fake} //nolint:gosec // because serving.Serve bounds the headers
	web.RegisterOnShutdown(fake.Close)
	return serving.Serve(ctx, listener, web)
}
