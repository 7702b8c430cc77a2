package executor

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/store"
)

func TestContinuityVerdict(t *testing.T) {
	a, b, failedOver := store.Identity{ID: "a", Incarnation: "1"}, store.Identity{ID: "b", Incarnation: "1"},
		store.Identity{ID: "a", Incarnation: "2"}
	for name, tc := range map[string]struct {
		reason string
		c      continuity
		loss   string
		want   verdict
		says   string
	}{
		"first run": {
			reason: "there was no earlier run",
			c:      continuity{first: true, recorded: a, own: a, effects: true}, want: continueRun,
		},
		"first run, bound by an older version": {
			reason: "there was no earlier run, and that version does not record stores",
			c:      continuity{first: true, own: a, effects: true}, want: continueRun,
		},
		"first run after a failover": {
			reason: "no entries existed that could be lost",
			c:      continuity{first: true, recorded: a, own: failedOver, effects: true}, want: continueRun,
		},
		"first run that is tried again after entries went missing": {
			reason: "an earlier attempt of this run, in this process, appended 3 entries",
			c:      continuity{first: true, recorded: a, own: a, known: 3, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: endTurn, says: `store "a" had at least 3 entries of it and has no entry`,
		},
		"the journal is complete": {
			reason: "it has at least the entries that the status knows",
			c:      continuity{recorded: a, own: a, found: finding{entries: 7}, known: 5, effects: true}, want: continueRun,
		},
		"killed before the first append": {
			reason: "an empty journal in a store that keeps confirmed entries proves that no run has begun anything",
			c:      continuity{recorded: a, own: a, effects: true}, want: continueRun,
		},
		"a new emptyDir": {
			reason: "the store is another one",
			c:      continuity{recorded: a, own: b, effects: true},
			loss:   v1alpha1.TurnReasonOtherStore, want: endTurn,
			says: `it was in store "a", and executor "me" uses store "b", which has no entry of it`,
		},
		"a new emptyDir, with tools that only read": {
			reason: "a repetition is harmless",
			c:      continuity{recorded: a, own: b},
			loss:   v1alpha1.TurnReasonOtherStore, want: startOver,
		},
		"a new emptyDir, and the spec says Rerun": {
			reason: "the spec allows it",
			c:      continuity{recorded: a, own: b, effects: true, rerun: true},
			loss:   v1alpha1.TurnReasonOtherStore, want: startOver,
		},
		"a new emptyDir, and the Turn only has to end": {
			reason: "the Turn does not need to start over",
			c:      continuity{recorded: a, own: b, rerun: true, ending: true},
			loss:   v1alpha1.TurnReasonOtherStore, want: endTurn,
		},
		"another store that has entries": {
			reason: "this store may lack entries that only store a has",
			c:      continuity{recorded: a, own: b, found: finding{entries: 9}, known: 5, effects: true},
			loss:   v1alpha1.TurnReasonOtherStore, want: endTurn, says: "which has 9 entries of it",
		},
		"an older copy of the file": {
			reason: "it has fewer entries than the status knows",
			c:      continuity{recorded: a, own: a, found: finding{entries: 1}, known: 5, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: endTurn,
			says: `store "a" had at least 5 entries of it and has 1 entry: an older copy of the store was restored`,
		},
		"an older copy that is empty": {
			reason: "it has fewer entries than the status knows",
			c:      continuity{recorded: a, own: a, known: 1, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: endTurn,
		},
		"a failover that lost everything": {
			reason: "an empty journal proves nothing in a store that may have lost confirmed appends",
			c:      continuity{recorded: a, own: failedOver, effects: true},
			loss:   v1alpha1.TurnReasonJournalMissing, want: endTurn,
			says: `store "a" has no entry of it and may have lost them: an older copy of the store was ` +
				`restored, or it failed over (incarnation "2", before "1")`,
		},
		"a store that may have lost entries, but has all that are known": {
			reason: "a call may have been made after the last entry that is left",
			c:      continuity{recorded: a, own: failedOver, found: finding{entries: 5}, known: 4, effects: true},
			loss:   v1alpha1.TurnReasonEntriesUncertain, want: endTurn, says: `store "a" has 5 entries of it and may have lost later ones`,
		},
		"a store that may have lost entries, with tools that only read": {
			reason: "a repetition is harmless",
			c:      continuity{recorded: a, own: failedOver, found: finding{entries: 4}, known: 4},
			loss:   v1alpha1.TurnReasonEntriesUncertain, want: startOver,
		},
		"a store that may have lost entries, but has all of them": {
			reason: "the run that handed the Turn back recorded the exact number of entries, and all are there",
			c:      continuity{exact: true, recorded: a, own: failedOver, found: finding{entries: 4}, known: 4, effects: true},
			want:   continueRun,
		},
		"a store that has lost entries of a Turn that was handed back": {
			reason: "the run that handed the Turn back recorded the exact number of entries, and one is missing",
			c:      continuity{exact: true, recorded: a, own: failedOver, found: finding{entries: 3}, known: 4, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: endTurn,
		},
		"a store that may have lost entries, and has the end of the Turn": {
			reason: "no entry follows the end",
			c:      continuity{recorded: a, own: failedOver, found: finding{entries: 9, ended: true}, known: 4, effects: true},
			want:   continueRun,
		},
		"handed back before it began, and another store": {
			reason: "there are no entries to lose",
			c:      continuity{first: true, exact: true, recorded: a, own: b, effects: true}, want: continueRun,
		},
		"a failover that lost entries which the status had counted": {
			reason: "the status says that there were more entries",
			c:      continuity{recorded: a, own: failedOver, found: finding{entries: 3}, known: 4, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: endTurn,
		},
		"bound before by an older version, with entries": {
			reason: "its journal exists",
			c:      continuity{own: a, found: finding{entries: 4}, effects: true}, want: continueRun,
		},
		"bound before by an older version, without entries": {
			reason: "it may be lost",
			c:      continuity{own: a, effects: true},
			loss:   v1alpha1.TurnReasonJournalMissing, want: endTurn,
			says: "the version of Capstan that bound the turn before did not record its store",
		},
		"bound before by an older version, without entries and without tools": {
			reason: "a repetition is harmless",
			c:      continuity{own: a},
			loss:   v1alpha1.TurnReasonJournalMissing, want: startOver,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.c.verdict(); got != tc.want {
				t.Errorf("verdict = %q, want %q: %s", got, tc.want, tc.reason)
			}
			if got := tc.c.loss(); got != tc.loss {
				t.Errorf("loss = %q, want %q: %s", got, tc.loss, tc.reason)
			}
			if got := tc.c.facts("me"); tc.loss != "" && !strings.Contains(got, tc.says) {
				t.Errorf("facts = %q, want %q in them", got, tc.says)
			}
		})
	}
}
