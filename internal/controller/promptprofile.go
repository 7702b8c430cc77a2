package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/translate"
)

// sampleModel and sampleAgent stand in for the agent of a profile's own rendering.
const (
	sampleAgent = "sample"
	sampleModel = "sample-model"
)

// PromptProfileReconciler renders each profile, so that a fault in it is known before any Turn uses it.
type PromptProfileReconciler struct {
	Client client.Client
	Now    func() time.Time
	// ConfigMaps reads the ConfigMaps of a namespace.
	ConfigMaps func(namespace string) translate.ConfigMaps
	// Recheck is how often profiles are looked at where ConfigMaps may not be watched; 0 watches them.
	Recheck time.Duration
}

// SetupWithManager registers the reconciler. A profile is looked at when its spec changes, and when a ConfigMap that it
// names appears, changes or goes.
func (r *PromptProfileReconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.PromptProfile{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(inTurn(renderingsAtOnce, renderingsOfNamespace))
	if r.Recheck == 0 {
		b = b.Watches(&corev1.ConfigMap{}, users(r.Client, &v1alpha1.PromptProfileList{}, indexProfileConfigMap), builder.OnlyMetadata)
	}
	return b.Complete(r)
}

// Reconcile renders one profile and reports on it.
func (r *PromptProfileReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var p v1alpha1.PromptProfile
	if err := r.Client.Get(ctx, req.NamespacedName, &p); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := p.Status.DeepCopy()
	failure := r.report(ctx, &p)
	again := ctrl.Result{RequeueAfter: r.Recheck}
	if equality.Semantic.DeepEqual(before, &p.Status) {
		return again, failure
	}
	again, err := written(again, r.Client.Status().Update(ctx, &p))
	return again, errors.Join(failure, err)
}

// report sets what became of the profile. It returns an error if a ConfigMap could not be read, which is to be tried again.
func (r *PromptProfileReconciler) report(ctx context.Context, p *v1alpha1.PromptProfile) error {
	now := r.Now()
	ready := finding{holds: true, reason: v1alpha1.ReasonReady, message: fmt.Sprintf("version %s renders", p.Spec.Version)}
	report, err := r.sample(ctx, p)
	failure, isUnreadable := errors.AsType[*translate.UnreadableError](err)
	_, isMissing := errors.AsType[*translate.MissingError](err)
	wrong, isWrong := errors.AsType[*invalid.Error](err)
	switch {
	case isUnreadable:
		ready = unreadable(failure)
	case isMissing:
		ready = finding{reason: v1alpha1.ReasonConfigMapNotFound, message: err.Error()}
	case isWrong:
		ready = finding{reason: v1alpha1.ReasonRenderFailed, message: wrong.Error()}
	case err != nil:
		return err
	default:
		s := &p.Status
		s.ObservedVersion, s.RenderHash, s.Sections = p.Spec.Version, report.RenderHash, report.Sections
		s.StableChars, s.DynamicChars = int64(report.StableChars), int64(report.DynamicChars)
	}
	ready.set(&p.Status.Conditions, v1alpha1.ConditionReady, p.Generation, now)
	// Nothing but another text cures a text that does not render: kstatus then need not wait. A ConfigMap may appear.
	ready.stall(&p.Status.Conditions, p.Generation, now, !ready.holds && !isMissing && !isUnreadable)
	p.Status.ObservedGeneration = p.Generation
	return ready.failure
}

// sample renders the profile as an agent without properties of its own would get it.
func (r *PromptProfileReconciler) sample(ctx context.Context, p *v1alpha1.PromptProfile) (prompt.Report, error) {
	profile, err := translate.Profile(ctx, p, r.ConfigMaps(p.Namespace))
	if err != nil {
		return prompt.Report{}, err
	}
	return prepare.Sample(prepare.Agent{Name: sampleAgent}, profile, nil, sampleModel)
}
