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
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

// changesApart is the least time between two writes of a server's tools: each is written to the Agents that use them, too, and
// a server may change them as often as it likes.
const changesApart = 5 * time.Second

// ToolServerReconciler finds out which tools a server has.
type ToolServerReconciler struct {
	Client  client.Client
	Servers *toolservers.Cache
	Events  events.EventRecorder
	Now     func() time.Time
	// ProbeInterval is the time between two looks at a server that answers.
	ProbeInterval time.Duration

	// queue of the controller, nil before it runs.
	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// SetupWithManager registers the reconciler. A server is looked at when its spec changes, when it says that its tools have
// changed, and at intervals. It must be called before the connections are used.
func (r *ToolServerReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.Servers.OnChange(r.changed)
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.ToolServer{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.queue.Store(&q)
			return nil
		})).
		WithOptions(probes()).
		Complete(r)
}

// changed is told by a connection that the tools of a server are others. It never blocks.
func (r *ToolServerReconciler) changed(key types.NamespacedName) {
	if q := r.queue.Load(); q != nil {
		(*q).Add(reconcile.Request{NamespacedName: key})
	}
}

// Reconcile looks at one server and reports on it.
func (r *ToolServerReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var s v1alpha1.ToolServer
	if err := r.Client.Get(ctx, req.NamespacedName, &s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if wait := r.settling(&s); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	before := s.Status.DeepCopy()
	found, err := r.look(ctx, &s)
	if err != nil {
		return ctrl.Result{}, err
	}
	found = steady(found, s.Status.Conditions, s.Generation)
	found.set(&s.Status.Conditions, v1alpha1.ConditionReady, s.Generation, r.Now())
	s.Status.ObservedGeneration = s.Generation
	again := nextLook(r.Now(), &s, s.Status.Conditions, r.ProbeInterval)
	if equality.Semantic.DeepEqual(before, &s.Status) {
		return again, nil
	}
	err = r.Client.Status().Update(ctx, &s)
	if err == nil {
		announceReady(r.Events, &s, "Discover", before.Conditions, s.Status.Conditions)
	}
	return written(again, err)
}

// settling is how long to leave a server alone whose tools have just changed. A new spec is looked at in any case.
func (r *ToolServerReconciler) settling(s *v1alpha1.ToolServer) time.Duration {
	last := s.Status.LastDiscoveryTime
	if last == nil || s.Status.ObservedGeneration != s.Generation {
		return 0
	}
	return changesApart - min(changesApart, max(0, r.Now().Sub(last.Time)))
}

// look asks a server for its tools, with its Secrets as they are now, and writes down what it has. It returns an error only if
// nobody was asked: the Secrets could not be read, or the process stops.
func (r *ToolServerReconciler) look(ctx context.Context, s *v1alpha1.ToolServer) (finding, error) {
	bounded := ctx
	if c := ready(s.Status.Conditions, s.Generation); c != nil && c.Status != metav1.ConditionTrue {
		// The attempt to connect goes on for as long as the server's connectTimeoutSeconds, and a later look finds what came of it.
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, probeTimeout)
		defer cancel()
	}
	listing, err := r.Servers.Discover(bounded, s)
	if err != nil {
		if ctx.Err() != nil {
			return finding{}, context.Cause(ctx)
		}
		return failedLook(err)
	}
	return finding{holds: true, reason: v1alpha1.ReasonReady, message: discover(s, listing, r.Now())}, nil
}

// failedLook says what a failed look means. Its tools stay in the status: calls of them say why they fail.
func failedLook(err error) (finding, error) {
	if missing, ok := errors.AsType[*secrets.Error](err); ok {
		return unsendable(missing), nil
	}
	if apierrors.IsForbidden(err) {
		// Only those who grant the manager its rights can help, and they look here.
		return finding{reason: v1alpha1.ReasonSecretNotFound, message: err.Error()}, nil
	}
	failure, ok := errors.AsType[*mcp.Error](err)
	if !ok {
		return finding{}, fmt.Errorf("failed to look at the tool server: %w", err)
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
