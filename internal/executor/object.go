package executor

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/translate"
)

// objects returns the reader of the objects that the Turns of a namespace use. It reads from the cache, or from the API
// server if the cache has no memory for an object. Such a read counts for the namespace of the Turn, even if the object
// is in another namespace.
func (e *Executor) objects(namespace string) sharing.Reader {
	return func(ctx context.Context, key client.ObjectKey, o client.Object) error {
		if err := e.Client.Get(ctx, key, o); err != nil || !objectbudget.IsLeftOut(o) {
			return err
		}
		if err := e.LiveReads.Enter(ctx, namespace); err != nil {
			return err
		}
		defer e.LiveReads.Leave(namespace)
		return objectbudget.Read(ctx, e.Reader, key, o)
	}
}

// liveLimit is the number of objects that one request to the API server reads. An object may have 1.5 MiB, and any user
// of a namespace may create many of them.
const liveLimit = 8

// eachLivePage reads a list from the API server, and calls do for each page of it. It returns the first error of a
// request or of do.
func (e *Executor) eachLivePage(
	ctx context.Context, namespace string, page client.ObjectList, do func() error, opts ...client.ListOption,
) error {
	opts = slices.Concat(opts, []client.ListOption{client.InNamespace(namespace), client.Limit(liveLimit)})
	for next := client.Continue(""); ; {
		more, err := e.livePage(ctx, namespace, page, do, slices.Concat(opts, []client.ListOption{next})...)
		if next = client.Continue(more); err != nil || more == "" {
			return err
		}
	}
}

// livePage reads one page inside the gate of LiveReads, calls do, and returns the token of the next page, or an empty
// one.
func (e *Executor) livePage(
	ctx context.Context, namespace string, page client.ObjectList, do func() error, opts ...client.ListOption,
) (more string, err error) {
	if err := e.LiveReads.Enter(ctx, namespace); err != nil {
		return "", err
	}
	defer e.LiveReads.Leave(namespace)
	reflect.ValueOf(page).Elem().SetZero() // decoding would keep fields of the page before
	if err := e.Reader.List(ctx, page, opts...); err != nil {
		return "", err
	}
	return page.GetContinue(), do()
}

// readAgent reads the Agent of the Turn. If the Agent was deleted after an earlier attempt of this run had read it,
// readAgent returns it as it was then; an Agent of another namespace may not be used any more in this case. If the
// Agent is gone, may not be used or cannot be used from another namespace, and the Turn only has to end, readAgent
// returns an empty Agent.
func (r *run) readAgent(ctx context.Context) (*v1alpha1.Agent, error) {
	e, t := r.executor, r.turn
	found, err := e.Sharing.Agent(ctx, e.objects(t.Namespace), t.Spec.AgentRef, t.Namespace)
	_, unusable := errors.AsType[*sharing.RefusedError](err)
	at := versionOf(found)
	if err == nil && found.Namespace != t.Namespace {
		at.foreign = true
		found, err = translate.Foreign(found)
		unusable = err != nil
	}
	if apierrors.IsNotFound(err) && r.agent != nil && !t.IsOfForeignAgent() {
		return r.agent, nil
	}
	if (unusable || apierrors.IsNotFound(err)) && r.endsWithoutAgent() {
		return &v1alpha1.Agent{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get agent %q: %w", t.Spec.AgentRef, err)
	}
	return e.agents.Of(at, found), nil // thousands of Turns share one Agent
}

// checkConsent returns an error if the Agent of a Turn is in another namespace and may not be used any more.
func (e *Executor) checkConsent(ctx context.Context, t *v1alpha1.Turn) error {
	if !t.IsOfForeignAgent() {
		return nil
	}
	_, err := e.Sharing.Agent(ctx, e.objects(t.Namespace), t.Spec.AgentRef, t.Namespace)
	return err
}
