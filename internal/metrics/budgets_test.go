package metrics

import (
	"fmt"
	"testing"
)

// TestBudgetsOfAllNamespacesAreExported checks that a namespace with many full limits does not hide those of others,
// and that the fullest limits come first.
func TestBudgetsOfAllNamespacesAreExported(t *testing.T) {
	all := []BudgetUse{
		{Namespace: "z", Budget: "empty", Resource: "tokens", Spent: 1, Limit: 100},
		{Namespace: "z", Budget: "half", Resource: "tokens", Spent: 50, Limit: 100},
		{Namespace: "y", Budget: "paused", Resource: "turns"},
	}
	for i := range 2 * maxBudgets {
		all = append(all, BudgetUse{Namespace: "a", Budget: fmt.Sprintf("full-%03d", i), Resource: "tokens", Spent: 100, Limit: 100})
	}
	got := exported(all)
	if len(got) != maxBudgets {
		t.Fatalf("%d limits are exported, want %d", len(got), maxBudgets)
	}
	for i, want := range []string{"a/full-000", "y/paused", "z/half", "a/full-001", "z/empty", "a/full-002"} {
		if name := got[i].Namespace + "/" + got[i].Budget; name != want {
			t.Errorf("limit %d is %s, want %s", i, name, want)
		}
	}
}
