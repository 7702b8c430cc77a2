package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const cancelHelp = `cancel ends a Turn of a cluster, with what there is by then: it sets spec.desiredState to Cancelled, and its executor stops at once. A
call that is under way is told to stop; of one that does harm, nobody knows then whether it was done. The Turns of its sub-agents are
cancelled with it. It takes get and patch on turns.

Exit codes:
  0    the Turn is to be cancelled, or was before
  1    it is not: it has ended already, or there is none
  2    the flags are wrong
  130  interrupted`

// canceller holds the flags of cancel.
type canceller struct {
	env       Environment
	namespace string
	cluster   clusterFlags
	output    outputFormat
}

func newCancel(env Environment) *cobra.Command {
	c := &canceller{env: env, output: outputText}
	cmd := &cobra.Command{
		Use: "cancel TURN", Short: "Cancel a Turn of a cluster", Long: cancelHelp, Args: oneTurn,
		Example: `  # end it with what there is
  capstan cancel close-tickets -n helpdesk

  # and see how
  capstan logs -f close-tickets -n helpdesk`,
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&c.namespace, "namespace", "n", "", "namespace of the Turn; default: that of the kubeconfig's context, else default")
	f.VarP(objectOutput{&c.output}, "output", "o", "output format")
	c.cluster.addAPIFlags(f)
	completeObjects(cmd)
	cmd.ValidArgsFunction = c.cluster.completion(&c.namespace, func(t *v1alpha1.Turn) bool { return !t.IsFinished() })
	return cmd
}

func (c *canceller) run(ctx context.Context, turn string) error {
	watched, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	return interruptedOr(watched, c.cancel(watched, turn))
}

func (c *canceller) cancel(ctx context.Context, turn string) error {
	namespace, name, err := splitName(turn, c.namespace)
	if err != nil {
		return err
	}
	config, namespace, err := c.cluster.configOf(namespace)
	if err != nil {
		return fail(ExitUsage, err)
	}
	api, err := apiClient(c.cluster.identity(config))
	if err != nil {
		return fail(ExitFailed, err)
	}
	t, err := turnOf(ctx, api, namespace, name)
	if err != nil {
		return err
	}
	title, before := kindTurn+" "+namespace+"/"+name, cmp.Or(t.StateReason(), "not looked at yet")
	if t.IsFinished() {
		return fail(ExitFailed, fmt.Errorf("%s has ended already (%s): there is nothing to cancel", title, before))
	}
	said := fmt.Sprintf("%s is to be cancelled already; its state is %s", title, before)
	if t.Spec.DesiredState != v1alpha1.DesiredStateCancelled {
		said = fmt.Sprintf("%s is cancelled; its state was %s", title, before)
		if err := patchCancelled(ctx, api, t); err != nil {
			return err
		}
	}
	t.APIVersion, t.Kind = v1alpha1.GroupVersion.String(), kindTurn
	return c.env.printObject(t, "turn.capstan.dev", said, c.output)
}

// patchCancelled asks for the end of the Turn that was looked at, and of no other of its name.
func patchCancelled(ctx context.Context, api client.Client, t *v1alpha1.Turn) error {
	title := kindTurn + " " + t.Namespace + "/" + t.Name
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"spec":{"desiredState":%q}}`, t.UID, v1alpha1.DesiredStateCancelled)
	err := api.Patch(ctx, t, client.RawPatch("application/merge-patch+json", []byte(patch)))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return fail(ExitFailed, errors.New(title+" has gone meanwhile"))
	case apierrors.IsForbidden(err):
		return fail(ExitFailed, fmt.Errorf("you may not cancel %s: %w; it takes patch on turns of capstan.dev", title, err))
	case err != nil:
		return fail(ExitFailed, fmt.Errorf("failed to cancel %s: %w", title, err))
	}
	return nil
}
