package controller

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairqueue"
)

// An endpoint that hangs blocks a worker for as long as a probe may take. A waiting worker costs almost nothing, so
// there are many workers, and only a few may serve one namespace. Endpoints that hang therefore delay only their own
// namespace, unless the endpoints of sixteen namespaces hang at the same time.
const (
	probeWorkers            = 64
	probeWorkersOfNamespace = 4
)

// probeTimeout limits one probe, whatever timeouts its object has. Only the first check of a ToolServer after a change
// of its spec, and a check of a ToolServer that was ready, may take as long as the object allows.
const probeTimeout = 10 * time.Second

// probeOptions returns the options of a controller that probes endpoints.
func probeOptions() controller.Options { return fairOptions(probeWorkers, probeWorkersOfNamespace) }

// minProbeDelay and maxProbeDelay limit the time until the next probe of an endpoint that is not ready. Polling is
// needed because Secrets are not watched: that would require the permission to list them.
const (
	minProbeDelay = time.Second
	maxProbeDelay = 30 * time.Second
	// maxProbeDelayNew replaces maxProbeDelay for a new object.
	maxProbeDelayNew = 5 * time.Second
)

// nextProbe returns when to probe an endpoint again. If the endpoint is not ready, the delay is as long as it has not
// been ready, so the delay doubles with each probe. While the object is new, Turns wait for its endpoint, so the delay
// is shorter. Within a namespace, new and changed objects are probed first.
func nextProbe(now, server time.Time, o client.Object, conditions []metav1.Condition, interval time.Duration) ctrl.Result {
	again := ctrl.Result{RequeueAfter: interval, Priority: new(fairqueue.Low)}
	if c := ready(conditions, o.GetGeneration()); c != nil && c.Status != metav1.ConditionTrue {
		most := maxProbeDelay
		if newFor(o, now, server, interval) > 0 {
			most = maxProbeDelayNew
		}
		again.RequeueAfter = min(max(minProbeDelay, now.Sub(c.LastTransitionTime.Time)), most, interval)
	}
	return again
}

// maxNewAge limits how long a ModelProvider or a ToolServer counts as new. The Pods of its server may have been
// created at the same time and may still be starting.
const maxNewAge = 2 * time.Minute

// newAge returns how long after its creation a ModelProvider or a ToolServer counts as new.
func newAge(interval time.Duration) time.Duration { return min(maxNewAge, 2*interval) }

// newFor returns how long an object still counts as new; 0 or less if it no longer does.
func newFor(o client.Object, now, server time.Time, interval time.Duration) time.Duration {
	return newAge(interval) - age(o, now, server)
}

// isUnreachable reports whether the Ready condition of an object says that its endpoint could not be reached.
func isUnreachable(c *metav1.Condition) bool {
	return c != nil && c.Status != metav1.ConditionTrue && c.Reason == v1alpha1.ReasonEndpointUnreachable
}
