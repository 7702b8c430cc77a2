package loop

import (
	"testing"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
)

// TestCostInPolicyOutput checks that output policies see the same cost as the status: none if a price is not known, or
// if there are several currencies.
func TestCostInPolicyOutput(t *testing.T) {
	cost := func(currency string) *model.Cost {
		return &model.Cost{Amount: decimal.RequireFromString("0.3"), Currency: currency}
	}
	paid := func(c *model.Cost) Step {
		return Step{Reply: model.Reply{Usage: model.Usage{InputTokens: 10}}, Cost: c}
	}
	for name, tc := range map[string]struct {
		steps []Step
		want  *float64
	}{
		"one currency":       {[]Step{paid(cost("EUR")), paid(cost("EUR"))}, new(0.6)},
		"several currencies": {[]Step{paid(cost("EUR")), paid(cost("USD"))}, nil},
		"no price":           {[]Step{paid(cost("EUR")), paid(nil)}, nil},
		"nothing was used":   {[]Step{paid(cost("EUR")), {}}, new(0.3)},
		"nothing was used of a model in another currency": {
			[]Step{{Cost: &model.Cost{Currency: "EUR"}}, paid(cost("USD"))}, new(0.3),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&State{Steps: tc.steps}).PolicyOutput("Fine.", false, outputpolicy.Citations{}).Usage.Cost
			if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
				t.Errorf("the cost is %v, want %v", got, tc.want)
			}
		})
	}
}
