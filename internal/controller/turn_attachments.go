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
	"github.com/capstan-dev/capstan/internal/translate"
)

// refusedAttachments returns why the attachments of a Turn cannot be used: they are not allowed, or no model of the
// Agent accepts them. It returns an empty string if they can be used. It reads nothing for a Turn without attachments,
// or for a Turn that may already have its prompt.
func (r *TurnReconciler) refusedAttachments(ctx context.Context, t *v1alpha1.Turn, a *v1alpha1.Agent) (string, error) {
	if len(t.Spec.Attachments) == 0 || a == nil || t.Epoch() > 0 && !lacksPrompt(t) {
		return "", nil
	}
	if r.RefuseURLs {
		if err := translate.CheckURLs(t); err != nil {
			return err.Error(), nil //nolint:nilerr // because the error is the answer
		}
	}
	err := translate.CheckAttachments(t, a, func(ref v1alpha1.SharedReference) (*v1alpha1.ModelProvider, error) {
		p, err := r.Sharing.Provider(ctx, sharing.From(r.Client), ref, a.Namespace)
		if _, refused := errors.AsType[*sharing.RefusedError](err); refused || apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // because "none" is an answer, not an error
		}
		if err != nil {
			return nil, fmt.Errorf("failed to get model provider %q: %w", ref, err)
		}
		if objectbudget.IsLeftOut(p) {
			return nil, nil //nolint:nilnil // because the cache does not have its models; the executor reads them
		}
		return p, nil
	})
	if failure, ok := errors.AsType[*invalid.Error](err); ok {
		return failure.Error(), nil
	}
	return "", err
}

// whenAttachmentsRefused ends a Turn whose attachments cannot be used.
func whenAttachmentsRefused(v snapshot) (decision, bool) {
	if v.refused == "" {
		return decision{}, false
	}
	return decision{action: endAction(v), reason: v1alpha1.TurnReasonInvalidSpec, message: v.refused}, true
}
