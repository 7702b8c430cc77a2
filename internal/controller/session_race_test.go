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

// TestTurnsOfSessionAreNeverBoundTogether checks API servers that stamp creation times by clocks that differ.
// Then an older Turn may appear while the first one is being bound, before the cache shows that binding.
func TestTurnsOfSessionAreNeverBoundTogether(t *testing.T) {
	for name, lost := range map[string]bool{"the binding is being written": false, "its response was lost": true} {
		t.Run(name, func(t *testing.T) {
			r := &race{late: sessionTurn("late", 0), lost: lost}
			r.testEnv = newTestEnv(t, interceptor.Funcs{SubResourceUpdate: r.update}, r.late.DeepCopy(),
				agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
			r.turns.Client = interceptor.NewClient(r.client, interceptor.Funcs{List: r.list})
			r.turns.Reader = r.turns.Client
			r.turns.Live = interceptor.NewClient(r.client, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if r.appeared.CompareAndSwap(false, true) {
						r.older(ctx, t)
					}
					return c.Get(ctx, key, o, opts...)
				},
			})
			if _, err := r.reconcile(t, "late"); (err != nil) != lost {
				t.Fatal(err)
			}
			if lost {
				if _, err := r.reconcile(t, "early"); err != nil {
					t.Fatal(err)
				}
			}
			if late, early := r.turn(t, "late").BoundTo(), r.turn(t, "early").BoundTo(); late != "self" || early != "" {
				t.Errorf("bound to %q and %q, want only the first Turn bound", late, early)
			}
		})
	}
}

// race is a Turn that is being bound when an older Turn of its Session appears.
type race struct {
	*testEnv
	late *v1alpha1.Turn
	// lost means that the response to the binding is lost.
	lost     bool
	appeared atomic.Bool
}

// older creates the older Turn and reconciles it while the other one has passed all checks but is not bound.
func (r *race) older(ctx context.Context, t *testing.T) {
	t.Helper()
	early := sessionTurn("early", time.Second)
	early.ResourceVersion = ""
	if err := r.client.Create(ctx, early); err != nil {
		t.Error(err)
	}
	if r.lost {
		return
	}
	look := func() {
		if _, err := r.turns.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(early)}); err != nil {
			t.Error(err)
		}
	}
	look() // waits for the reconciliation to end: no worker waits for another
}

func (r *race) update(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
	err := c.SubResource(sub).Update(ctx, o, opts...)
	if r.lost && o.GetName() == "late" {
		return broken
	}
	return err
}

// list shows the Turn that is being bound as it was before.
func (r *race) list(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
	err := c.List(ctx, l, opts...)
	if turns, ok := l.(*v1alpha1.TurnList); ok {
		for i := range turns.Items {
			if turns.Items[i].Name == "late" {
				r.late.DeepCopyInto(&turns.Items[i])
			}
		}
	}
	return err
}
