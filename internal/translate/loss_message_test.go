package translate_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/translate"
)

// TestALossSaysFromWhereTheTurnGoesOn: a journal that is only shorter than known is used as far as it reaches.
func TestALossSaysFromWhereTheTurnGoesOn(t *testing.T) {
	for name, tc := range map[string]struct {
		loss translate.Loss
		want string
	}{
		"nothing is left": {
			translate.Loss{Facts: "it is gone"},
			"the journal of the turn was lost: it is gone. The turn starts over, and its status does not count what it used before",
		},
		"some entries are left": {
			translate.Loss{Facts: "it is shorter", Entries: 7},
			"the journal of the turn was lost: it is shorter. The turn goes on after entry 7, the last that is left, and its status does not count what it used after that",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.loss.StartOver(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
