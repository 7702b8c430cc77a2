// Command toolserver serves the tickets of a small helpdesk as tools, over the Model Context Protocol. It is the
// tool server of the demo; tests import package tickets instead.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/capstan-dev/capstan/test/toolserver/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command.New().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "toolserver: %v\n", err)
		os.Exit(1)
	}
}
