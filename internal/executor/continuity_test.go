package executor

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/store"
)

func TestWhatARunDoesAboutTheJournalThatItFinds(t *testing.T) {
	a, b, failedOver := store.Identity{ID: "a", Incarnation: "1"}, store.Identity{ID: "b", Incarnation: "1"}, store.Identity{ID: "a", Incarnation: "2"}
	for name, tc := range map[string]struct {
		reason string
		c      continuity
		loss   string
		want   verdict
		says   string
	}{
		"first run": {
			reason: "nothing was before it",
			c:      continuity{first: true, recorded: a, own: a, effects: true}, want: goOn,
		},
		"first run, bound by an older version": {
			reason: "nothing was before it, and the version does not record stores",
			c:      continuity{first: true, own: a, effects: true}, want: goOn,
		},
		"first run after a failover": {
			reason: "nothing was before it that could be lost",
			c:      continuity{first: true, recorded: a, own: failedOver, effects: true}, want: goOn,
		},
		"first run that is tried again after entries went missing": {
			reason: "this process knows how many there were",
			c:      continuity{first: true, recorded: a, own: a, known: 3, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: giveUp, says: `store "a" had at least 3 entries of it and has no entry`,
		},
		"the journal is whole": {
			reason: "it has what the status knows, and more",
			c:      continuity{recorded: a, own: a, found: finding{entries: 7}, known: 5, effects: true}, want: goOn,
		},
		"killed before the first append": {
			reason: "a store that keeps what it has confirmed and has nothing proves that nothing was begun",
			c:      continuity{recorded: a, own: a, effects: true}, want: goOn,
		},
		"a new emptyDir": {
			reason: "the store is another one",
			c:      continuity{recorded: a, own: b, effects: true},
			loss:   v1alpha1.TurnReasonOtherStore, want: giveUp, says: `it was in store "a", and executor "me" uses store "b", which has no entry of it`,
		},
		"a new emptyDir, with tools that only read": {
			reason: "a repetition does no harm",
			c:      continuity{recorded: a, own: b},
			loss:   v1alpha1.TurnReasonOtherStore, want: startOver,
		},
		"a new emptyDir, and the spec says Rerun": {
			reason: "that was asked for",
			c:      continuity{recorded: a, own: b, effects: true, rerun: true},
			loss:   v1alpha1.TurnReasonOtherStore, want: startOver,
		},
		"a new emptyDir, of a Turn that is to end": {
			reason: "there is nothing to start over for",
			c:      continuity{recorded: a, own: b, rerun: true, ending: true},
			loss:   v1alpha1.TurnReasonOtherStore, want: giveUp,
		},
		"another store that has entries": {
			reason: "nobody knows whether they are all",
			c:      continuity{recorded: a, own: b, found: finding{entries: 9}, known: 5, effects: true},
			loss:   v1alpha1.TurnReasonOtherStore, want: giveUp, says: "which has 9 entries of it",
		},
		"an older copy of the file": {
			reason: "it has fewer entries than the status knows",
			c:      continuity{recorded: a, own: a, found: finding{entries: 1}, known: 5, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: giveUp, says: `store "a" had at least 5 entries of it and has 1 entry: an older copy of the store was restored`,
		},
		"an older copy that is empty": {
			reason: "it has fewer entries than the status knows",
			c:      continuity{recorded: a, own: a, known: 1, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: giveUp,
		},
		"a failover that lost everything": {
			reason: "an empty journal proves nothing in a store that may have lost confirmed appends",
			c:      continuity{recorded: a, own: failedOver, effects: true},
			loss:   v1alpha1.TurnReasonJournalMissing, want: giveUp, says: `store "a" has no entry of it and may have lost them: an older copy of the store was restored, or it failed over (incarnation "2", before "1")`,
		},
		"a store that may have lost entries, and lost none that is known": {
			reason: "a call may have been made after the last entry that is left",
			c:      continuity{recorded: a, own: failedOver, found: finding{entries: 5}, known: 4, effects: true},
			loss:   v1alpha1.TurnReasonEntriesUncertain, want: giveUp, says: `store "a" has 5 entries of it and may have lost later ones`,
		},
		"a store that may have lost entries, with tools that only read": {
			reason: "a repetition does no harm",
			c:      continuity{recorded: a, own: failedOver, found: finding{entries: 4}, known: 4},
			loss:   v1alpha1.TurnReasonEntriesUncertain, want: startOver,
		},
		"a store that may have lost entries, and all that there were are there": {
			reason: "the run before handed the Turn back, and said how many there were",
			c:      continuity{exact: true, recorded: a, own: failedOver, found: finding{entries: 4}, known: 4, effects: true}, want: goOn,
		},
		"a store that has lost entries of a Turn that was handed back": {
			reason: "the run before said how many there were",
			c:      continuity{exact: true, recorded: a, own: failedOver, found: finding{entries: 3}, known: 4, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: giveUp,
		},
		"a store that may have lost entries, and has the end of the Turn": {
			reason: "nothing follows that",
			c:      continuity{recorded: a, own: failedOver, found: finding{entries: 9, ended: true}, known: 4, effects: true}, want: goOn,
		},
		"handed back before anything was begun, and another store": {
			reason: "there is nothing to lose",
			c:      continuity{first: true, exact: true, recorded: a, own: b, effects: true}, want: goOn,
		},
		"a failover that lost a part that is known": {
			reason: "the status knows of more",
			c:      continuity{recorded: a, own: failedOver, found: finding{entries: 3}, known: 4, effects: true},
			loss:   v1alpha1.TurnReasonEntriesMissing, want: giveUp,
		},
		"bound before by an older version, with entries": {
			reason: "its journal is there",
			c:      continuity{own: a, found: finding{entries: 4}, effects: true}, want: goOn,
		},
		"bound before by an older version, without entries": {
			reason: "nothing proves that it is not lost",
			c:      continuity{own: a, effects: true},
			loss:   v1alpha1.TurnReasonJournalMissing, want: giveUp, says: "the version of Capstan that bound the turn before did not record its store",
		},
		"bound before by an older version, without entries and without tools": {
			reason: "a repetition does no harm",
			c:      continuity{own: a},
			loss:   v1alpha1.TurnReasonJournalMissing, want: startOver,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.c.judge(); got != tc.want {
				t.Errorf("judge = %q, want %q: %s", got, tc.want, tc.reason)
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
