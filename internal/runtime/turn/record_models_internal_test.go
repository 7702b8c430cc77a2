package turn

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// TestModelsOf checks that a request without a price does not hide the known cost of the other requests of its model.
func TestModelsOf(t *testing.T) {
	asked := func(name string, tokens int64, cost *model.Cost) loop.Spending {
		return loop.Spending{Provider: "p", Model: name, Usage: model.Usage{InputTokens: tokens}, Cost: cost}
	}
	costs := func(amount, currency string) *model.Cost {
		return &model.Cost{Amount: decimal.RequireFromString(amount), Currency: currency}
	}
	used := func(name string, tokens int64, cost *turnrecord.Cost) turnrecord.Model {
		return turnrecord.Model{Provider: "p", Model: name, Usage: model.Usage{InputTokens: tokens}, Cost: cost}
	}
	for name, tc := range map[string]struct {
		requests []loop.Spending
		want     []turnrecord.Model
	}{
		"no requests": {nil, nil},
		"all costs are known": {
			[]loop.Spending{asked("m", 1, costs("0.1", "USD")), asked("n", 2, costs("0", "USD")), asked("m", 4, costs("0.2", "USD"))},
			[]turnrecord.Model{
				used("m", 5, &turnrecord.Cost{Amount: "0.3", Currency: "USD"}),
				used("n", 2, &turnrecord.Cost{Amount: "0", Currency: "USD"}),
			},
		},
		"some requests have no price": {
			[]loop.Spending{asked("m", 1, costs("0.1", "USD")), asked("m", 2, nil), asked("m", 4, costs("0.2", "USD")), asked("m", 8, nil)},
			[]turnrecord.Model{used("m", 5, &turnrecord.Cost{Amount: "0.3", Currency: "USD"}), used("m", 10, nil)},
		},
		"the currency has changed": {
			[]loop.Spending{asked("m", 1, costs("0.1", "USD")), asked("m", 2, costs("0.1", "EUR"))},
			[]turnrecord.Model{
				used("m", 1, &turnrecord.Cost{Amount: "0.1", Currency: "USD"}),
				used("m", 2, &turnrecord.Cost{Amount: "0.1", Currency: "EUR"}),
			},
		},
		"requests that used nothing need no price": {
			[]loop.Spending{
				asked("m", 0, nil), asked("m", 1, costs("0.1", "USD")), asked("m", 0, nil), asked("n", 0, nil), asked("n", 2, nil),
			},
			[]turnrecord.Model{used("m", 1, &turnrecord.Cost{Amount: "0.1", Currency: "USD"}), used("n", 2, nil)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := modelsOf(func(yield func(loop.Spending) bool) { slices.Values(tc.requests)(yield) })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("models: -want +got:\n%s", diff)
			}
		})
	}
}
