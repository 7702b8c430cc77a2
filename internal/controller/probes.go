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

// Probes of endpoints wait for the network, and an endpoint that hangs keeps its worker for as long as a probe may take. A worker that waits
// costs next to nothing, so there are many, and few of them are of one namespace: endpoints that hang delay the others of their namespace,
// and it takes the endpoints of sixteen namespaces to delay those of another.
const (
	probesAtOnce      = 64
	probesOfNamespace = 4
)

// probeTimeout bounds one probe, whatever time-outs its object has. Only the first look at a ToolServer, and one at a server that was
// ready, may take as long as the object allows.
const probeTimeout = 10 * time.Second

// probes are the options of a controller that looks at endpoints.
func probes() controller.Options { return inTurn(probesAtOnce, probesOfNamespace) }

// soonest and latest bound how soon an endpoint that is not ready is looked at again. Secrets are not watched: that would take
// the right to list them.
const (
	soonest = time.Second
	latest  = 30 * time.Second
	// latestNew is latest for an object that is new.
	latestNew = 5 * time.Second
)

// nextLook is when to look again at an endpoint that has just been looked at. One that is not ready is looked at after as long as
// it has been so, which doubles the time from one look to the next; while it is new, Turns wait for it, and it is looked at sooner.
// Within a namespace, objects that are new or were changed go first.
func nextLook(now time.Time, o client.Object, conditions []metav1.Condition, interval time.Duration) ctrl.Result {
	again := ctrl.Result{RequeueAfter: interval, Priority: new(fairqueue.Low)}
	if c := ready(conditions, o.GetGeneration()); c != nil && c.Status != metav1.ConditionTrue {
		most := latest
		if stillNew(now, o, interval) > 0 {
			most = latestNew
		}
		again.RequeueAfter = min(max(soonest, now.Sub(c.LastTransitionTime.Time)), most, interval)
	}
	return again
}

// newAtMost bounds how long a ModelProvider or a ToolServer is new. The Pods of its server may have been created with it, and start
// meanwhile.
const newAtMost = 2 * time.Minute

// newFor is how long after its creation a ModelProvider or a ToolServer is new.
func newFor(interval time.Duration) time.Duration { return min(newAtMost, 2*interval) }

// stillNew is how long an object stays new, 0 or less if it is no more.
func stillNew(now time.Time, o client.Object, interval time.Duration) time.Duration {
	return o.GetCreationTimestamp().Add(newFor(interval)).Sub(now)
}

// isAway reports whether the Ready condition of an object says that its endpoint could not be reached.
func isAway(c *metav1.Condition) bool {
	return c != nil && c.Status != metav1.ConditionTrue && c.Reason == v1alpha1.ReasonEndpointUnreachable
}
