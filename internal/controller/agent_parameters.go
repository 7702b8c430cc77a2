package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/sharing"
)

// unsupported checks the parameters that an Agent sets for its models. It returns a message for each model that does
// not support its parameters, and the providers of the models that do. A provider whose spec the cache does not have
// may be one of them. unsupported skips a model whose provider does not exist or may not be used. field is the Agent's
// field with the models, and check checks one model.
func (r *AgentReconciler) unsupported(
	ctx context.Context, a *v1alpha1.Agent, field string, models []v1alpha1.ModelReference,
	check func(field string, m v1alpha1.ModelReference, p *v1alpha1.ModelProvider) error,
) (messages []string, able map[v1alpha1.SharedReference]bool, err error) {
	able = map[v1alpha1.SharedReference]bool{}
	for i, m := range models {
		p, err := r.Sharing.Provider(ctx, sharing.From(r.Client), m.ProviderRef, a.Namespace)
		if _, refused := errors.AsType[*sharing.RefusedError](err); refused || apierrors.IsNotFound(err) {
			continue // another finding names this provider
		} else if err != nil {
			return nil, nil, fmt.Errorf("failed to get model provider %q: %w", m.ProviderRef, err)
		}
		if objectbudget.IsLeftOut(p) {
			able[m.ProviderRef] = true
			continue
		}
		err = check(fmt.Sprintf("%s[%d]", field, i), m, p)
		if _, ok := errors.AsType[*invalid.Error](err); err != nil && !ok {
			return nil, nil, err
		}
		if err == nil {
			able[m.ProviderRef] = true
			continue
		}
		messages = append(messages, err.Error())
	}
	return messages, able, nil
}
