package recordkeeper

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// finishedTurn names a Turn that has finished.
type finishedTurn struct {
	key types.NamespacedName
	// unbound is true if the Turn has a Session and may have ended without an executor. Its Session may then lack it
	// although it has a record.
	unbound bool
}

// endedUnbound reports whether a Turn has a Session and ended without an executor.
func endedUnbound(t *v1alpha1.Turn) bool { return t.Spec.SessionRef != nil && t.EndedWithoutExecutor() }

// remembered holds Turns. It forgets those that a whole round has not found, so that deleted Turns are forgotten.
type remembered struct{ current, last sets.Set[types.UID] }

func newRemembered() remembered { return remembered{sets.Set[types.UID]{}, sets.Set[types.UID]{}} }

// beginRound must be called at the beginning of a round.
func (r *remembered) beginRound() { r.current, r.last = sets.Set[types.UID]{}, r.current }

func (r *remembered) add(uid types.UID) { r.current.Insert(uid) }

// has reports whether a Turn is remembered. If it is, it stays so until the end of the next round.
func (r *remembered) has(uid types.UID) bool {
	if r.last.Has(uid) {
		r.add(uid)
	}
	return r.current.Has(uid)
}

// selection selects finished Turns.
type selection struct {
	selector fields.Selector
	// unbound is true if the Turns have a Session and may have ended without an executor: see finishedTurn.
	unbound bool
}

// finished selects all finished Turns.
var finished = []selection{{finishedAnd(), false}}

// selections select all finished Turns, each with one of the selectors: the Turns that ended while they were bound, the
// others without a Session, and the others with a Session, which may have ended without an executor.
var selections = []selection{
	{finishedAnd(fields.OneTermNotEqualSelector(fieldExecutor, "")), false},
	{finishedAnd(fields.OneTermEqualSelector(fieldExecutor, ""), fields.OneTermEqualSelector(fieldSession, "")), false},
	{finishedAnd(fields.OneTermEqualSelector(fieldExecutor, ""), fields.OneTermNotEqualSelector(fieldSession, "")), true},
}

// The API server selects Turns by these fields.
const fieldCompletion, fieldExecutor, fieldSession = "status.completionTime", "status.executor.name", "spec.sessionRef.name"

// finishedAnd returns a selector for the finished Turns that all of the given selectors select.
func finishedAnd(more ...fields.Selector) fields.Selector {
	return fields.AndSelectors(append(more, fields.OneTermNotEqualSelector(fieldCompletion, ""))...)
}

// Finished adds a hint that a Turn has finished. It never blocks.
func (k *Keeper) Finished(t *v1alpha1.Turn) {
	k.init()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.hints) < maxHints {
		k.hints[t.UID] = finishedTurn{client.ObjectKeyFromObject(t), endedUnbound(t)}
	} else if endedUnbound(t) {
		k.hintLost = true
	}
	select {
	case k.hinted <- struct{}{}:
	default:
	}
}

// Missed notes that Turns may have finished without a hint. The next round finds them.
func (k *Keeper) Missed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hintLost = true
}

// takeHints returns all hints, and removes them.
func (k *Keeper) takeHints() map[types.UID]finishedTurn {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.hints
	k.hints = map[types.UID]finishedTurn{}
	return all
}
