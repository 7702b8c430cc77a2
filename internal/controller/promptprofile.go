package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capstan-dev/capstan/api/v1alpha1"
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
}

// SetupWithManager registers the reconciler. A profile is looked at when its spec changes.
func (r *PromptProfileReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.PromptProfile{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// Reconcile renders one profile and reports on it.
func (r *PromptProfileReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var p v1alpha1.PromptProfile
	if err := r.Client.Get(ctx, req.NamespacedName, &p); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := p.Status.DeepCopy()
	r.report(&p)
	if equality.Semantic.DeepEqual(before, &p.Status) {
		return ctrl.Result{}, nil
	}
	return written(ctrl.Result{}, r.Client.Status().Update(ctx, &p))
}

func (r *PromptProfileReconciler) report(p *v1alpha1.PromptProfile) {
	now := r.Now()
	ready := finding{holds: true, reason: v1alpha1.ReasonReady, message: fmt.Sprintf("version %s renders", p.Spec.Version)}
	system, err := prepare.Sample(prompt.Agent{Name: sampleAgent}, translate.Profile(p), sampleModel, now)
	if err != nil {
		ready = finding{reason: v1alpha1.ReasonRenderFailed, message: err.Error()}
	} else {
		s := &p.Status
		s.ObservedVersion, s.RenderHash, s.Sections = p.Spec.Version, system.Report.RenderHash, system.Report.Sections
		s.StableChars, s.DynamicChars = int64(system.Report.StableChars), int64(system.Report.DynamicChars)
	}
	ready.set(&p.Status.Conditions, v1alpha1.ConditionReady, p.Generation, now)
	// Nothing but another text cures a text that does not render: kstatus then need not wait.
	if ready.holds {
		meta.RemoveStatusCondition(&p.Status.Conditions, v1alpha1.ConditionStalled)
	} else {
		finding{holds: true, reason: ready.reason, message: ready.message}.set(&p.Status.Conditions, v1alpha1.ConditionStalled, p.Generation, now)
	}
	p.Status.ObservedGeneration = p.Generation
}
