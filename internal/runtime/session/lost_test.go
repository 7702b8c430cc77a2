package session_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

// TestSummaryOfALostEntry adds a Turn with a summary once more, because the journal has lost its entry, which the known
// totals include. Later Turns must begin with the summary, and not also receive the messages that it replaces.
func TestSummaryOfALostEntry(t *testing.T) {
	summarized := answered("c")
	summarized.Compaction = &session.Compaction{Summary: "They asked twice.", First: 3}
	whole, j := &journaltest.Store{}, &journaltest.Store{}
	known := add(t, whole, answered("a"), answered("b"), summarized).Totals
	add(t, j, answered("a"), answered("b"))
	since := session.ExternalState{After: 2, Known: known, Number: 3}
	if _, err := session.Add(t.Context(), "s", summarized, since, journal.Options{Journal: j, Now: now}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(recall(t, whole), recall(t, j)); diff != "" {
		t.Errorf("the conversation after the loss: -want as before, +got:\n%s", diff)
	}
}
