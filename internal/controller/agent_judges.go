package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/translate"
)

// resolveJudges checks whether the answers of an Agent can be evaluated by the judges of its profile. It returns nil if
// the Agent's answers are not evaluated. Turns run even if the condition is False.
func (r *AgentReconciler) resolveJudges(ctx context.Context, a *v1alpha1.Agent) (*finding, error) {
	if a.Spec.Evaluation == nil {
		return nil, nil //nolint:nilnil // because there is nothing to find out
	}
	if failed, err := r.checkModels(ctx, a, "spec.evaluation.models", a.Spec.Evaluation.Models); failed != nil || err != nil {
		return failed, err
	}
	name := a.Spec.PromptProfileRef
	p, err := r.Sharing.Profile(ctx, sharing.From(r.Client), name, a.Namespace)
	_, refused := errors.AsType[*sharing.RefusedError](err)
	if refused || apierrors.IsNotFound(err) || err == nil && objectbudget.IsLeftOut(p) {
		return &finding{
			reason: v1alpha1.ReasonNoJudges, message: fmt.Sprintf("PromptProfile %q cannot be used: see ProfileResolved", name),
		}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get prompt profile %q: %w", name, err)
	}
	if len(p.Spec.Judges) == 0 {
		return &finding{
			reason: v1alpha1.ReasonNoJudges, message: fmt.Sprintf("PromptProfile %q has no judges, so no answer is evaluated", name),
		}, nil
	}
	for i := range p.Spec.Judges {
		if j := &p.Spec.Judges[i]; j.ModelRef != nil && translate.JudgeModel(a, j.ModelRef.ProviderRef.Name, j.ModelRef.Model) < 0 {
			advice := "spec.evaluation.models: add it there; otherwise the judge asks the models in this list"
			if len(a.Spec.Evaluation.Models) == 0 { // a list with this model alone would replace spec.models for all judges
				advice = "spec.models: list all models that judges may ask, including this one, in spec.evaluation.models; " +
					"otherwise the judge asks the models in spec.models"
			}
			return &finding{
				reason: v1alpha1.ReasonJudgeModelNotAllowed,
				message: fmt.Sprintf("judge %q of PromptProfile %q names model %s/%s, which is not in %s", j.Name, name,
					j.ModelRef.ProviderRef.Name, j.ModelRef.Model, advice),
			}, nil
		}
	}
	return &finding{holds: true, reason: v1alpha1.ReasonResolved, message: "the judges of the PromptProfile evaluate answers"}, nil
}

// resolveLearning checks whether the models that extract memories for an Agent can be used. It returns nil if the Agent
// does not learn. Turns run even if the condition is False.
func (r *AgentReconciler) resolveLearning(ctx context.Context, a *v1alpha1.Agent) (*finding, error) {
	if !translate.Learns(a) {
		return nil, nil //nolint:nilnil // because there is nothing to find out
	}
	if failed, err := r.checkModels(ctx, a, "spec.memory.learning.models", a.Spec.Memory.Learning.Models); failed != nil || err != nil {
		return failed, err
	}
	return &finding{holds: true, reason: v1alpha1.ReasonResolved, message: "memories are learned from turns"}, nil
}

// resolveEmbeddings checks whether the model that turns texts into vectors for an Agent can be used. It returns nil if
// the Agent has no spec.embeddings. Turns run even if the condition is False.
func (r *AgentReconciler) resolveEmbeddings(ctx context.Context, a *v1alpha1.Agent) (*finding, error) {
	e := a.Spec.Embeddings
	if e == nil {
		return nil, nil //nolint:nilnil // because there is nothing to find out
	}
	model := []v1alpha1.ModelReference{{ProviderRef: e.ProviderRef, Model: e.Model}}
	if failed, err := r.checkModels(ctx, a, "spec.embeddings", model); failed != nil || err != nil {
		return failed, err
	}
	p, err := r.Sharing.Provider(ctx, sharing.From(r.Client), e.ProviderRef, a.Namespace)
	if err != nil {
		return nil, fmt.Errorf("failed to get model provider %q: %w", e.ProviderRef, err)
	}
	if !providers.HasEmbeddings(&p.Spec) {
		return &finding{reason: v1alpha1.ReasonNoEmbeddings, message: providers.NoEmbeddings(e.ProviderRef.String(), &p.Spec)}, nil
	}
	return &finding{holds: true, reason: v1alpha1.ReasonResolved, message: "texts are compared by their meaning and their words"}, nil
}

// checkModels checks models that an Agent has in addition to its chain. It returns a finding if a ModelProvider does
// not exist or may not be used, if the cache has dropped its content, or if a model cannot fulfill a parameter;
// otherwise it returns nil. field is the Agent's field with the models.
func (r *AgentReconciler) checkModels(
	ctx context.Context, a *v1alpha1.Agent, field string, models []v1alpha1.ModelReference,
) (*finding, error) {
	for _, m := range models {
		ref := m.ProviderRef
		p, err := r.Sharing.Provider(ctx, sharing.From(r.Client), ref, a.Namespace)
		if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
			return &finding{reason: v1alpha1.ReasonReferenceNotAllowed, message: refused.Error()}, nil
		}
		if apierrors.IsNotFound(err) {
			return &finding{reason: v1alpha1.ReasonProviderNotFound, message: fmt.Sprintf("ModelProvider %q does not exist", ref)}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("failed to get model provider %q: %w", ref, err)
		}
		if c := ready(p.Status.Conditions, p.Generation); c != nil && objectbudget.IsLeftOut(p) {
			return &finding{reason: v1alpha1.ReasonProviderNotReady, message: providerNotReady(ref, p.Namespace, c, a)}, nil
		}
	}
	unsupported, _, err := r.unsupported(ctx, a, field, models, translate.CheckQuestionParameters)
	if err != nil || len(unsupported) == 0 {
		return nil, err
	}
	return &finding{reason: v1alpha1.ReasonUnsupportedParameter, message: strings.Join(unsupported, "; ")}, nil
}
