// Command fakemodel serves the OpenAI chat-completions API. It computes its answers from the requests by rules in a
// file. It stands in for a model in the demo; tests and benchmarks import package server instead.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/capstan-dev/capstan/test/fakemodel/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command.New().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "fakemodel: %v\n", err)
		os.Exit(1)
	}
}
