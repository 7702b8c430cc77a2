package executor

import (
	"context"
	"errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/sharing"
)

// sharedProvider is a ModelProvider of another namespace. Its owner must consent to each request, so that withdrawn
// consent takes effect at the next one.
type sharedProvider struct {
	model.Provider
	executor *Executor
	ref      v1alpha1.SharedReference
	from     string
}

// Generate sends the request if the owner of the ModelProvider still allows it.
func (s *sharedProvider) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	_, err := s.executor.Sharing.Provider(ctx, s.executor.object, s.ref, s.from)
	if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
		return providers.Unusable(s.ref.String(), refused).Generate(ctx, req)
	}
	if err != nil {
		return nil, providers.Unsent(s.ref.String(), err)
	}
	reply, err := s.Provider.Generate(ctx, req)
	if _, ok := errors.AsType[*providers.SecretError](err); ok { // its message names a Secret of the owner
		return nil, providers.Unsent(s.ref.String(), &providers.SecretError{Reason: "its credentials cannot be used: ask its owner"})
	}
	return reply, err
}
