package loop

import (
	"strings"
	"testing"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestOutputLimit checks which output limit a budget leaves for a request. The prompt has 100 tokens, and costs 0.1; a
// token of the reply costs 0.002.
func TestOutputLimit(t *testing.T) {
	price := &model.Pricing{Currency: "USD", Input: decimal.NewFromInt(1000), Output: decimal.NewFromInt(2000)}
	free := &model.Pricing{Currency: "USD"}
	for name, tc := range map[string]struct {
		reason  string
		tokens  int64 // left of maxTokens; 0 means no limit
		cost    string
		pricing *model.Pricing
		most    int64
		window  int64
		limit   int64
		why     string // its beginning
	}{
		"no budget":         {"nothing is limited", 0, "0", price, 8192, 0, 0, ""},
		"all of it fits":    {"the request keeps its own limit", 8292, "0", nil, 8192, 0, 0, ""},
		"most of it":        {"the rest of the tokens", 8291, "0", nil, 8192, 0, 8191, ""},
		"least":             {"a useful reply", 1124, "0", nil, 8192, 0, 1024, ""},
		"too little":        {"a shorter reply is useless", 1123, "0", nil, 8192, 0, 0, "the turn used 7 tokens"},
		"a short reply":     {"the Agent wants no more", 150, "0", nil, 50, 0, 0, ""},
		"a shorter one":     {"it would be cut off", 149, "0", nil, 50, 0, 0, "the turn used 7 tokens"},
		"all of the cost":   {"the request keeps its own limit", 0, "16.484", price, 8192, 0, 0, ""},
		"most of the cost":  {"the rest of the cost", 0, "16.483", price, 8192, 0, 8191, ""},
		"least of the cost": {"a useful reply", 0, "2.148", price, 8192, 0, 1024, ""},
		"too dear":          {"a shorter reply is useless", 0, "2.147", price, 8192, 0, 0, "the turn cost 0.5"},
		"a dear prompt":     {"nothing is left for the reply", 0, "0.09", price, 8192, 0, 0, "the turn cost 0.5"},
		"both":              {"the lower rest counts", 3100, "4.1", price, 8192, 0, 2000, ""},
		"both, otherwise":   {"the lower rest counts", 1600, "4.1", price, 8192, 0, 1500, ""},
		"a free model":      {"it costs nothing", 0, "0.0000001", free, 8192, 0, 0, ""},
		"an unknown price":  {"its cost cannot be limited", 0, "0.0000001", nil, 8192, 0, 0, ""},
		"unknown reply":     {"the request has no limit of its own", 2100, "0", nil, 0, 0, 2000, ""},
		"unknown, much":     {"some models would refuse such a limit", 4197, "0", nil, 0, 0, 0, ""},
		"unknown, little":   {"only the prompt must fit", 100, "0", nil, 0, 0, 1024, ""},
		"unknown, nothing":  {"the prompt does not fit", 99, "0", nil, 0, 0, 0, "the turn used 7 tokens"},
		"a window":          {"prompt and reply are in one window", 600, "0", nil, 8192, 600, 0, ""},
		"most of a window":  {"a server refuses a limit beyond the window", 0, "0", nil, 8192, 4196, 4096, ""},
		"less of a window":  {"the conversation must become shorter", 0, "0", nil, 8192, 4195, 0, ""},
		"few of both":       {"the budget leaves less than the window", 5000, "0", nil, 8192, 6100, 4900, ""},
		"a small window":    {"the model would refuse more", 200, "0", nil, 0, 600, 500, ""},
		"a full window":     {"the model decides", 200, "0", nil, 0, 100, 0, ""},
	} {
		e := &expense{
			limits: Limits{MaxCost: decimal.RequireFromString(tc.cost)}, tokens: 7, cost: decimal.RequireFromString("0.5"),
			prompt: 100, most: tc.most, window: tc.window, pricing: tc.pricing,
		}
		if tc.tokens > 0 {
			e.limits.MaxTokens = 7 + tc.tokens
		}
		if e.limits.MaxCost.IsPositive() {
			e.limits.MaxCost = e.limits.MaxCost.Add(e.cost)
		}
		limit, why := e.outputLimit()
		if limit != tc.limit || tc.why == "" != (why == "") || !strings.HasPrefix(why, tc.why) {
			t.Errorf("%s: outputLimit = %d, %q; want %d, %q: %s", name, limit, why, tc.limit, tc.why, tc.reason)
		}
	}
}
