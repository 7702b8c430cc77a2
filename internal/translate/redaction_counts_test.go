package translate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestRedactionsAreBounded checks that only the first rules are listed if their names are too long together.
func TestRedactionsAreBounded(t *testing.T) {
	r := &turn.Result{}
	for i := range 16 {
		path := fmt.Sprintf("$.%d%s", i, strings.Repeat("\U0001F680", 250))
		r.Redactions = append(r.Redactions, turn.Redaction{Rule: path, Matches: 1 << 60})
	}
	got := Redactions(r)
	text, err := json.Marshal(got)
	if err != nil || len(text) > maxRedactionsBytes || len(got) != 3 || got[0].Rule != r.Redactions[0].Rule {
		t.Errorf("%d counts in %d bytes, %v; want the first 3", len(got), len(text), err)
	}
	r.Redactions = r.Redactions[:0]
	for i := range 16 {
		r.Redactions = append(r.Redactions, turn.Redaction{Rule: fmt.Sprintf("rule-%d", i), Matches: 3})
	}
	if got := Redactions(r); len(got) != 16 || got[15].Matches != 3 {
		t.Errorf("%d counts, want all 16", len(got))
	}
}
