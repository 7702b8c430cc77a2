package executor

import (
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/store"
)

// continuity is all that decides whether a run may go on from the journal that it has found.
type continuity struct {
	// first is true for the first binding of a Turn: no other run can have begun anything.
	first bool
	// recorded is the store of the runs before, as the binding has it; its ID is empty where the binding does not say. own is the
	// store of this run.
	recorded, own store.Identity
	// found is the number of entries that the journal has, and known the least that it must have; 0 where that is not known.
	found, known int64
	// effects is true where a tool that is not ReadOnly may have been called, and rerun where the Turn's spec lets it start over
	// all the same.
	effects, rerun bool
	// ending is true for a Turn that only has to end, because it was cancelled or its time is over.
	ending bool
}

// verdict says what a run does.
type verdict string

const (
	// goOn: the journal is whole.
	goOn verdict = "go on"
	// startOver: the journal is lost, and a repetition does no harm or was asked for.
	startOver verdict = "start over"
	// giveUp: the journal is lost, and the Turn ends with what its status says.
	giveUp verdict = "give up"
)

// judge returns what to do. A run appends before its first consequence, and a store keeps what it has confirmed: so an empty
// journal in the same store and incarnation proves that nothing was begun.
func (c continuity) judge() verdict {
	switch {
	case c.loss() == "":
		return goOn
	case c.ending, c.effects && !c.rerun:
		return giveUp
	}
	return startOver
}

// loss returns the reason of the condition JournalLost, or an empty string if the journal is whole as far as is known.
func (c continuity) loss() string {
	switch {
	case c.recorded.ID != "" && c.recorded.ID != c.own.ID:
		return v1alpha1.TurnReasonOtherStore
	case c.found < c.known:
		return v1alpha1.TurnReasonEntriesMissing
	case c.found > 0, c.first:
		return ""
	case c.recorded != c.own: // it was not recorded, or has failed over since
		return v1alpha1.TurnReasonJournalMissing
	}
	return ""
}

// facts say which store had the journal of a Turn and which one is there, for people.
func (c continuity) facts(executor string) string {
	switch c.loss() {
	case v1alpha1.TurnReasonOtherStore:
		return fmt.Sprintf("it was in store %q, and executor %q uses store %q, which has %s of it", c.recorded.ID, executor, c.own.ID, entries(c.found))
	case v1alpha1.TurnReasonEntriesMissing:
		return fmt.Sprintf("store %q had at least %s of it and has %s: an older copy of the store was restored, or a replica without the newest entries took over",
			c.own.ID, entries(c.known), entries(c.found))
	}
	if c.recorded.ID == "" {
		return fmt.Sprintf("store %q of executor %q has no entry of it, and the version of Capstan that bound the turn before did not record its store", c.own.ID, executor)
	}
	return fmt.Sprintf("store %q has no entry of it since it failed over (incarnation %q, before %q)", c.own.ID, c.own.Incarnation, c.recorded.Incarnation)
}

func entries(n int64) string {
	switch n {
	case 0:
		return "no entry"
	case 1:
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}
