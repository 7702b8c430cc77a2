package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/translate"
)

// checkParameters adds to the finding about an Agent's models whether they can fulfill its parameters. Otherwise each
// Turn would fail with its first request, or would lose its wish.
func (r *AgentReconciler) checkParameters(ctx context.Context, a *v1alpha1.Agent, models finding) (finding, error) {
	wrong, err := r.unsupported(ctx, a, "spec.models", a.Spec.Models, a.Spec.Thinking)
	if err != nil || len(wrong) == 0 {
		return models, err
	}
	if models.reason != v1alpha1.ReasonResolved {
		wrong = append(wrong, models.message)
	}
	models.message = strings.Join(wrong, "; ")
	if models.holds {
		models.holds, models.reason = false, v1alpha1.ReasonUnsupportedParameter
	}
	return models, nil
}

// unsupported returns the parameters that models of an Agent cannot fulfill, each with the reason. field is the Agent's
// field with the models, and thinking that of the requests to them.
func (r *AgentReconciler) unsupported(
	ctx context.Context, a *v1alpha1.Agent, field string, models []v1alpha1.ModelReference, thinking v1alpha1.ThinkingLevel,
) ([]string, error) {
	var wrong []string
	for i, m := range models {
		p, err := r.Sharing.Provider(ctx, sharing.From(r.Client), m.ProviderRef, a.Namespace)
		if _, refused := errors.AsType[*sharing.RefusedError](err); refused || apierrors.IsNotFound(err) {
			continue // the finding about the providers names it
		} else if err != nil {
			return nil, fmt.Errorf("failed to get model provider %q: %w", m.ProviderRef, err)
		}
		if objectbudget.IsLeftOut(p) {
			continue // it is not ready, and the cache does not have what it supports
		}
		err = translate.CheckParameters(fmt.Sprintf("%s[%d]", field, i), m, thinking, p)
		if _, ok := errors.AsType[*invalid.Error](err); err != nil && !ok {
			return nil, err
		}
		if err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	return wrong, nil
}
