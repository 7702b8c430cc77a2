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

// TestTwoTurnsOfASessionAreNeverBoundAtOnce: where API servers stamp creations by clocks that differ, an older Turn may appear
// while the one that was first is being bound, and before the cache shows that.
func TestTwoTurnsOfASessionAreNeverBoundAtOnce(t *testing.T) {
	for name, lost := range map[string]bool{"the binding is on its way": false, "its answer was lost": true} {
		t.Run(name, func(t *testing.T) {
			r := &race{late: mate("late", 0), lost: lost}
			r.bench = newBench(t, interceptor.Funcs{SubResourceUpdate: r.update}, r.late.DeepCopy(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 9, now))
			r.turns.Client = interceptor.NewClient(r.client, interceptor.Funcs{List: r.list})
			r.turns.Reader = r.turns.Client
			r.turns.Live = interceptor.NewClient(r.client, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if r.appeared.CompareAndSwap(false, true) {
					r.older(ctx, t)
				}
				return c.Get(ctx, key, o, opts...)
			}})
			if _, err := r.look(t, "late"); (err != nil) != lost {
				t.Fatal(err)
			}
			if lost {
				if _, err := r.look(t, "early"); err != nil {
					t.Fatal(err)
				}
			}
			if late, early := r.turn(t, "late").BoundTo(), r.turn(t, "early").BoundTo(); late != "self" || early != "" {
				t.Errorf("bound to %q and %q, want the first Turn that was bound alone", late, early)
			}
		})
	}
}

// race is a Turn that is being bound when an older one of its Session appears.
type race struct {
	*bench
	late *v1alpha1.Turn
	// lost is whether the answer to the binding is.
	lost     bool
	appeared atomic.Bool
}

// older makes the older Turn, and has it looked at while the other is, which has passed all checks but is not bound.
func (r *race) older(ctx context.Context, t *testing.T) {
	t.Helper()
	early := mate("early", time.Second)
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
	look() // to the end: no worker waits for another
}

func (r *race) update(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
	err := c.SubResource(sub).Update(ctx, o, opts...)
	if r.lost && o.GetName() == "late" {
		return broken
	}
	return err
}

// list shows the one that is bound as it was before.
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
