package loop

import (
	"strings"
	"testing"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestOutputLimit checks which output limit a budget and the context window leave for a request, and whether it is the
// budget that lowers the limit. The prompt has 100 tokens, and costs 0.1; a token of the reply costs 0.002.
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
		why     string // the beginning of the message
	}{
		"no budget":                         {"nothing is limited", 0, "0", price, 8192, 0, 0, ""},
		"the whole reply fits":              {"the request keeps its own limit", 8292, "0", nil, 8192, 0, 0, ""},
		"a shorter reply fits":              {"the rest of the tokens", 8291, "0", nil, 8192, 0, 8191, ""},
		"the shortest useful reply":         {"a useful reply", 1124, "0", nil, 8192, 0, 1024, ""},
		"less than a useful reply":          {"a shorter reply is useless", 1123, "0", nil, 8192, 0, 0, "the turn used 7 tokens"},
		"a short reply":                     {"the Agent wants no more", 150, "0", nil, 50, 0, 0, ""},
		"a short reply does not fit":        {"it would be cut off", 149, "0", nil, 50, 0, 0, "the turn used 7 tokens"},
		"cost of the whole reply":           {"the request keeps its own limit", 0, "16.484", price, 8192, 0, 0, ""},
		"cost of a shorter reply":           {"the rest of the cost", 0, "16.483", price, 8192, 0, 8191, ""},
		"cost of the shortest useful reply": {"a useful reply", 0, "2.148", price, 8192, 0, 1024, ""},
		"cost of less than a useful reply":  {"a shorter reply is useless", 0, "2.147", price, 8192, 0, 0, "the turn cost 0.5"},
		"cost of less than the prompt":      {"nothing is left for the reply", 0, "0.09", price, 8192, 0, 0, "the turn cost 0.5"},
		"both limits, fewer by cost":        {"the lower rest counts", 3100, "4.1", price, 8192, 0, 2000, ""},
		"both limits, fewer by tokens":      {"the lower rest counts", 1600, "4.1", price, 8192, 0, 1500, ""},
		"a free model":                      {"it costs nothing", 0, "0.0000001", free, 8192, 0, 0, ""},
		"an unknown price":                  {"its cost cannot be limited", 0, "0.0000001", nil, 8192, 0, 0, ""},
		"reply unknown, some left":          {"the request has no limit of its own", 2100, "0", nil, 0, 0, 2000, ""},
		"reply unknown, much left":          {"some models would refuse such a limit", 4197, "0", nil, 0, 0, 0, ""},
		"reply unknown, little left":        {"only the prompt must fit", 100, "0", nil, 0, 0, 1024, ""},
		"reply unknown, too little left":    {"the prompt does not fit", 99, "0", nil, 0, 0, 0, "the turn used 7 tokens"},
		"a window":                          {"prompt and reply are in one window", 600, "0", nil, 8192, 600, 0, ""},
		"half of the limit in the window":   {"a server refuses a limit beyond the window", 0, "0", nil, 8192, 4196, 4096, ""},
		"less than half in the window":      {"the conversation must become shorter", 0, "0", nil, 8192, 4195, 0, ""},
		"budget below the window":           {"the budget leaves less than the window", 5000, "0", nil, 8192, 6100, 4900, ""},
		"reply unknown, small window":       {"the model would refuse more", 200, "0", nil, 0, 600, 500, ""},
		"reply unknown, full window":        {"the model decides", 200, "0", nil, 0, 100, 0, ""},
	} {
		e := &limitedRequest{
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
		c, r := &Candidate{MaxOutputTokens: tc.most, ContextWindow: tc.window}, &Request{EstimatedTokens: 100, OutputLimit: limit}
		byWindow := name == "half of the limit in the window" || name == "reply unknown, small window"
		if got, want := limitedByBudget(c, r), limit > 0 && !byWindow; got != want {
			t.Errorf("%s: limitedByBudget = %t, want %t", name, got, want)
		}
	}
}
