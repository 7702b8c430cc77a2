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

// waitForTurn watches the Turn until it has finished and prints its state whenever that changes. It fails when the Turn
// does not succeed, is deleted, or takes too long.
func (d *demo) waitForTurn(ctx context.Context) (*v1alpha1.Turn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("it has not finished within %s", d.timeout))
	defer cancel()
	var turn *v1alpha1.Turn
	shown := ""
	_, err := watchtools.UntilWithSync(ctx, d.watchOne(), &v1alpha1.Turn{}, nil, func(event watch.Event) (bool, error) {
		if event.Type == watch.Deleted {
			return false, errors.New("somebody deleted it")
		}
		var ok bool
		if turn, ok = event.Object.(*v1alpha1.Turn); !ok {
			return false, fmt.Errorf("unexpected %T", event.Object)
		}
		if state := describeState(turn); state != shown {
			shown = state
			d.step("turn/%s  %s", turn.Name, state)
		}
		return turn.IsFinished(), nil
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fmt.Errorf("failed to see Turn %q finish (last seen: %q): %w", d.turn, shown, err)
	}
	if !meta.IsStatusConditionTrue(turn.Status.Conditions, v1alpha1.ConditionSucceeded) {
		return nil, fmt.Errorf("Turn %q ended without success: %s", turn.Name, describeState(turn)) //nolint:staticcheck // because Turn is a name
	}
	return turn, nil
}

// watchOne lists and watches just the demo's Turn.
func (d *demo) watchOne() *cache.ListWatch {
	options := func(raw metav1.ListOptions) *client.ListOptions {
		raw.FieldSelector = "metadata.name=" + d.turn
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

// describeState returns the reason of the Turn's main condition; where the Turn waits or has failed, the message too.
func describeState(turn *v1alpha1.Turn) string {
	c := meta.FindStatusCondition(turn.Status.Conditions, v1alpha1.ConditionSucceeded)
	switch {
	case c == nil:
		return "" // nobody has looked at it yet
	case c.Status == metav1.ConditionTrue, c.Reason == v1alpha1.TurnReasonRunning, c.Message == "":
		return c.Reason
	default:
		return c.Reason + ": " + c.Message
	}
}
