package model_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func pricing(currency, in, out, cached string) *model.Pricing {
	return &model.Pricing{
		Currency: currency, Input: decimal.RequireFromString(in), Output: decimal.RequireFromString(out),
		CacheRead: decimal.RequireFromString(cached),
	}
}

func TestCostOfAUsage(t *testing.T) {
	usd := pricing("USD", "2.50", "10", "1.25")
	written, write := *usd, decimal.RequireFromString("3.50")
	written.CacheWrite = &write
	reasoned, reasoning := *usd, decimal.RequireFromString("15")
	reasoned.Reasoning = &reasoning
	long := *usd
	long.Long, long.LongOver = pricing("USD", "5", "15", "2.50"), 1000
	usage := func(in, out, cached int64) model.Usage {
		return model.Usage{InputTokens: in, OutputTokens: out, CacheReadTokens: cached}
	}
	for name, tc := range map[string]struct {
		reason  string
		pricing *model.Pricing
		usage   model.Usage
		want    string // empty for no cost
	}{
		"unpriced":    {"without a price there is no cost", nil, usage(1000, 100, 0), ""},
		"nothing":     {"nothing used costs nothing", usd, usage(0, 0, 0), "0 USD"},
		"plain":       {"prices are per million", usd, usage(1000, 100, 0), "0.0035 USD"},
		"cached":      {"tokens from the cache have their own price", usd, usage(1000, 0, 400), "0.002 USD"},
		"only cached": {"more cached than sent costs the cached ones", usd, usage(10, 0, 1000), "0.00125 USD"},
		"written": {
			"tokens written to the cache have their own price, if there is one", &written,
			model.Usage{InputTokens: 1000, CacheReadTokens: 400, CacheCreationTokens: 100},
			"0.0021 USD",
		},
		"written, no price": {
			"without a price for writes, the price of other input counts", usd,
			model.Usage{InputTokens: 1000, CacheReadTokens: 400, CacheCreationTokens: 100},
			"0.002 USD",
		},
		"reasoning": {"reasoning is a part of the output", usd, model.Usage{OutputTokens: 100, ReasoningTokens: 90}, "0.001 USD"},
		"reasoning, priced": {
			"it has its own price, if there is one", &reasoned,
			model.Usage{OutputTokens: 100, ReasoningTokens: 90},
			"0.00145 USD",
		},
		"more reasoning than output": {
			"reasoning beyond the output costs nothing", &reasoned,
			model.Usage{OutputTokens: 100, ReasoningTokens: 500},
			"0.0015 USD",
		},
		"at the bound": {"the prompt is not long yet", &long, usage(1000, 100, 400), "0.003 USD"},
		"long":         {"all tokens of the request have the higher prices", &long, usage(1001, 100, 400), "0.005505 USD"},
		"exact":        {"no digit is lost", pricing("USD", "0.000000001", "999999999.999999999", "0"), usage(1, 1, 0), "1000 USD"},
		"smallest":     {"the last decimal counts", pricing("USD", "0.000000001", "0", "0"), usage(1, 0, 0), "0.000000000000001 USD"},
		"max count": {
			"no digit is lost at the largest count", pricing("USD", "0.1", "0", "0"), usage(model.MaxTokens, 0, 0),
			"112589990.6842624 USD",
		},
		"free": {"a price of zero is a price", pricing("EUR", "0", "0", "0"), usage(5, 5, 0), "0 EUR"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if c := tc.pricing.Cost(tc.usage); c != nil {
				got = c.Amount.String() + " " + c.Currency
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestExpectedCost checks the expected cost of a request that is not sent yet.
func TestExpectedCost(t *testing.T) {
	high, low := decimal.NewFromInt(4), decimal.NewFromInt(1)
	for name, tc := range map[string]struct {
		reason           string
		write, reasoning *decimal.Decimal
		want             string
	}{
		"two prices":        {"1,000 tokens of each", nil, nil, "0.005 USD"},
		"costly writes":     {"the whole prompt may be written to the cache", &high, nil, "0.007 USD"},
		"costly reasoning":  {"the whole reply may be reasoning", nil, &high, "0.006 USD"},
		"both":              {"both may happen", &high, &high, "0.008 USD"},
		"cheaper than text": {"neither may happen", &low, &low, "0.005 USD"},
	} {
		p := pricing("USD", "2", "3", "0.5")
		p.CacheWrite, p.Reasoning = tc.write, tc.reasoning
		if c := p.Expected(1000, 1000); c.Amount.String()+" "+c.Currency != tc.want {
			t.Errorf("%s: %s %s, want %s: %s", name, c.Amount, c.Currency, tc.want, tc.reason)
		}
	}
	if c := (*model.Pricing)(nil).Expected(1, 1); c != nil {
		t.Errorf("%+v without prices, want an unknown cost", c)
	}
}
