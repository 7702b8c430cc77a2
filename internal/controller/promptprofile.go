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

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/translate"
)

// sampleModel and sampleAgent are the model and the Agent that a profile is rendered with.
const (
	sampleAgent = "sample"
	sampleModel = "sample-model"
)

// PromptProfileReconciler renders each profile, so that people see its faults before a Turn uses it.
type PromptProfileReconciler struct {
	Client client.Client
	Now    func() time.Time
	// ConfigMaps returns a reader of the ConfigMaps of a namespace.
	ConfigMaps func(namespace string) translate.ConfigMaps
	// Recheck is the interval at which profiles are reconciled where ConfigMaps may not be watched. If Recheck is
	// 0, the reconciler watches ConfigMaps.
	Recheck time.Duration
	// LeftOut reports objects for which the cache has no memory. If LeftOut is nil, the cache holds all objects.
	LeftOut *LeftOut

	written ownWrites
}

// SetupWithManager registers the reconciler. A profile is reconciled when its spec changes, and when a ConfigMap
// that it names appears, changes or is deleted.
func (r *PromptProfileReconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.PromptProfile{}, builder.WithPredicates(specChanged())).
		WithOptions(fairOptions(renderWorkers, renderWorkersOfNamespace))
	if r.Recheck == 0 {
		b = b.Watches(&corev1.ConfigMap{}, referrers(r.Client, &v1alpha1.PromptProfileList{}, indexProfileConfigMap), builder.OnlyMetadata)
	}
	return b.Complete(r)
}

// Reconcile renders one profile and reports the result.
func (r *PromptProfileReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var p v1alpha1.PromptProfile
	if ok, result, err := r.written.get(ctx, r.Client, req.NamespacedName, &p); !ok {
		return result, err
	}
	if r.LeftOut.isLeftOut(&p) {
		return r.LeftOut.report(ctx, &p, &p.Status.Conditions, &p.Status.ObservedGeneration)
	}
	before := p.Status.DeepCopy()
	failure := r.report(ctx, &p)
	again := ctrl.Result{RequeueAfter: r.Recheck}
	if equality.Semantic.DeepEqual(before, &p.Status) {
		return again, failure
	}
	_, again, err := r.written.writeStatus(ctx, r.Client, &p, again)
	return again, errors.Join(failure, err)
}

// report renders the profile and sets its status. It returns an error if a ConfigMap could not be read; the caller
// must retry.
func (r *PromptProfileReconciler) report(ctx context.Context, p *v1alpha1.PromptProfile) error {
	now := r.Now()
	ready := finding{holds: true, reason: v1alpha1.ReasonReady, message: fmt.Sprintf("version %s renders", p.Spec.Version)}
	report, err := sampleProfile(ctx, p, r.ConfigMaps(p.Namespace))
	failure, isUnreadable := errors.AsType[*translate.UnreadableError](err)
	_, isMissing := errors.AsType[*translate.MissingError](err)
	_, isInvalid := errors.AsType[*invalid.Error](err)
	switch {
	case isUnreadable:
		ready = unreadableConfigMap(failure)
	case isMissing:
		ready = finding{reason: v1alpha1.ReasonConfigMapNotFound, message: err.Error()}
	case isInvalid:
		_, ownFault := sampleProfile(ctx, p, harmlessTexts)
		ready = finding{reason: v1alpha1.ReasonRenderFailed, message: err.Error(), inOwnText: ownFault != nil}
	case err != nil:
		return err
	default:
		s := &p.Status
		s.ObservedVersion, s.RenderHash, s.Sections = p.Spec.Version, report.RenderHash, report.Sections
		s.StableChars, s.DynamicChars = int64(report.StableChars), int64(report.DynamicChars)
	}
	ready.setReady(&p.Status.Conditions, p.Generation, now)
	p.Status.ObservedGeneration = p.Generation
	return ready.failure
}

// harmlessTexts is a translate.ConfigMaps. If a profile does not render with its texts, the fault is in the profile
// itself.
func harmlessTexts(context.Context, v1alpha1.ConfigMapKeyReference) (string, error) {
	return "text", nil
}

// sampleProfile renders a profile, with the texts of these ConfigMaps, for an Agent without properties of its own.
func sampleProfile(ctx context.Context, p *v1alpha1.PromptProfile, maps translate.ConfigMaps) (prompt.Report, error) {
	profile, err := translate.Profile(ctx, p, maps)
	if err != nil {
		return prompt.Report{}, err
	}
	return prepare.Sample(prepare.Agent{Name: sampleAgent}, profile, nil, sampleModel)
}
