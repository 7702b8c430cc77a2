package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/translate"
)

// AgentReconciler says whether an agent can run Turns: whether all it refers to is there.
type AgentReconciler struct {
	Client client.Client
	Now    func() time.Time
}

// SetupWithManager registers the reconciler. An agent is looked at when its spec changes, and when something it refers
// to appears, changes or goes.
func (r *AgentReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Agent{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.PromptProfile{}, r.users(indexAgentProfile)).
		Watches(&v1alpha1.ModelProvider{}, r.users(indexAgentProvider)).
		Complete(r)
}

// users maps an object to the agents that refer to it.
func (r *AgentReconciler) users(index string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		var agents v1alpha1.AgentList
		if err := r.Client.List(ctx, &agents, client.InNamespace(o.GetNamespace()), client.MatchingFields{index: o.GetName()}); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to list the agents that use an object", "object", o.GetName())
			return nil
		}
		var requests []reconcile.Request
		for i := range agents.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&agents.Items[i])})
		}
		return requests
	})
}

// Reconcile looks at what one agent refers to and reports.
func (r *AgentReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var a v1alpha1.Agent
	if err := r.Client.Get(ctx, req.NamespacedName, &a); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := a.Status.DeepCopy()
	profile, hash, err := r.resolveProfile(ctx, &a)
	if err != nil {
		return ctrl.Result{}, err
	}
	models, err := r.resolveModels(ctx, &a)
	if err != nil {
		return ctrl.Result{}, err
	}
	now := r.Now()
	profile.set(&a.Status.Conditions, v1alpha1.ConditionProfileResolved, a.Generation, now)
	models.set(&a.Status.Conditions, v1alpha1.ConditionModelsResolved, a.Generation, now)
	readiness(profile, models).set(&a.Status.Conditions, v1alpha1.ConditionReady, a.Generation, now)
	a.Status.PromptRenderHash = hash
	a.Status.ObservedGeneration = a.Generation
	if equality.Semantic.DeepEqual(before, &a.Status) {
		return ctrl.Result{}, nil
	}
	return written(ctrl.Result{}, r.Client.Status().Update(ctx, &a))
}

// readiness sums findings up: the first that does not hold is the reason, the messages of all are told.
func readiness(findings ...finding) finding {
	sum := finding{holds: true, reason: v1alpha1.ReasonReady, message: "the agent can run turns"}
	var messages []string
	for _, f := range findings {
		if f.holds {
			continue
		}
		if sum.holds {
			sum.holds, sum.reason = false, f.reason
		}
		messages = append(messages, f.message)
	}
	if !sum.holds {
		sum.message = strings.Join(messages, "; ")
	}
	return sum
}

// resolveProfile finds the agent's profile and renders the two together. The hash is that of the rendering, if there is
// one.
func (r *AgentReconciler) resolveProfile(ctx context.Context, a *v1alpha1.Agent) (f finding, hash string, err error) {
	name := a.Spec.PromptProfileRef.Name
	var p v1alpha1.PromptProfile
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: a.Namespace, Name: name}, &p); err != nil {
		if apierrors.IsNotFound(err) {
			return finding{reason: v1alpha1.ReasonProfileNotFound, message: fmt.Sprintf("PromptProfile %q does not exist", name)}, "", nil
		}
		return finding{}, "", fmt.Errorf("failed to get prompt profile %q: %w", name, err)
	}
	switch c := ready(p.Status.Conditions, p.Generation); {
	case c == nil:
		return finding{reason: v1alpha1.ReasonProfileNotReady, message: fmt.Sprintf("PromptProfile %q is not rendered yet", name)}, "", nil
	case c.Status != metav1.ConditionTrue:
		return finding{reason: v1alpha1.ReasonProfileNotReady, message: fmt.Sprintf("PromptProfile %q is not ready: %s", name, c.Message)}, "", nil
	}
	location, err := translate.Location(a)
	if err != nil {
		return finding{reason: v1alpha1.ReasonInvalidTimeZone, message: err.Error()}, "", nil //nolint:nilerr // because the error is the finding
	}
	system, err := prepare.Sample(translate.Agent(a), translate.Profile(&p), a.Spec.Models[0].Model, r.Now().In(location))
	if err != nil {
		return finding{reason: v1alpha1.ReasonInvalidInstructions, message: err.Error()}, "", nil //nolint:nilerr // because the error is the finding
	}
	resolved := finding{holds: true, reason: v1alpha1.ReasonResolved, message: fmt.Sprintf("PromptProfile %q, version %s", name, p.Spec.Version)}
	return resolved, system.Report.RenderHash, nil
}

// resolveModels finds the providers of the agent's chain. An endpoint that is out of reach does not count: the Turn that
// needs it will try, and has the rest of the chain.
func (r *AgentReconciler) resolveModels(ctx context.Context, a *v1alpha1.Agent) (finding, error) {
	var missing, unready []string
	for _, name := range providerNames(a) {
		var p v1alpha1.ModelProvider
		if err := r.Client.Get(ctx, types.NamespacedName{Namespace: a.Namespace, Name: name}, &p); err != nil {
			if !apierrors.IsNotFound(err) {
				return finding{}, fmt.Errorf("failed to get model provider %q: %w", name, err)
			}
			missing = append(missing, fmt.Sprintf("ModelProvider %q does not exist", name))
			continue
		}
		switch c := ready(p.Status.Conditions, p.Generation); {
		case c == nil:
			unready = append(unready, fmt.Sprintf("ModelProvider %q is not checked yet", name))
		case c.Status != metav1.ConditionTrue && c.Reason != v1alpha1.ReasonEndpointUnreachable:
			unready = append(unready, fmt.Sprintf("ModelProvider %q is not ready: %s", name, c.Message))
		}
	}
	switch {
	case len(missing) > 0:
		return finding{reason: v1alpha1.ReasonProviderNotFound, message: strings.Join(append(missing, unready...), "; ")}, nil
	case len(unready) > 0:
		return finding{reason: v1alpha1.ReasonProviderNotReady, message: strings.Join(unready, "; ")}, nil
	}
	return finding{holds: true, reason: v1alpha1.ReasonResolved, message: "all model providers are there"}, nil
}
