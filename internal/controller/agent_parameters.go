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
// not support its parameters, and the number of models that do. It skips a model whose provider does not exist, may not
// be used, or is not wholly in the cache. field is the Agent's field with the models, and check checks one model.
func (r *AgentReconciler) unsupported(
	ctx context.Context, a *v1alpha1.Agent, field string, models []v1alpha1.ModelReference,
	check func(field string, m v1alpha1.ModelReference, p *v1alpha1.ModelProvider) error,
) (messages []string, able int, err error) {
	for i, m := range models {
		p, err := r.Sharing.Provider(ctx, sharing.From(r.Client), m.ProviderRef, a.Namespace)
		if _, refused := errors.AsType[*sharing.RefusedError](err); refused || apierrors.IsNotFound(err) {
			continue // another finding names this provider
		} else if err != nil {
			return nil, 0, fmt.Errorf("failed to get model provider %q: %w", m.ProviderRef, err)
		}
		if objectbudget.IsLeftOut(p) {
			continue // the cache does not have the spec of this provider
		}
		err = check(fmt.Sprintf("%s[%d]", field, i), m, p)
		if _, ok := errors.AsType[*invalid.Error](err); err != nil && !ok {
			return nil, 0, err
		}
		if err == nil {
			able++
			continue
		}
		messages = append(messages, err.Error())
	}
	return messages, able, nil
}
