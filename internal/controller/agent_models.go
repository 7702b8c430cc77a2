package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/translate"
)

// resolveModels finds the ModelProviders of the Agent's chain. The finding names the ModelProviders that cannot be used
// now, and the parameters that a model cannot fulfill: a request with such a parameter fails before it is sent, and the
// Turn uses the next model. The finding holds if one of these is true of the ModelProviders with a model that can
// fulfill its parameters:
//
//  1. The endpoint of at least one of them answers.
//  2. None of their endpoints answers, at least one of them is unreachable, and none is new or unchecked (Turns wait
//     for new and unchecked ones). Because a probe may be out of date, each Turn tries the models itself.
func (r *AgentReconciler) resolveModels(ctx context.Context, a *v1alpha1.Agent) (finding, error) {
	providers, err := r.modelProviders(ctx, a)
	if err != nil {
		return finding{}, err
	}
	check := func(field string, m v1alpha1.ModelReference, p *v1alpha1.ModelProvider) error {
		return translate.CheckParameters(field, m, a.Spec.Thinking, p)
	}
	unsupported, able, err := r.unsupported(ctx, a, "spec.models", a.Spec.Models, check)
	if err != nil {
		return finding{}, err
	}
	answers := slices.ContainsFunc(providers, func(p usedProvider) bool {
		c := ready(p.Status.Conditions, p.Generation)
		return able[p.ref] && c != nil && c.Status == metav1.ConditionTrue
	})
	tried, awaited := false, false
	f := finding{reason: v1alpha1.ReasonProviderNotReady}
	var unusable []string
	for _, p := range providers {
		c := ready(p.Status.Conditions, p.Generation)
		why, left := r.awaitedNew("ModelProvider", p.ModelProvider, c)
		switch {
		case p.refused != nil:
			why, f.reason = p.refused.Error(), v1alpha1.ReasonReferenceNotAllowed
		case p.ResourceVersion == "":
			why, f.reason = fmt.Sprintf("ModelProvider %q does not exist", p.ref), v1alpha1.ReasonProviderNotFound
		case c == nil:
			why, awaited = fmt.Sprintf("ModelProvider %q is not checked yet", p.ref), awaited || able[p.ref]
		case c.Status == metav1.ConditionTrue:
			continue
		case why != "" && able[p.ref] && !answers:
			awaited, f.after = true, earliest(f.after, left)
		case c.Reason == v1alpha1.ReasonEndpointUnreachable, c.Reason == v1alpha1.ReasonAddressRefused:
			// The message of the probe is left out: each change of it would be written to every Agent of the provider.
			why, tried = fmt.Sprintf("ModelProvider %q does not answer (%s)", p.ref, c.Reason), tried || able[p.ref]
		default:
			why = providerNotReady(p.ref, p.Namespace, c, a)
		}
		unusable = append(unusable, why)
	}
	unusable = append(unsupported, unusable...)
	f.message = strings.Join(unusable, "; ")
	silent := "no endpoint of the chain answers"
	if len(unsupported) > 0 {
		silent = "no endpoint answers whose model can fulfill its parameters"
	}
	switch {
	case len(unsupported) > 0 && len(able) == 0: // each Turn would fail, whatever the endpoints do
		f.reason = v1alpha1.ReasonUnsupportedParameter
	case len(unusable) == 0:
		f = finding{holds: true, reason: v1alpha1.ReasonResolved, message: "all models of the chain can be used"}
	case answers:
		f = finding{
			holds: true, reason: v1alpha1.ReasonPartiallyResolved,
			message: "turns use only a part of the chain: " + f.message,
		}
	case tried && !awaited:
		f = finding{
			holds: true, reason: v1alpha1.ReasonPartiallyResolved,
			message: silent + ", and turns try those that exist: " + f.message,
		}
	}
	return f, nil
}

// providerNotReady returns a message about a ModelProvider whose Ready condition is not True. namespace is that of the
// ModelProvider.
func providerNotReady(ref v1alpha1.SharedReference, namespace string, c *metav1.Condition, a *v1alpha1.Agent) string {
	if namespace != a.Namespace { // the message may contain names that only that namespace may know
		return fmt.Sprintf("ModelProvider %q is not ready (%s)", ref, c.Reason)
	}
	return fmt.Sprintf("ModelProvider %q is not ready: %s", ref, c.Message)
}

// usedProvider is a ModelProvider to which an Agent refers. If the ModelProvider does not exist or may not be used, it
// has no resource version.
type usedProvider struct {
	*v1alpha1.ModelProvider
	ref v1alpha1.SharedReference
	// refused is why a ModelProvider of another namespace may not be used.
	refused *sharing.RefusedError
}

// modelProviders returns the ModelProviders of the Agent's chain, in order and once each.
func (r *AgentReconciler) modelProviders(ctx context.Context, a *v1alpha1.Agent) ([]usedProvider, error) {
	var all []usedProvider
	for _, ref := range providerRefs(a) {
		p, err := r.Sharing.Provider(ctx, sharing.From(r.Client), ref, a.Namespace)
		used := usedProvider{p, ref, nil}
		refused, isRefused := errors.AsType[*sharing.RefusedError](err)
		switch {
		case isRefused, apierrors.IsNotFound(err):
			used.ModelProvider, used.refused = &v1alpha1.ModelProvider{}, refused
		case err != nil:
			return nil, fmt.Errorf("failed to get model provider %q: %w", ref, err)
		}
		all = append(all, used)
	}
	return all, nil
}

// consentRecheck is the time between two checks of an Agent that uses objects of other namespaces. The checks are
// needed because the labels of the Agent's namespace, which are not watched, may change.
const consentRecheck = time.Minute

// recheckConsent returns when to check again whether an Agent may use the objects of other namespaces, or 0 if it uses
// no such objects.
func recheckConsent(a *v1alpha1.Agent) time.Duration {
	refs := append(providerRefs(a), a.Spec.PromptProfileRef)
	refs = append(refs, slices.Concat(judgeProviderRefs(a), learningProviderRefs(a), embeddingsProviderRefs(a))...)
	for _, t := range a.Spec.Tools {
		if t.ServerRef != nil {
			refs = append(refs, *t.ServerRef)
		}
		if t.AgentRef != nil {
			refs = append(refs, *t.AgentRef)
		}
	}
	for _, ref := range refs {
		if ref.Key(a.Namespace).Namespace != a.Namespace {
			return consentRecheck
		}
	}
	return 0
}
