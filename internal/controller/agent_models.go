package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// resolveModels finds the ModelProviders of the Agent's chain. The finding names those that cannot be used now. It
// holds if one of them can be used:
//
//  1. The endpoint of one answers. Turns use the other models only as far as they can.
//  2. No endpoint answers, and Turns need not wait for one. A probe may be out of date, so each Turn tries them.
func (r *AgentReconciler) resolveModels(ctx context.Context, a *v1alpha1.Agent) (finding, error) {
	providers, err := r.modelProviders(ctx, a)
	if err != nil {
		return finding{}, err
	}
	answers := slices.ContainsFunc(providers, func(p *v1alpha1.ModelProvider) bool {
		c := ready(p.Status.Conditions, p.Generation)
		return c != nil && c.Status == metav1.ConditionTrue
	})
	tried, awaited := false, false
	f := finding{reason: v1alpha1.ReasonProviderNotReady}
	var unusable []string
	for _, p := range providers {
		c := ready(p.Status.Conditions, p.Generation)
		why, left := r.awaitedNew("ModelProvider", p, c)
		switch {
		case p.ResourceVersion == "":
			why, f.reason = fmt.Sprintf("ModelProvider %q does not exist", p.Name), v1alpha1.ReasonProviderNotFound
		case c == nil:
			why, awaited = fmt.Sprintf("ModelProvider %q is not checked yet", p.Name), true
		case c.Status == metav1.ConditionTrue:
			continue
		case why != "" && !answers:
			awaited, f.after = true, earliest(f.after, left)
		case c.Reason == v1alpha1.ReasonEndpointUnreachable, c.Reason == v1alpha1.ReasonAddressRefused:
			// Without the message of the probe: each change of it would be written to every Agent of the provider.
			why, tried = fmt.Sprintf("ModelProvider %q does not answer (%s)", p.Name, c.Reason), true
		default:
			why = fmt.Sprintf("ModelProvider %q is not ready: %s", p.Name, c.Message)
		}
		unusable = append(unusable, why)
	}
	f.message = strings.Join(unusable, "; ")
	switch {
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
			message: "no endpoint of the chain answers, and turns try those that exist: " + f.message,
		}
	}
	return f, nil
}

// modelProviders returns the ModelProviders of the Agent's chain, in order and once each. One that does not exist has
// only a name, and no resource version.
func (r *AgentReconciler) modelProviders(ctx context.Context, a *v1alpha1.Agent) ([]*v1alpha1.ModelProvider, error) {
	var all []*v1alpha1.ModelProvider
	for _, name := range providerNames(a) {
		p := new(v1alpha1.ModelProvider)
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: name}, p)
		if apierrors.IsNotFound(err) {
			p, err = &v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("failed to get model provider %q: %w", name, err)
		}
		all = append(all, p)
	}
	return all, nil
}
