package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/translate"
)

const cancelHelp = `cancel ends a Turn of a cluster and keeps its results so far. It sets spec.desiredState to Cancelled,
and the Turn's executor stops the run immediately. A tool call in progress is cancelled, too; the outcome
of a destructive call may then be unknown. The Turns of sub-agents are also cancelled.

cancel requires get and patch on turns.

Exit codes:
  0    the Turn is being cancelled, by this command or an earlier one
  1    the Turn is not being cancelled: for example, it does not exist, or it has already ended (also with the
       reason Cancelled)
  2    the flags are invalid, or the kubeconfig cannot be read
  130  interrupted`

// canceller holds the flags of capstan cancel.
type canceller struct {
	env       terminal.Environment
	namespace string
	cluster   cluster.Flags
	output    output.Format
}

func newCancel(env terminal.Environment) *cobra.Command {
	c := &canceller{env: env, output: output.Text}
	cmd := &cobra.Command{
		Use: "cancel TURN", Short: "Cancel a Turn of a cluster", Long: cancelHelp, Args: oneTurn,
		Example: `  # end the Turn and keep its results so far
  capstan cancel close-tickets -n helpdesk

  # watch how it ends
  capstan logs -f close-tickets -n helpdesk`,
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&c.namespace, "namespace", "n", "",
		"namespace of the Turn; default: the namespace of the kubeconfig's context, or else default")
	f.VarP(objectOutput{formatValue{&c.output}}, "output", "o", "output format")
	addAPIFlags(f, &c.cluster)
	completeObjects(cmd)
	cmd.ValidArgsFunction = completeTurns(func(ctx context.Context) ([]string, error) {
		return c.cluster.TurnNames(ctx, c.namespace, func(t *v1alpha1.Turn) bool { return !t.IsFinished() })
	})
	return cmd
}

func (c *canceller) run(ctx context.Context, turn string) error {
	watched, release := exit.Watch(ctx)
	defer release()
	return exit.InterruptedOr(watched, c.cancel(watched, turn))
}

func (c *canceller) cancel(ctx context.Context, turn string) error {
	namespace, name, err := cluster.SplitName(turn, c.namespace)
	if err != nil {
		return err
	}
	config, namespace, err := c.cluster.Config(namespace)
	if err != nil {
		return exit.WithCode(exit.Usage, err)
	}
	api, err := cluster.NewClient(ctx, c.cluster.Identity(config))
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	t, err := cluster.GetTurn(ctx, api, namespace, name)
	if err != nil {
		return err
	}
	title, before := cluster.TurnKind+" "+namespace+"/"+name, cmp.Or(t.StateReason(), "not set yet")
	if err := endedAlready(t); err != nil {
		return err
	}
	message := fmt.Sprintf("%s is already being cancelled; its state is %s", title, before)
	if t.Spec.DesiredState != v1alpha1.DesiredStateCancelled {
		message = fmt.Sprintf("%s is cancelled; its state was %s", title, before)
		if err := patchCancelled(ctx, api, t); err != nil {
			return err
		}
	}
	t.APIVersion, t.Kind = v1alpha1.GroupVersion.String(), cluster.TurnKind
	return output.PrintObject(c.env, t, "turn.capstan.dev", message, c.output)
}

// endedAlready returns an error if a Turn has ended.
func endedAlready(t *v1alpha1.Turn) error {
	if !t.IsFinished() {
		return nil
	}
	return exit.WithCode(exit.Failed, fmt.Errorf("%s %s/%s has ended already (%s): there is nothing to cancel", cluster.TurnKind,
		t.Namespace, t.Name, t.StateReason()))
}

// patchCancelled sets desiredState to Cancelled. It returns an error if the Turn has ended since it was read: the API
// server accepts the patch of such a Turn, which changes nothing.
func patchCancelled(ctx context.Context, api client.Client, t *v1alpha1.Turn) error {
	title := cluster.TurnKind + " " + t.Namespace + "/" + t.Name
	err := api.Patch(ctx, t, client.RawPatch(types.MergePatchType, translate.CancelPatch(t.UID)))
	switch {
	case apierrors.IsNotFound(err), translate.IsOtherObject(err):
		return exit.WithCode(exit.Failed, errors.New(title+" was deleted in the meantime"))
	case cluster.LacksPermission(err):
		return exit.WithCode(exit.Failed, fmt.Errorf(
			"you may not cancel %s: %w; this requires permission to patch turns.capstan.dev", title, err))
	case err != nil:
		return exit.WithCode(exit.Failed, fmt.Errorf("failed to cancel %s: %w", title, err))
	}
	return endedAlready(t) // the response of the patch has the newest status
}
