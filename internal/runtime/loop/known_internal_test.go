package loop

import (
	"testing"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestWhatIsKnownOfACostIsOfTheBudget also where the whole is not known.
func TestWhatIsKnownOfACostIsOfTheBudget(t *testing.T) {
	known := decimal.RequireFromString("0.5")
	s := &State{Finishes: []Finish{{Spent: &tool.Spent{Known: &known}}, {Spent: &tool.Spent{}}}}
	if _, cost := s.spent(); !cost.Equal(known) {
		t.Errorf("cost %s, want %s", cost, known)
	}
}
