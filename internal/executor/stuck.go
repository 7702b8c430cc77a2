package executor

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// stuckTurn is a Turn that is bound to this executor, and that the executor neither runs nor can end or unbind, because
// the API server rejects every status. Usually the Turn is too large for etcd, because a user has added metadata to
// it since it was bound.
//
// A stuck Turn needs nothing of this process, so it must not take a slot that other Turns need: until it is changed or
// deleted, the Lease of this executor offers one more slot. When it is changed, it is handed back, and the controller
// binds it again when there is a slot. It is also tried again every stuckRetry, because the cause may not be in the
// Turn: an admission policy for its status may be corrected, and an upgrade may bring the CRD up to date.
type stuckTurn struct {
	key   client.ObjectKey
	epoch int64
	// version is the resource version for which the API server rejected the status, or an older one.
	version string
	// known is what the run knows about the journal.
	known turnstatus.Run
	// unclaimed is true if an earlier process ran the Turn, and this process could not claim it.
	unclaimed bool
	// trying is true while an attempt to hand the Turn back is running. It may take long, because it is repeated while
	// the API server does not answer.
	trying bool
	// next is a newer state of the Turn that the watch has shown meanwhile, or nil.
	next *v1alpha1.Turn
}

// stuckRetry is the time between two attempts to hand back a stuck Turn that has not changed.
const stuckRetry = 5 * time.Minute

// markStuck records that the run has stopped and that its Turn is stuck. cause is the last error of the API server. It
// does nothing if the Turn is gone or bound elsewhere by now.
func (r *run) markStuck(cause error) {
	e, uid := r.executor, r.turn.UID
	known := r.facts()
	e.mu.Lock()
	running := e.runs[uid]
	mine := running == r && !r.gone || running == nil && e.done[uid].epoch == r.epoch
	if mine {
		e.stuck[uid] = stuckTurn{key: client.ObjectKeyFromObject(r.turn), epoch: r.epoch, version: r.turn.ResourceVersion, known: known}
	}
	e.mu.Unlock()
	if mine {
		e.reportStuck(r.turn, cause)
	}
}

// markUnclaimed records that a Turn that an earlier process left is stuck, because it cannot be claimed.
func (e *Executor) markUnclaimed(t *v1alpha1.Turn, cause error) {
	e.mu.Lock()
	mine := e.runs[t.UID] == nil && e.done[t.UID].epoch == t.Epoch()
	if mine {
		e.stuck[t.UID] = stuckTurn{key: client.ObjectKeyFromObject(t), epoch: t.Epoch(), version: t.ResourceVersion, unclaimed: true}
	}
	e.mu.Unlock()
	if mine {
		e.reportStuck(t, cause)
	}
}

// reportStuck tells users and administrators about a Turn that is stuck.
func (e *Executor) reportStuck(t *v1alpha1.Turn, cause error) {
	e.logOf(t).Error(cause, "The API server rejects every status of a turn that has stopped; "+
		"trying again when the turn changes, and regularly", "every", stuckRetry)
	e.Events.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.EventStatusRejected, "Run", "%s",
		fmt.Sprintf("the turn has stopped, but the API server rejects its status; its journal has what it did. %s: %s",
			turnstatus.RejectionRemedy(cause), cause))
}

// hasChanged reports whether a stuck Turn has changed since it was recorded, so that the API server may accept a
// status. The caller must hold the lock of the executor.
func (e *Executor) hasChanged(t *v1alpha1.Turn) bool {
	s, stuck := e.stuck[t.UID]
	if !stuck || s.epoch != t.Epoch() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(t.ResourceVersion, s.version)
	return err != nil || order > 0
}

// freeStuck tries to hand back a stuck Turn, in the background. If the API server still rejects the status,
// the Turn stays stuck. The caller must hold the lock of the executor.
func (e *Executor) freeStuck(work context.Context, t *v1alpha1.Turn) {
	if e.stopped {
		return // releasing the Lease, which is next, frees the Turn
	}
	s := e.stuck[t.UID]
	if s.trying {
		if e.hasChanged(t) {
			s.next = t
			e.stuck[t.UID] = s
		}
		return
	}
	s.version, s.trying, s.next = t.ResourceVersion, true, nil
	e.stuck[t.UID] = s
	e.handBacks.Go(func() {
		defer e.endAttempt(work, t.UID, s.epoch)
		_, _ = e.persist(work, t, s.epoch, func(t *v1alpha1.Turn) { // the watch shows a success, and persist logs a failure
			if s.unclaimed {
				turnstatus.Adopt(t, e.Now())
			}
			turnstatus.Release(t, s.known, v1alpha1.TurnReasonPending, handedBackBy(e.Name), e.Now())
		})
	})
}

// endAttempt notes that an attempt to hand back a stuck Turn is over. If the Turn has changed meanwhile, the next
// attempt begins.
func (e *Executor) endAttempt(work context.Context, uid types.UID, epoch int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, isStuck := e.stuck[uid]
	if !isStuck || s.epoch != epoch {
		return
	}
	s.trying = false
	e.stuck[uid] = s
	if s.next != nil {
		e.freeStuck(work, s.next)
	}
}

// retryStuck tries to hand back all stuck Turns every stuckRetry, until ctx ends.
func (e *Executor) retryStuck(ctx, work context.Context) {
	ticker := time.NewTicker(stuckRetry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		e.mu.Lock()
		stuck := maps.Clone(e.stuck)
		e.mu.Unlock()
		for uid, s := range stuck {
			var t v1alpha1.Turn
			if err := e.Client.Get(ctx, s.key, &t); err != nil || t.UID != uid || t.BoundTo() != e.Name {
				continue // the watch shows what has become of it
			}
			e.mu.Lock()
			if now, isStuck := e.stuck[uid]; isStuck && now.epoch == t.Epoch() && e.runs[uid] == nil {
				e.freeStuck(work, &t)
			}
			e.mu.Unlock()
		}
	}
}

// stuckTurns returns the number of Turns that are stuck.
func (e *Executor) stuckTurns() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.stuck)
}
