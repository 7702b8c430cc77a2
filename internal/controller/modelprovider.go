package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// ModelProviderReconciler checks that a provider's Secrets exist and that its endpoint answers.
type ModelProviderReconciler struct {
	Client    client.Client
	Providers *providers.Cache
	Events    events.EventRecorder
	Now       func() time.Time
	// ServerClock returns the time by the API server's clock as it is now, for age.
	ServerClock func() time.Time
	// ProbeInterval is the time between two probes of an endpoint that answers.
	ProbeInterval time.Duration
	// Circuits holds the open circuits of all executors. It may be nil.
	Circuits *OpenCircuits
	// LeftOut reports objects for which the cache has no memory. If LeftOut is nil, the cache holds all objects.
	LeftOut *LeftOut

	// queue is the queue of the controller, or nil before the controller runs.
	queue   atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
	written ownWrites
}

// SetupWithManager registers the reconciler. A ModelProvider is reconciled when its spec changes, when a circuit opens
// or closes, and at intervals.
func (r *ModelProviderReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Circuits != nil {
		r.Circuits.onChange(r.enqueue)
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.ModelProvider{}, builder.WithPredicates(specChanged())).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.queue.Store(&q)
			return nil
		})).
		WithOptions(probeOptions()).
		Complete(r)
}

// enqueue enqueues a ModelProvider whose circuits have changed. It never blocks.
func (r *ModelProviderReconciler) enqueue(key types.NamespacedName) {
	if q := r.queue.Load(); q != nil {
		(*q).Add(reconcile.Request{NamespacedName: key})
	}
}

// Reconcile probes one provider and reports the result.
func (r *ModelProviderReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var p v1alpha1.ModelProvider
	if ok, result, err := r.written.get(ctx, r.Client, req.NamespacedName, &p); !ok {
		return result, err
	}
	if r.LeftOut.isLeftOut(&p) {
		return r.LeftOut.report(ctx, &p, &p.Status.Conditions, &p.Status.ObservedGeneration)
	}
	found, err := r.probe(ctx, &p)
	if err != nil {
		return ctrl.Result{}, err
	}
	before := p.Status.DeepCopy()
	found = keepMessage(found, p.Status.Conditions, p.Generation)
	found.setReady(&p.Status.Conditions, p.Generation, r.Now())
	if found, ok := availability(p.Status.Conditions, r.Circuits.models(req.NamespacedName)); ok {
		found.set(&p.Status.Conditions, v1alpha1.ConditionAvailable, p.Generation, r.Now())
	}
	p.Status.ObservedGeneration = p.Generation
	again := nextProbe(r.Now(), r.ServerClock(), &p, p.Status.Conditions, r.ProbeInterval)
	if equality.Semantic.DeepEqual(before, &p.Status) {
		return again, nil
	}
	written, again, err := r.written.writeStatus(ctx, r.Client, &p, again)
	if written {
		emitEvent(r.Events, &p, v1alpha1.ConditionReady, "Probe", before.Conditions, p.Status.Conditions)
		emitEvent(r.Events, &p, v1alpha1.ConditionAvailable, "Request", before.Conditions, p.Status.Conditions)
	}
	return again, err
}

// probe reads the provider's Secrets and requests the list of models from its endpoint, which costs nothing. It
// returns an error only if the Secrets could not be read, or if this process had no socket for the request.
func (r *ModelProviderReconciler) probe(ctx context.Context, p *v1alpha1.ModelProvider) (finding, error) {
	provider, err := r.Providers.Fresh(ctx, p)
	if missing, ok := errors.AsType[*providers.SecretError](err); ok {
		return secretFinding(missing), nil
	}
	if apierrors.IsForbidden(err) {
		// Only the people who grant the manager its permissions can help, and they look at the condition.
		return finding{reason: v1alpha1.ReasonSecretNotFound, message: err.Error()}, nil
	}
	if err != nil {
		return finding{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	listing, err := provider.Probe(ctx)
	if errors.Is(err, model.ErrOwnShortage) { // which says nothing about the endpoint
		return finding{}, err
	}
	if err != nil {
		return probeFailure(ctx, p.Name, err), nil
	}
	answers := "the endpoint answers"
	switch listing {
	case endpoint.NoList:
		answers += ", but has no list of models at baseURL/models: if Turns fail with HTTP 404, check the path of baseURL"
	case endpoint.ListRefused:
		answers += ", but does not let the manager list its models: if Turns fail with HTTP 401 or 403, check the credentials " +
			"and their permissions"
	case endpoint.Listed, endpoint.ListUnknown:
	}
	return finding{holds: true, reason: v1alpha1.ReasonReady, message: answers}, nil
}

// probeFailure translates the error of a probe into a finding. It removes the provider's name from the message, because
// the condition belongs to that provider.
func probeFailure(ctx context.Context, name string, err error) finding {
	failure := model.AsError(err)
	f := finding{
		reason:  v1alpha1.ReasonEndpointUnreachable,
		message: strings.TrimPrefix(failure.Message, fmt.Sprintf("provider %q: ", name)),
	}
	_, isRefused := errors.AsType[*netpolicy.Refused](err)
	switch {
	case isRefused:
		f.reason = v1alpha1.ReasonAddressRefused
	case failure.Kind == model.Auth, failure.Kind == model.QuotaExceeded:
		f.reason = v1alpha1.ReasonCredentialsRejected
	case ctx.Err() != nil:
		f.message = fmt.Sprintf("the endpoint did not answer a probe within %s", probeTimeout)
	}
	return f
}
