package executor

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/objectbudget"
)

// object reads an object of a Turn from the cache, or from the API server if the cache has no memory for it.
func (e *Executor) object(ctx context.Context, key client.ObjectKey, o client.Object) error {
	if err := e.Client.Get(ctx, key, o); err != nil || !objectbudget.IsLeftOut(o) {
		return err
	}
	if err := e.LiveReads.Enter(ctx, key.Namespace); err != nil {
		return err
	}
	defer e.LiveReads.Leave(key.Namespace)
	return objectbudget.Read(ctx, e.Reader, key, o)
}
