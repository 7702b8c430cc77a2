package undo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// pollInterval is the time between two reads of the Turn.
const pollInterval = 500 * time.Millisecond

// inCluster creates the Turn in the cluster and waits for its end.
func (o *Options) inCluster(ctx context.Context, t *v1alpha1.Turn) error {
	watched, release := exit.Watch(ctx)
	defer release()
	return exit.InterruptedOr(watched, o.createAndWait(watched, t))
}

func (o *Options) createAndWait(ctx context.Context, t *v1alpha1.Turn) error {
	config, _, err := o.Cluster.Config(t.Namespace)
	if err != nil {
		return exit.WithCode(exit.Usage, err)
	}
	api, err := cluster.NewClient(ctx, o.Cluster.Identity(config))
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	// If no admission policy sets the requester, the client must: the Agent may require a requester for approvals.
	user, err := cluster.WhoAmI(ctx, api)
	if err != nil {
		return err
	}
	t.Spec.RequestedBy = &v1alpha1.Requester{Username: user.Username}
	title := cluster.TurnKind + " " + t.Namespace + "/" + t.Name
	err = api.Create(ctx, t)
	switch {
	case cluster.LacksPermission(err):
		return exit.WithCode(exit.Failed, fmt.Errorf(
			"you may not create %s: %w; this requires permission to create turns.capstan.dev", title, err))
	case err != nil:
		return exit.WithCode(exit.Failed, fmt.Errorf("failed to create %s: %w", title, err))
	}
	o.Env.Logf("%s was created; capstan logs -f %s/%s shows what it does", title, t.Namespace, t.Name)
	if o.WaitSeconds == 0 {
		return o.printTurn(t)
	}
	if err := o.await(ctx, api, t); err != nil {
		return err
	}
	if err := o.printTurn(t); err != nil {
		return err
	}
	return verdict(t, title, o.WaitSeconds)
}

// await waits for the end of the Turn, for at most WaitSeconds, and prints its states. A timeout is not an error.
func (o *Options) await(ctx context.Context, api client.Client, t *v1alpha1.Turn) error {
	before, noted := "", map[string]bool{}
	var unread error
	read := false // until then, a refusal does not come from an API server that restarts and has not loaded its roles
	failures := 0 // reads that have failed since the last successful one
	err := wait.PollUntilContextTimeout(ctx, pollInterval, time.Duration(o.WaitSeconds)*time.Second, true,
		func(ctx context.Context) (bool, error) {
			current := &v1alpha1.Turn{}
			err := api.Get(ctx, client.ObjectKeyFromObject(t), current)
			switch {
			case apierrors.IsNotFound(err), err == nil && current.UID != t.UID:
				return false, errors.New("it was deleted")
			case !read && cluster.IsRefused(err):
				return false, fmt.Errorf("it was created and continues, but you may not read it: %w; to wait for its end "+
					"requires permission to get turns.capstan.dev", err)
			case err != nil:
				unread = err
				failures++
				return false, nil //nolint:nilerr // because the API server may answer again
			}
			*t = *current
			read, failures = true, 0
			if state := t.StateReason(); state != before && !t.IsFinished() {
				before = state
				o.Env.Logf("%s", termsafe.Line(state, output.LongestID))
			}
			for _, p := range t.Status.PendingApprovals {
				if !noted[p.CallID] {
					noted[p.CallID] = true
					o.Env.Logf("approval is required for %s (call %s): run capstan approve %s -n %s",
						termsafe.Line(p.Name, output.LongestID), termsafe.Line(p.CallID, output.LongestID), t.Name, t.Namespace)
				}
			}
			return t.IsFinished(), nil
		})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !wait.Interrupted(err):
		return exit.WithCode(exit.Failed, fmt.Errorf("%s %s/%s: %w", cluster.TurnKind, t.Namespace, t.Name, err))
	case failures > 1: // a single failure may be the last read, which the timeout interrupts
		o.Env.Logf("note: failed to read the Turn: %s", termsafe.Line(unread.Error(), longestReason))
	}
	return nil
}

// printTurn writes the result of the Turn, or the Turn itself, to standard output.
func (o *Options) printTurn(t *v1alpha1.Turn) error {
	t.APIVersion, t.Kind = v1alpha1.GroupVersion.String(), cluster.TurnKind
	if o.Output != output.Text {
		text, err := output.Encode(t, o.Output)
		if err != nil {
			return exit.WithCode(exit.Failed, err)
		}
		return o.Env.Print(text)
	}
	if t.Status.Result == nil {
		return nil
	}
	return o.Env.Print(o.Env.ForScreen(strings.TrimRight(t.Status.Result.Text, "\n") + "\n"))
}

// verdict returns an error unless the Turn has undone everything.
func verdict(t *v1alpha1.Turn, title string, waited int) error {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	switch {
	case !t.IsFinished() && t.StateReason() == v1alpha1.TurnReasonAwaitingApproval:
		return exit.WithCode(exit.Parked, fmt.Errorf(
			"%s requires approval, and has not ended within %d s: it continues after a decision about its calls (capstan approve)",
			title, waited))
	case !t.IsFinished() || c == nil:
		return exit.WithCode(exit.Failed, fmt.Errorf(
			"%s has not ended within %d s: it continues, and capstan logs -f follows it", title, waited))
	case c.Status != metav1.ConditionTrue:
		return exit.WithCode(exit.Failed, fmt.Errorf("%s: %s: %s", title, c.Reason, termsafe.Line(c.Message, longestReason)))
	}
	return nil
}
