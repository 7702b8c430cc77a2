package executor

import (
	"context"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// TestObjectsThatTheCacheLeavesOut checks that a Turn that is already bound runs with objects for which the cache has
// no memory: it reads them from the API server.
func TestObjectsThatTheCacheLeavesOut(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	all := surroundings()
	for _, o := range all {
		switch o := o.(type) {
		case *v1alpha1.Agent:
			o.Spec.Instructions = long
		case *v1alpha1.PromptProfile:
			o.Spec.Instructions = long
		case *v1alpha1.ModelProvider:
			o.Spec.Headers = []v1alpha1.Header{{Name: "X-Long", Value: &long}}
		}
	}
	e, _ := newExecutor(t, interceptor.Funcs{}, append(all, turnWith())...)
	whole, ok := e.Client.(client.WithWatch)
	if !ok {
		t.Fatalf("the client is a %T", e.Client)
	}
	cached := objectbudget.New(bytebudget.New(32<<10, 8)).Transform(func(in any) (any, error) { return in, nil })
	leftOut := 0
	e.Client = interceptor.NewClient(whole, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := c.Get(ctx, key, o, opts...); err != nil {
				return err
			}
			kept, err := cached(o.DeepCopyObject())
			switch kept := kept.(type) {
			case *v1alpha1.Agent:
				kept.DeepCopyInto(o.(*v1alpha1.Agent))
			case *v1alpha1.PromptProfile:
				kept.DeepCopyInto(o.(*v1alpha1.PromptProfile))
			case *v1alpha1.ModelProvider:
				kept.DeepCopyInto(o.(*v1alpha1.ModelProvider))
			}
			if objectbudget.IsLeftOut(o) {
				leftOut++
			}
			return err
		},
	})
	e.Reader, e.LiveReads = whole, fairgate.New(1, 1)
	got := runTurn(t, e)
	if !got.IsFinished() || got.Status.Conditions[0].Reason != v1alpha1.TurnReasonPrepared {
		t.Fatalf("the Turn is %+v, want it prepared", got.Status.Conditions)
	}
	if leftOut < 3 {
		t.Errorf("%d objects were left out, want the Agent, its profile and its ModelProvider", leftOut)
	}
}

// TestLivePages checks that lists whose length a user decides are read from the API server in small pages, inside the
// gate.
func TestLivePages(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith())...)
	e.LiveReads = fairgate.New(1, 1)
	ended, end := context.WithCancel(t.Context())
	end()
	whole, ok := e.Client.(client.WithWatch)
	if !ok {
		t.Fatalf("the client is a %T", e.Client)
	}
	lists := 0
	e.Reader = interceptor.NewClient(whole, interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			o := (&client.ListOptions{}).ApplyOptions(opts)
			if o.Limit < 1 || o.Limit > 16 || o.Namespace != "helpdesk" {
				t.Errorf("the request is for %d objects of namespace %q, want few of the Turn's", o.Limit, o.Namespace)
			}
			if e.LiveReads.Enter(ended, "other") == nil {
				t.Error("others may read at the same time")
			}
			if want := strings.Repeat("x", lists); o.Continue != want {
				t.Errorf("request %d continues from %q, want %q", lists, o.Continue, want)
			}
			if lists++; lists < 3 {
				list.SetContinue(strings.Repeat("x", lists))
			}
			return nil
		},
	})
	r := &run{executor: e, turn: turnWith()}
	if _, err := r.collectUsage(t.Context()); err != nil || lists != 3 {
		t.Errorf("collectUsage: %v after %d requests, want 3", err, lists)
	}
	lists = 0
	if d, err := r.decideLive(t.Context(), loop.Approval{}); d != nil || err != nil || lists != 3 {
		t.Errorf("decideLive: %v, %v after %d requests, want none after 3", d, err, lists)
	}
	if e.LiveReads.Enter(ended, "other") != nil {
		t.Error("the gate is still closed")
	}
}
