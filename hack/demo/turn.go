package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// waitForTurn watches Turns until the named one has finished. It prints each change of a state and approves pending
// calls. It returns an error if the Turn does not succeed, is deleted, or takes too long.
func (d *demo) waitForTurn(ctx context.Context, name string) (*v1alpha1.Turn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("it has not finished within %s", d.timeout))
	defer cancel()
	var turn *v1alpha1.Turn
	_, err := watchtools.UntilWithSync(ctx, d.watchTurns(), &v1alpha1.Turn{}, nil, func(event watch.Event) (bool, error) {
		seen, ok := event.Object.(*v1alpha1.Turn)
		switch {
		case !ok:
			return false, fmt.Errorf("unexpected %T", event.Object)
		case event.Type == watch.Deleted && seen.Name == name:
			return false, errors.New("the Turn was deleted")
		}
		if err := d.follow(ctx, seen); err != nil || seen.Name != name {
			return false, err
		}
		turn = seen
		return turn.IsFinished(), nil
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fmt.Errorf("failed to see Turn %q finish (last seen: %q): %w", name, d.shown[name], err)
	}
	if !meta.IsStatusConditionTrue(turn.Status.Conditions, v1alpha1.ConditionSucceeded) {
		//nolint:staticcheck // because Turn is the name of a kind
		return nil, fmt.Errorf("Turn %q ended without success: %s", name, describeState(turn))
	}
	return turn, nil
}

// follow prints the state of a Turn if it has changed, and approves the calls that the Turn waits for.
func (d *demo) follow(ctx context.Context, turn *v1alpha1.Turn) error {
	state := describeState(turn)
	if state == d.shown[turn.Name] {
		return nil
	}
	d.shown[turn.Name] = state
	d.step("turn/%s  %s", turn.Name, state)
	if turn.StateReason() != v1alpha1.TurnReasonAwaitingApproval || len(turn.Status.PendingApprovals) == 0 {
		return nil
	}
	return d.approve(ctx, turn)
}

// watchTurns lists and watches the Turns of the demo, including those of sub-agents.
func (d *demo) watchTurns() *cache.ListWatch {
	options := func(raw metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{Namespace: turnNamespace, Raw: &raw}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &v1alpha1.TurnList{}
			return list, d.api.List(ctx, list, options(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return d.api.Watch(ctx, &v1alpha1.TurnList{}, options(o))
		},
	}
}

// describeState returns the reason of the Turn's main condition, and the message if the Turn waits or has failed.
func describeState(turn *v1alpha1.Turn) string {
	c := meta.FindStatusCondition(turn.Status.Conditions, v1alpha1.ConditionSucceeded)
	switch {
	case c == nil:
		return "" // no controller has seen the Turn yet
	case c.Status == metav1.ConditionTrue, c.Reason == v1alpha1.TurnReasonRunning, c.Message == "":
		return c.Reason
	default:
		return c.Reason + ": " + c.Message
	}
}
