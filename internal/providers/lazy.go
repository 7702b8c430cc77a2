package providers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// Lazy returns the provider of an object, which reads its Secrets when it is asked: a Turn that never gets to it reads
// none, and a reading that failed is tried again with the request.
func (c *Cache) Lazy(p *v1alpha1.ModelProvider) model.Provider { return &lazy{cache: c, object: p} }

type lazy struct {
	cache  *Cache
	object *v1alpha1.ModelProvider
}

// Generate asks the provider, or says why it cannot be asked. While the API server is away it waits, for as long as ctx
// lives: an outage of the API server is no failure of a model, and must not use up the attempts.
func (l *lazy) Generate(ctx context.Context, req model.Request) (reply model.Reply, err error) {
	err = l.Ask(ctx, &req, &reply)
	return reply, err
}

// Ask implements model.Asker.
func (l *lazy) Ask(ctx context.Context, req *model.Request, reply *model.Reply) error {
	p, err := l.provider(ctx)
	if err != nil {
		return unsent(l.object.Name, err)
	}
	return p.Ask(ctx, req, reply)
}

// provider is what asks now. It is not inlined: the stack of a waiting Turn would hold its variables.
//
//go:noinline
func (l *lazy) provider(ctx context.Context) (*openai.Provider, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 5*time.Second
	return backoff.Retry(ctx, func() (*openai.Provider, error) {
		p, err := l.cache.Get(ctx, l.object)
		if err != nil && !secrets.IsAway(err) {
			err = backoff.Permanent(err)
		}
		return p, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
}

// Unusable returns a provider that answers each request with why it cannot be asked. A chain goes on to its next model.
func Unusable(name string, cause error) model.Provider {
	return unusable{unsent(name, cause)}
}

type unusable struct{ err *model.Error }

// Generate returns the error.
func (u unusable) Generate(context.Context, model.Request) (model.Reply, error) {
	return model.Reply{}, u.err
}

// unsent is the error of a request that never left. A missing credential stays missing for now; any other cause may pass.
func unsent(name string, cause error) *model.Error {
	kind := model.Network
	if _, ok := errors.AsType[*SecretError](cause); ok {
		kind = model.Auth
	}
	return &model.Error{Kind: kind, Message: fmt.Sprintf("provider %q: %s", name, cause), Err: cause, Unsent: true}
}
