package turnstatus_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// TestStartOverMessageNamesTheLastEntry proves that a journal with missing entries is used up to its last entry.
func TestStartOverMessageNamesTheLastEntry(t *testing.T) {
	for name, tc := range map[string]struct {
		loss turnstatus.Loss
		want string
	}{
		"nothing is left": {
			turnstatus.Loss{Facts: "it is gone"},
			"the journal of the turn was lost: it is gone. The turn starts over, and its status does not count its earlier usage",
		},
		"some entries are left": {
			turnstatus.Loss{Facts: "it is shorter", Entries: 7},
			"the journal of the turn was lost: it is shorter. The turn continues after entry 7, the last one " +
				"left, and its status does not count its usage after that entry",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.loss.StartOver(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
