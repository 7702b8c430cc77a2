package cli

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/translate"
)

// readSecret is a providers.SecretReader that reads from the manifests.
func (p *bundle) readSecret(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	if secret, ok := p.set.Secret(key.Namespace, key.Name); ok {
		return secret, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
}

// chain returns the providers of the Agent's models. As in a cluster, all must exist before the first is used. A
// Turn with PrepareOnly uses no provider and needs no Secret.
func (r *runCommand) chain(ctx context.Context, p *bundle, cache *providers.Cache) ([]translate.Link, error) {
	var chain []translate.Link
	for i, m := range p.agent.Spec.Models {
		object, ok := p.set.ModelProvider(p.turn.Namespace, m.ProviderRef.Name)
		if !ok {
			return nil, fail(ExitFailed, p.missing(kindAgent, p.agent.Name,
				fmt.Sprintf("spec.models[%d].providerRef.name", i), kindModelProvider, m.ProviderRef.Name))
		}
		link := translate.Link{Reference: m, Object: object}
		if p.turn.Spec.Execution == v1alpha1.ExecutionPrepareOnly {
			link.Provider = providers.Unusable(object.Name, errors.New("a Turn with execution PrepareOnly sends no request to a model"))
		} else {
			provider, err := cache.Get(ctx, object)
			if err != nil {
				return nil, fail(ExitFailed, p.noSecret(kindModelProvider, object.Name, err))
			}
			link.Provider = provider
		}
		chain = append(chain, link)
	}
	return chain, nil
}

// noSecret adds to the error of a missing credential which object needs it and how to provide it.
func (p *bundle) noSecret(kind, name string, err error) error {
	message := err.Error()
	if missing, ok := errors.AsType[*providers.SecretError](err); ok {
		message = fmt.Sprintf("%s (the manifests contain %s), or pass it with --env-secret %s/%s=ENVVAR",
			missing.Reason, p.held(kindSecret), missing.Secret, missing.Key)
	}
	return p.problem(kind, name, "", message)
}
