package providers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// Lazy returns a provider that reads its Secrets when the first request needs them. A Turn that sends no request reads
// no Secrets. If a reading fails, the next request repeats it.
func (c *Cache) Lazy(p *v1alpha1.ModelProvider) model.Provider { return &lazy{cache: c, object: p} }

type lazy struct {
	cache  *Cache
	object *v1alpha1.ModelProvider
}

// Generate sends the request, or returns why it cannot be sent. While the API server cannot be reached, it waits
// until ctx ends: an outage of the API server is not a failure of the model and must not use up its attempts. While the
// API server forbids to read the Secrets, Generate waits for up to grace.Period.
func (l *lazy) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	p, err := l.provider(ctx)
	if err != nil {
		return nil, Unsent(l.object.Name, err)
	}
	return p.Generate(ctx, req)
}

// provider returns the provider for a request. It must not be inlined: its variables would stay on the stack of a
// waiting Turn.
//
//go:noinline
func (l *lazy) provider(ctx context.Context) (*endpoint.Provider, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 5*time.Second
	return backoff.Retry(ctx, func() (*endpoint.Provider, error) {
		p, err := l.cache.Get(ctx, l.object)
		_, passes := errors.AsType[*newlyForbiddenError](err)
		if err != nil && !passes && !secrets.IsAway(err) {
			err = backoff.Permanent(err)
		}
		return p, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
}

// newlyForbiddenError means that the API server began to forbid to read the Secrets less than grace.Period ago, and
// that no credentials are known. An API server that starts forbids everything until it has loaded its roles.
type newlyForbiddenError struct{ err error }

func (e *newlyForbiddenError) Error() string { return e.err.Error() }

// Unwrap returns the error of the read.
func (e *newlyForbiddenError) Unwrap() error { return e.err }

// Unusable returns a provider that fails each request with this cause. A chain then continues with its next model.
func Unusable(name string, cause error) model.Provider {
	e := Unsent(name, cause)
	e.Kind = model.Unusable
	return unusable{e}
}

type unusable struct{ err *model.Error }

// Generate returns the error.
func (u unusable) Generate(context.Context, *model.Request) (*model.Reply, error) {
	return nil, u.err
}

// Unsent returns the error for a request that was never sent. A Secret that cannot be used counts as an authentication
// error, because a retry does not help. Any other cause, such as a lack of memory, may be temporary, so it counts as a
// network error.
func Unsent(name string, cause error) *model.Error {
	kind := model.Network
	if refused, ok := errors.AsType[*SecretError](cause); ok && refused.Kind != secrets.NoMemory {
		kind = model.Auth
	}
	return &model.Error{Kind: kind, Message: fmt.Sprintf("provider %q: %s", name, cause), Err: cause, Unsent: true}
}
