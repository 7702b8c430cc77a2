package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/translate"
)

// refusedAttachments returns why no model of the Agent accepts the attachments of a Turn, or an empty text if one does.
// For Turns without attachments, and for those that may already have their prompt, it reads nothing.
func (r *TurnReconciler) refusedAttachments(ctx context.Context, t *v1alpha1.Turn, a *v1alpha1.Agent) (string, error) {
	if a == nil || t.Epoch() > 0 && !lacksPrompt(t) {
		return "", nil
	}
	err := translate.CheckAttachments(t, a, func(name string) (*v1alpha1.ModelProvider, error) {
		p := new(v1alpha1.ModelProvider)
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: name}, p)
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // because "none" is an answer, not an error
		}
		if err != nil {
			return nil, fmt.Errorf("failed to get model provider %q: %w", name, err)
		}
		return p, nil
	})
	if wrong, ok := errors.AsType[*invalid.Error](err); ok {
		return wrong.Error(), nil
	}
	return "", err
}

// whenAttachmentsRefused ends a Turn whose attachments no model of its Agent accepts.
func whenAttachmentsRefused(v snapshot) (decision, bool) {
	if v.refused == "" {
		return decision{}, false
	}
	return decision{action: endAction(v), reason: v1alpha1.TurnReasonInvalidSpec, message: v.refused}, true
}
