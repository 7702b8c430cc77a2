package executor

import (
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/store"
)

// continuity is all that decides whether a run may go on from the journal that it has found.
type continuity struct {
	// first is true where no other run can have begun anything, and exact where known is all that the runs before have written.
	first, exact bool
	// recorded is the store of the runs before, as the binding has it; its ID is empty where the binding does not say. own is the
	// store of this run.
	recorded, own store.Identity
	// found is what the journal has, and known the least number of entries that it must have; 0 where that is not known.
	found finding
	known int64
	// effects is true where a tool that is not ReadOnly may have been called, and rerun where the Turn's spec lets it start over
	// all the same.
	effects, rerun bool
	// ending is true for a Turn that only has to end, because it was cancelled or its time is over.
	ending bool
}

// finding is what a run has found of a journal: how many entries there are, and whether the end of the Turn is one of them.
type finding struct {
	entries int64
	ended   bool
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

// judge returns what to do.
func (c continuity) judge() verdict {
	switch {
	case c.loss() == "":
		return goOn
	case c.ending, c.effects && !c.rerun:
		return giveUp
	}
	return startOver
}

// loss returns the reason of the condition JournalLost, or an empty string if the journal is whole. A run appends before its first
// consequence, and a store of the same incarnation has all that it has confirmed. Nothing follows the end of a Turn.
func (c continuity) loss() string {
	switch {
	case c.found.ended, c.first && c.known == 0:
		return ""
	case c.recorded.ID != "" && c.recorded.ID != c.own.ID:
		return v1alpha1.TurnReasonOtherStore
	case c.found.entries < c.known:
		return v1alpha1.TurnReasonEntriesMissing
	case c.first, c.exact, c.recorded == c.own:
		return ""
	case c.found.entries == 0:
		return v1alpha1.TurnReasonJournalMissing
	case c.recorded.ID == "": // an older version has bound the Turn; its journal is there
		return ""
	}
	return v1alpha1.TurnReasonEntriesUncertain
}

// facts say which store had the journal of a Turn and which one is there, for people.
func (c continuity) facts(executor string) string {
	switch c.loss() {
	case v1alpha1.TurnReasonOtherStore:
		return fmt.Sprintf("it was in store %q, and executor %q uses store %q, which has %s of it", c.recorded.ID, executor, c.own.ID, entries(c.found.entries))
	case v1alpha1.TurnReasonEntriesMissing:
		return fmt.Sprintf("store %q had at least %s of it and has %s: an older copy of the store was restored, or a replica without the newest entries took over",
			c.own.ID, entries(c.known), entries(c.found.entries))
	}
	if c.recorded.ID == "" {
		return fmt.Sprintf("store %q of executor %q has no entry of it, and the version of Capstan that bound the turn before did not record its store", c.own.ID, executor)
	}
	lost := "may have lost later ones"
	if c.found.entries == 0 {
		lost = "may have lost them"
	}
	return fmt.Sprintf("store %q has %s of it and %s: an older copy of the store was restored, or it failed over (incarnation %q, before %q)",
		c.own.ID, entries(c.found.entries), lost, c.own.Incarnation, c.recorded.Incarnation)
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
