package records

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/readapi"
)

// Feedback gives feedback to a Turn of a cluster.
type Feedback struct {
	Options
	// Score is a number from 0 to 1. Comment is a text, or empty.
	Score, Comment string
}

// Run stores the feedback to a Turn, given as NAME or NAMESPACE/NAME.
func (f *Feedback) Run(ctx context.Context, turn string) error {
	namespace, name, err := cluster.SplitName(turn, f.Namespace)
	if err != nil {
		return err
	}
	if err := readapi.CheckFeedback(f.Score, f.Comment); err != nil {
		return exit.WithCode(exit.Usage, err)
	}
	return f.Cluster.WithServer(ctx, f.Env, namespace, func(client *readapi.Client, namespace string) error {
		if err := client.AddFeedback(ctx, namespace, name, f.Score, f.Comment); err != nil {
			return failed(err)
		}
		return f.Env.Print(fmt.Sprintf("feedback to Turn %s/%s stored\n", namespace, name))
	})
}
