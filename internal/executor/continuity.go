package executor

import (
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/store"
)

// continuity has all facts that decide whether a run may continue from the journal that it has found.
type continuity struct {
	// first is true if no earlier run can have begun anything. exact is true if known is the exact number of entries
	// that the earlier runs have written.
	first, exact bool
	// recorded is the store of the earlier runs, as the Turn's binding names it. Its ID is empty if the binding names
	// no store. own is the store of this run.
	recorded, own store.Identity
	// found describes the journal. known is the minimum number of entries that the journal must have, or 0 if this
	// number is unknown.
	found finding
	known int64
	// effects is true if a tool that is not ReadOnly may have been called. rerun is true if the Turn's spec allows the
	// Turn to start over nevertheless.
	effects, rerun bool
	// ending is true if the Turn only has to end, because it was cancelled or its time is over.
	ending bool
}

// finding describes the journal that a run has found: its number of entries, and whether one of them is the end of
// the Turn.
type finding struct {
	entries int64
	ended   bool
}

// verdict is the decision about a run.
type verdict string

const (
	// continueRun means that the journal is complete.
	continueRun verdict = "continue"
	// startOver means that the journal is lost, and that a repetition is harmless or was requested.
	startOver verdict = "start over"
	// endTurn means that the journal is lost, and that the Turn ends with the data of its status.
	endTurn verdict = "end"
)

// verdict returns the decision.
func (c continuity) verdict() verdict {
	switch {
	case c.loss() == "":
		return continueRun
	case c.ending, c.effects && !c.rerun:
		return endTurn
	}
	return startOver
}

// loss returns the reason of the condition JournalLost, or an empty string if the journal is complete. Three facts
// decide: a run appends to the journal before it has any other effect; a store that keeps its incarnation keeps all
// entries that it has confirmed; and no entry of a run follows the end of its Turn.
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
	case c.recorded.ID == "": // an older version bound the Turn; its journal exists
		return ""
	}
	return v1alpha1.TurnReasonEntriesUncertain
}

// facts returns a message that names the store that had the journal and the store of this run.
func (c continuity) facts(executor string) string {
	switch c.loss() {
	case v1alpha1.TurnReasonOtherStore:
		return fmt.Sprintf("it was in store %q, and executor %q uses store %q, which has %s of it: the store was replaced, "+
			"or two installations of Capstan watch the namespace", c.recorded.ID, executor, c.own.ID, entries(c.found.entries))
	case v1alpha1.TurnReasonEntriesMissing:
		return fmt.Sprintf("store %q had at least %s of it and has %s: an older copy of the store was restored, "+
			"or a replica without the newest entries took over",
			c.own.ID, entries(c.known), entries(c.found.entries))
	}
	if c.recorded.ID == "" {
		return fmt.Sprintf("store %q of executor %q has no entry of it, and the version of Capstan that bound "+
			"the turn before did not record its store", c.own.ID, executor)
	}
	lost := "may have lost later ones"
	if c.found.entries == 0 {
		lost = "may have lost them"
	}
	return fmt.Sprintf("store %q has %s of it and %s: an older copy of the store was restored, or it failed "+
		"over (incarnation %q, before %q)",
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
