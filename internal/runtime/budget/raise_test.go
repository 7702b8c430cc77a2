package budget_test

import (
	"math"
	"testing"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
)

// TestRaiseIsBounded checks that amounts that a person has written into a status cannot make a later sum overflow, and
// that they count as lost only once.
func TestRaiseIsBounded(t *testing.T) {
	huge := budget.Account{Turns: math.MaxInt64, Tokens: math.MaxInt64, Unpriced: math.MaxInt64, Cost: decimal.NewFromInt(7)}
	var a budget.Account
	if !a.Lacks(huge) {
		t.Error("an empty account lacks nothing")
	}
	a.Raise(huge)
	if a.Turns+1 < 0 || a.Tokens+1 < 0 || a.Unpriced+1 < 0 || a.Lacks(huge) {
		t.Errorf("the account is %+v, want one whose amounts can still grow, and that lacks nothing", a)
	}
	a.Raise(budget.Account{Turns: 1, Cost: decimal.NewFromInt(8)})
	if !a.Cost.Equal(decimal.NewFromInt(8)) || a.Turns == 1 {
		t.Errorf("the account is %+v, want the higher of each amount", a)
	}
}
