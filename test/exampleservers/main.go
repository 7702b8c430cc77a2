// Command exampleservers contains the fake model and the tool server in one program. It is the program of the image
// in examples/cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	fakemodel "github.com/capstan-dev/capstan/test/fakemodel/command"
	toolserver "github.com/capstan-dev/capstan/test/toolserver/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "exampleservers: %v\n", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "exampleservers", Short: "Serve a fake model, or tools, for the examples",
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.AddCommand(fakemodel.New(), toolserver.New())
	return cmd
}
