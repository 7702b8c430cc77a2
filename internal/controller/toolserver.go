package controller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

// minChangeInterval is the least time between two writes of a server's tools. A server may change its tools at any
// rate, and each change is also written to the Agents that use them.
const minChangeInterval = 5 * time.Second

// ToolServerReconciler discovers the tools of ToolServers.
type ToolServerReconciler struct {
	Client  client.Client
	Servers *toolservers.Cache
	Events  events.EventRecorder
	Now     func() time.Time
	// ServerClock returns the time by the API server's clock as it is now, for age.
	ServerClock func() time.Time
	// ProbeInterval is the time between two checks of a server that answers.
	ProbeInterval time.Duration
	// LeftOut reports objects for which the cache has no memory. If LeftOut is nil, the cache holds all objects.
	LeftOut *LeftOut
	// Processors limits how much work on the schemas of tools is done at the same time; namespaces take turns. If
	// Processors is nil, no work waits.
	Processors *fairgate.Processors

	// queue is the queue of the controller, or nil before the controller runs.
	queue   atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
	written ownWrites
}

// SetupWithManager registers the reconciler. A ToolServer is reconciled when its spec changes, when the server
// reports that its tools have changed, and at intervals. SetupWithManager must be called before the connections are
// used.
func (r *ToolServerReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.Servers.OnChange(r.enqueueChanged)
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.ToolServer{}, builder.WithPredicates(specChanged())).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.queue.Store(&q)
			return nil
		})).
		WithOptions(probeOptions()).
		Complete(r)
}

// enqueueChanged enqueues a ToolServer whose tools have changed. Connections call it; it never blocks.
func (r *ToolServerReconciler) enqueueChanged(key types.NamespacedName) {
	if q := r.queue.Load(); q != nil {
		(*q).Add(reconcile.Request{NamespacedName: key})
	}
}

// Reconcile asks one server for its tools and reports the result.
func (r *ToolServerReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var s v1alpha1.ToolServer
	if ok, result, err := r.written.get(ctx, r.Client, req.NamespacedName, &s); !ok {
		return result, err
	}
	if r.LeftOut.isLeftOut(&s) {
		return r.LeftOut.report(ctx, &s, &s.Status.Conditions, &s.Status.ObservedGeneration)
	}
	if wait := r.settleDelay(&s); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	before := s.Status.DeepCopy()
	found, err := r.listTools(ctx, &s)
	if err != nil {
		return ctrl.Result{}, err
	}
	found = keepMessage(found, s.Status.Conditions, s.Generation)
	found.setReady(&s.Status.Conditions, s.Generation, r.Now())
	s.Status.ObservedGeneration = s.Generation
	again := nextProbe(r.Now(), r.ServerClock(), &s, s.Status.Conditions, r.ProbeInterval)
	if equality.Semantic.DeepEqual(before, &s.Status) {
		return again, nil
	}
	written, again, err := r.written.writeStatus(ctx, r.Client, &s, again)
	if written {
		emitEvent(r.Events, &s, v1alpha1.ConditionReady, "Discover", before.Conditions, s.Status.Conditions)
	}
	return again, err
}

// settleDelay returns how long to wait before the next check of a server, after its tools have changed. A new spec is
// checked immediately.
func (r *ToolServerReconciler) settleDelay(s *v1alpha1.ToolServer) time.Duration {
	last := s.Status.LastDiscoveryTime
	if last == nil || s.Status.ObservedGeneration != s.Generation {
		return 0
	}
	return minChangeInterval - min(minChangeInterval, max(0, r.Now().Sub(last.Time)))
}

// listTools asks a server for its tools, with its Secrets as they are now, and writes them to the status. It returns an
// error only if the Secrets could not be read, if this process had no socket for the request, or if the process stops.
func (r *ToolServerReconciler) listTools(ctx context.Context, s *v1alpha1.ToolServer) (finding, error) {
	ctx = r.Processors.With(ctx, s.Namespace)
	if err := toolservers.CheckCompensations(ctx, s); err != nil {
		return finding{reason: v1alpha1.ReasonInvalidCompensation, message: err.Error()}, nil
	}
	bounded := ctx
	if c := ready(s.Status.Conditions, s.Generation); c != nil && c.Status != metav1.ConditionTrue {
		// The attempt to connect continues for up to the server's connectTimeoutSeconds, and a later attempt gets its
		// result.
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, probeTimeout)
		defer cancel()
	}
	listing, err := r.Servers.Discover(bounded, s)
	if err != nil {
		if ctx.Err() != nil {
			return finding{}, context.Cause(ctx)
		}
		return listFailure(err)
	}
	return finding{holds: true, reason: v1alpha1.ReasonReady, message: writeListing(ctx, s, listing, r.Now())}, nil
}

// listFailure translates an error of Discover into a finding. The tools stay in the status; the result of a call says
// why the call fails.
func listFailure(err error) (finding, error) {
	if missing, ok := errors.AsType[*secrets.Error](err); ok {
		return secretFinding(missing), nil
	}
	if apierrors.IsForbidden(err) {
		// Only the people who grant the manager its permissions can help, and they look at the condition.
		return finding{reason: v1alpha1.ReasonSecretNotFound, message: err.Error()}, nil
	}
	failure, ok := errors.AsType[*mcp.Error](err)
	if !ok || errors.Is(err, tool.ErrOwnShortage) { // a shortage of this process says nothing about the server
		return finding{}, fmt.Errorf("failed to get the tools of the server: %w", err)
	}
	f := finding{reason: v1alpha1.ReasonEndpointUnreachable, message: failure.Message}
	_, isRefused := errors.AsType[*netpolicy.Refused](err)
	switch {
	case isRefused:
		f.reason = v1alpha1.ReasonAddressRefused
	case failure.Kind == mcp.Refused:
		f.reason = v1alpha1.ReasonCredentialsRejected
	case failure.Kind == mcp.NoMemory:
		f.reason = v1alpha1.ReasonMemoryUsedUp
	case failure.Kind == mcp.Protocol:
		f.reason = v1alpha1.ReasonProtocolError
	}
	return f, nil
}
