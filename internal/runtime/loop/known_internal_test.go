package loop

import (
	"testing"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestKnownPartOfACostCounts checks that the known part of a cost counts even if the total is unknown.
func TestKnownPartOfACostCounts(t *testing.T) {
	known := decimal.RequireFromString("0.5")
	s := &State{CallResults: []CallResult{{Spent: &tool.Spent{Known: &known}}, {Spent: &tool.Spent{}}}}
	if _, cost := s.spent(); !cost.Equal(known) {
		t.Errorf("cost %s, want %s", cost, known)
	}
}
