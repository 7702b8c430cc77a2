package executor

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// stuckTurn is a Turn that this executor cannot end or unbind, because the API server rejects every status.
type stuckTurn struct {
	// version is the resource version of the Turn for which the API server rejected the status, or an older one.
	version string
	// unclaimed is true if the Turn was bound by an earlier process, and could not be claimed. An executor must not run
	// such a Turn.
	unclaimed bool
}

// markStuck records that a run has stopped, but can neither end nor unbind its Turn, because the API server rejects
// every status. Usually the Turn is too large for etcd, because somebody has added metadata to it since it was bound.
//
// A stuck Turn needs nothing of this process, so it must not take a slot that other Turns need: until it is changed or
// deleted, the Lease of this executor reports one more slot. When it is changed, a new run tries again.
func (e *Executor) markStuck(t *v1alpha1.Turn, cause error) {
	e.mu.Lock()
	e.stuck[t.UID] = stuckTurn{t.ResourceVersion, e.stuck[t.UID].unclaimed}
	e.mu.Unlock()
	e.logOf(t).Error(cause, "The API server rejects every status of a turn that has stopped; trying again when the turn changes")
	e.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventStatusRejected, "Run", "%s", translate.Note(
		"the turn has stopped, but the API server rejects its status; its journal has what it did. Remove labels, annotations, "+
			"ownerReferences, finalizers or managedFields, or delete the turn: "+cause.Error()))
}

// markUnclaimed is like markStuck, for a Turn that an earlier process left and that cannot be claimed. When it is
// changed, it is handed back.
func (e *Executor) markUnclaimed(t *v1alpha1.Turn, cause error) {
	e.mu.Lock()
	e.stuck[t.UID] = stuckTurn{unclaimed: true}
	e.mu.Unlock()
	e.markStuck(t, cause)
}

// handBackUnclaimed hands back a Turn that this process could not claim, with a new epoch, as a claim has.
func (r *run) handBackUnclaimed(ctx context.Context) {
	_, err := r.persist(ctx, func(t *v1alpha1.Turn) {
		now := r.executor.Now()
		turnstatus.Adopt(t, now)
		turnstatus.Release(t, turnstatus.Run{}, v1alpha1.TurnReasonPending, handedBackBy(r.executor.Name), now)
	})
	if writeerror.IsRejected(err) {
		r.executor.markStuck(r.turn, err)
	}
}

// mayLeaveStuck reports whether a Turn was stuck and has changed since, so that the API server may accept a status. The
// caller must hold the lock.
func (e *Executor) mayLeaveStuck(t *v1alpha1.Turn) bool {
	s, stuck := e.stuck[t.UID]
	if !stuck {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(t.ResourceVersion, s.version)
	return err != nil || order > 0
}

// stuckTurns returns the number of Turns that are stuck.
func (e *Executor) stuckTurns() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.stuck)
}
