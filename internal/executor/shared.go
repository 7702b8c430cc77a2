package executor

import (
	"context"
	"errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/sharing"
)

// sharedProvider is a ModelProvider for a Turn if the ModelProvider or the Agent of the Turn is in another namespace.
// The consent of their owners is checked before each request, so a withdrawn consent takes effect at the next request.
type sharedProvider struct {
	model.Provider
	executor *Executor
	turn     *v1alpha1.Turn
	ref      v1alpha1.SharedReference
	// owner is the namespace of the Agent. The ModelProvider must allow this namespace.
	owner string
	// hidden is true if the ModelProvider is in another namespace than the Turn.
	hidden bool
}

// Generate sends the request if the owners of the Agent and of the ModelProvider still allow it.
func (s *sharedProvider) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	e := s.executor
	err := e.checkConsent(ctx, s.turn)
	if err == nil {
		_, err = e.Sharing.Provider(ctx, e.objects(s.turn.Namespace), s.ref, s.owner)
	}
	if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
		return providers.Unusable(s.ref.String(), refused).Generate(ctx, req)
	}
	if err != nil {
		return nil, providers.Unsent(s.ref.String(), err)
	}
	reply, err := s.Provider.Generate(ctx, req)
	if _, ok := errors.AsType[*providers.SecretError](err); ok && s.hidden { // its message names a Secret of the owner
		return nil, providers.Unsent(s.ref.String(), &providers.SecretError{Reason: "its credentials cannot be used: ask its owner"})
	}
	return reply, err
}
