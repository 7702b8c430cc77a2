package turn

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestPriceOfAModel checks the source of prices over all requests to a model.
func TestPriceOfAModel(t *testing.T) {
	usage := model.Usage{InputTokens: 1}
	cost := func(date string) *model.Cost {
		return &model.Cost{Amount: decimal.NewFromInt(1), Currency: "USD", PriceDate: date}
	}
	spent := func(costs ...*model.Cost) []loop.Spending {
		var all []loop.Spending
		for _, c := range costs {
			all = append(all, loop.Spending{Provider: "p", Model: "m", Usage: usage, Cost: c})
		}
		return all
	}
	for name, tc := range map[string]struct {
		reason   string
		requests []loop.Spending
		want     []Spent
	}{
		"none":     {"no model was asked", nil, nil},
		"declared": {"the ModelProvider has prices", spent(cost("")), []Spent{{"p", "m", usage, PriceDeclared, ""}}},
		"listed":   {"the date of the list", spent(cost("2026-07-01")), []Spent{{"p", "m", usage, PriceListed, "2026-07-01"}}},
		"updated": {
			"the newest date counts", spent(cost("2026-07-01"), cost("2026-08-01")),
			[]Spent{{"p", "m", usage.Add(usage), PriceListed, "2026-08-01"}},
		},
		"unknown": {
			"one request without a price makes the cost unknown", spent(cost(""), nil, cost("2026-08-01")),
			[]Spent{{"p", "m", usage.Add(usage).Add(usage), PriceUnknown, ""}},
		},
		"nothing used": {
			"a request that used nothing needs no price",
			[]loop.Spending{{Provider: "p", Model: "m"}},
			[]Spent{{"p", "m", model.Usage{}, "", ""}},
		},
		"two models": {
			"each model has its own source", append(spent(cost("")), loop.Spending{Provider: "p", Model: "n", Usage: usage}),
			[]Spent{{"p", "m", usage, PriceDeclared, ""}, {"p", "n", usage, PriceUnknown, ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := spentOf(func(yield func(loop.Spending) bool) {
				for _, one := range tc.requests {
					if !yield(one) {
						return
					}
				}
			})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
