package bundle

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/translate"
)

// ReadSecret is a providers.SecretReader that reads from the manifests.
func (p *Bundle) ReadSecret(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	if secret, ok := p.Set.Secret(key.Namespace, key.Name); ok {
		return secret, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
}

// Chain returns the models of the Agent with their providers. In a cluster, one usable provider suffices. Here all must
// exist, because the user can add a missing provider before the run. A Turn with PrepareOnly uses no provider and needs
// no Secret. waits is called while a request waits for a provider: see pace.Caller.
func (p *Bundle) Chain(ctx context.Context, cache *providers.Cache, waits func(provider string)) ([]translate.Link, error) {
	var chain []translate.Link
	for i, m := range p.Agent.Spec.Models {
		object, err := p.provider(m.ProviderRef)
		if err != nil {
			return nil, exit.WithCode(exit.Failed,
				p.problem(kindAgent, p.Agent.Name, fmt.Sprintf("spec.models[%d].providerRef.name", i), err.Error()))
		}
		if err := translate.CheckParameters(fmt.Sprintf("spec.models[%d]", i), m, p.Agent.Spec.Thinking, object); err != nil {
			return nil, exit.WithCode(exit.Failed, err)
		}
		link := translate.Link{Reference: m, Object: object}
		if p.Turn.Spec.Execution == v1alpha1.ExecutionPrepareOnly {
			link.Provider = providers.Unusable(object.Name, errors.New("a Turn with execution PrepareOnly sends no request to a model"))
		} else if err := p.connect(ctx, cache, &link, waits); err != nil {
			return nil, err
		}
		chain = append(chain, link)
	}
	return chain, nil
}

// connect sets the provider of a link whose ModelProvider is known.
func (p *Bundle) connect(ctx context.Context, cache *providers.Cache, l *translate.Link, waits func(provider string)) error {
	provider, err := cache.Get(ctx, l.Object)
	if err != nil {
		return exit.WithCode(exit.Failed, p.noSecret(kindModelProvider, l.Object, err))
	}
	l.Provider = cache.Gated(l.Object, pace.Caller{Namespace: p.Turn.Namespace, Agent: p.AgentName(), Waits: waits}, provider)
	return nil
}

// JudgeLink returns the model of judge i of the profile. The judge must have a modelRef.
func (p *Bundle) JudgeLink(ctx context.Context, cache *providers.Cache, i int, waits func(provider string)) (translate.Link, error) {
	ref := p.Profile.Spec.Judges[i].ModelRef
	shared := v1alpha1.SharedReference{Name: ref.ProviderRef.Name}
	l := translate.Link{Reference: v1alpha1.ModelReference{ProviderRef: shared, Model: ref.Model}}
	var err error
	if l.Object, err = p.provider(shared); err != nil {
		field := fmt.Sprintf("spec.judges[%d].modelRef.providerRef.name", i)
		return l, exit.WithCode(exit.Failed, p.problem(kindPromptProfile, p.Profile.Name, field, err.Error()))
	}
	return l, p.connect(ctx, cache, &l, waits)
}

// LearningLinks returns the models that extract memories for the Agent. It returns nil if the Agent does not name such
// models; the models of its chain then extract the memories.
func (p *Bundle) LearningLinks(ctx context.Context, cache *providers.Cache, waits func(provider string)) ([]translate.Link, error) {
	var all []translate.Link
	for i, m := range p.Agent.Spec.Memory.Learning.Models {
		l := translate.Link{Reference: m}
		field := fmt.Sprintf("spec.memory.learning.models[%d]", i)
		var err error
		if l.Object, err = p.provider(m.ProviderRef); err != nil {
			return nil, exit.WithCode(exit.Failed, p.problem(kindAgent, p.Agent.Name, field+".providerRef.name", err.Error()))
		}
		if err := translate.CheckQuestionParameters(field, m, l.Object); err != nil {
			return nil, exit.WithCode(exit.Failed, err)
		}
		if err := p.connect(ctx, cache, &l, waits); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// EmbeddingsLink returns the model that turns texts into vectors for the Agent, which must have such a model. If the
// model cannot be used, its requests fail with the reason; texts are then compared only by their words, as in a
// cluster.
func (p *Bundle) EmbeddingsLink(ctx context.Context, cache *providers.Cache, waits func(provider string)) translate.Link {
	l := translate.Link{Reference: translate.EmbeddingsModel(p.Agent)}
	object, err := p.provider(l.Reference.ProviderRef)
	if err == nil {
		l.Object = object
		err = p.connect(ctx, cache, &l, waits)
	}
	if err != nil {
		l.Object, l.Provider = nil, providers.Unusable(l.Reference.ProviderRef.String(), err)
	}
	return l
}

// CheckSecrets returns an error if a ToolServer of the Agent lacks a Secret. In a cluster only the calls would
// fail; here the user can add the Secret first.
func (p *Bundle) CheckSecrets(ctx context.Context) error {
	read := secrets.Reader(p.ReadSecret)
	for _, s := range p.ToolServers() {
		url := "" // a server without a URL receives no request
		if s.Spec.MCP != nil {
			url = s.Spec.MCP.URL
		}
		_, err := read.Headers(ctx, s.Namespace, s.Spec.Headers, url)
		if ref := s.Spec.CredentialsRef; ref != nil && err == nil {
			_, err = read.Header(ctx, s.Namespace, *ref, url)
		}
		if err == nil {
			_, err = read.Certificates(ctx, s.Namespace, s.Spec.TLS, url)
		}
		if err != nil {
			return exit.WithCode(exit.Failed, p.noSecret(kindToolServer, s, err))
		}
	}
	return nil
}

// noSecret adds to the error of a missing credential which object needs the credential, and how to provide it.
func (p *Bundle) noSecret(kind string, object client.Object, err error) error {
	message := err.Error()
	if missing, ok := errors.AsType[*providers.SecretError](err); ok && missing.Secret != "" {
		secret := missing.Secret
		if object.GetNamespace() != p.Turn.Namespace {
			secret = object.GetNamespace() + "/" + secret
		}
		message = fmt.Sprintf("%s (Secrets in the manifests: %s), or pass the value with --env-secret %s/%s=ENVVAR",
			missing.Reason, namesOf(p.Set, kindSecret), secret, missing.Key)
	}
	return p.problemOf(kind, object.GetNamespace(), object.GetName(), "", message)
}
