package translate_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TestSpentOf checks which amounts of a Budget's status count after a loss of the store. Other clients may have written
// the status.
func TestSpentOf(t *testing.T) {
	start := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	p, err := budget.PeriodAt(budget.Month, time.UTC, start.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for cost, want := range map[string]string{
		"0": "0", "12.50": "12.5", "12345678901234567890.5": "12345678901234567890.5",
		"": "0", "-1": "0", "1e10000": "0", "1e3": "0", "x": "0", strings.Repeat("9", 64): "0",
	} {
		b := &v1alpha1.Budget{Status: v1alpha1.BudgetStatus{
			Spent:           &v1alpha1.BudgetSpent{Cost: cost},
			PeriodStartTime: new(metav1.NewTime(p.Start)), ResetTime: new(metav1.NewTime(p.End)),
		}}
		if got, known := translate.SpentOf(b, p); !known || got.Cost.String() != want {
			t.Errorf("cost %q counts as %s (known: %t), want %s", cost, got.Cost, known, want)
		}
		b.Status.ResetTime = new(metav1.NewTime(p.End.Add(time.Hour)))
		if got, known := translate.SpentOf(b, p); known {
			t.Errorf("a status of another period counts: %+v", got)
		}
	}
}
