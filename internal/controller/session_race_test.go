package controller

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestTurnsOfSessionAreNeverBoundTogether checks API servers whose clocks differ, so that the second Turn of a Session
// may have the older creation time. The second Turn appears while the first one is being bound, before the cache shows
// the binding.
func TestTurnsOfSessionAreNeverBoundTogether(t *testing.T) {
	for name, lost := range map[string]bool{"the binding is being written": false, "its response was lost": true} {
		t.Run(name, func(t *testing.T) {
			r := &race{first: sessionTurn("first", 0), lost: lost}
			r.testEnv = newTestEnv(t, interceptor.Funcs{SubResourceUpdate: r.update}, r.first.DeepCopy(),
				agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
			r.turns.Client = interceptor.NewClient(r.client, interceptor.Funcs{List: r.list})
			r.turns.Reader = r.turns.Client
			r.turns.Live = interceptor.NewClient(r.client, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if r.appeared.CompareAndSwap(false, true) {
						r.createSecond(ctx, t)
					}
					return c.Get(ctx, key, o, opts...)
				},
			})
			if _, err := r.reconcile(t, "first"); (err != nil) != lost {
				t.Fatal(err)
			}
			if lost {
				if _, err := r.reconcile(t, "second"); err != nil {
					t.Fatal(err)
				}
			}
			if first, second := r.turn(t, "first").BoundTo(), r.turn(t, "second").BoundTo(); first != "self" || second != "" {
				t.Errorf("bound to %q and %q, want only the first Turn bound", first, second)
			}
		})
	}
}

// race is a Turn that is being bound when a second Turn of its Session, with an older creation time, appears.
type race struct {
	*testEnv
	first *v1alpha1.Turn
	// lost means that the response to the binding is lost.
	lost     bool
	appeared atomic.Bool
}

// createSecond creates the second Turn and reconciles it while the first one has passed all checks but is not bound.
func (r *race) createSecond(ctx context.Context, t *testing.T) {
	t.Helper()
	second := sessionTurn("second", time.Second)
	second.ResourceVersion = ""
	if err := r.client.Create(ctx, second); err != nil {
		t.Error(err)
	}
	if r.lost {
		return
	}
	// This call returns, because the reconciliation of a Turn never waits for that of another Turn.
	if _, err := r.turns.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(second)}); err != nil {
		t.Error(err)
	}
}

func (r *race) update(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
	err := c.SubResource(sub).Update(ctx, o, opts...)
	if r.lost && o.GetName() == "first" {
		return broken
	}
	return err
}

// list shows the first Turn as it was before its binding.
func (r *race) list(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
	err := c.List(ctx, l, opts...)
	if turns, ok := l.(*v1alpha1.TurnList); ok {
		for i := range turns.Items {
			if turns.Items[i].Name == "first" {
				r.first.DeepCopyInto(&turns.Items[i])
			}
		}
	}
	return err
}
