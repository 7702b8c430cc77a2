package prices

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestTable checks each entry of the data.
func TestTable(t *testing.T) {
	all := All()
	if len(all) < 40 {
		t.Errorf("%d entries, want the main models of all services", len(all))
	}
	inDecimals := regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,9})?$`)
	for _, e := range all {
		if u, err := url.Parse(e.Source); err != nil || u.Scheme != "https" || u.Host == "" {
			t.Errorf("%s %s: source %q, want the URL of a price list", e.Service, e.Model, e.Source)
		}
		if day, err := time.Parse(time.DateOnly, e.Pricing.Date); err != nil || day.Year() < 2025 {
			t.Errorf("%s %s: date %q, want a day", e.Service, e.Model, e.Pricing.Date)
		}
		if strings.Contains(e.Model, "latest") {
			t.Errorf("%s %s: the name is an alias, whose model and price may change: use the name of a model", e.Service, e.Model)
		}
		check := func(p *model.Pricing) {
			for name, price := range map[string]*decimal.Decimal{
				"input": &p.Input, "output": &p.Output, "cacheRead": &p.CacheRead, "cacheWrite": p.CacheWrite, "reasoning": p.Reasoning,
			} {
				if price != nil && (!price.IsPositive() || !inDecimals.MatchString(price.String())) {
					t.Errorf("%s %s: %s %s, want a price of a million tokens", e.Service, e.Model, name, price)
				}
			}
			if p.Output.LessThan(p.Input) || p.CacheRead.GreaterThan(p.Input) {
				t.Errorf("%s %s: input %s, from a cache %s, output %s: are they exchanged?", e.Service, e.Model, p.Input, p.CacheRead,
					p.Output)
			}
		}
		check(&e.Pricing)
		if long := e.Pricing.Long; long != nil {
			check(long)
			if e.Pricing.LongOver < 10_000 || long.Input.LessThanOrEqual(e.Pricing.Input) {
				t.Errorf("%s %s: input %s, and %s over %d tokens; want at least 10,000 tokens and a higher price", e.Service, e.Model,
					e.Pricing.Input, long.Input, e.Pricing.LongOver)
			}
		}
	}
}

func TestOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, baseURL, model, want string
	}{
		"public":        {"the host is that of the service", "https://api.openai.com/v1", "gpt-4o-mini", "0.15"},
		"its own port":  {"443 is the port of HTTPS", "https://api.openai.com:443/v1", "gpt-4o-mini", "0.15"},
		"upper case":    {"the case of a host does not matter", "https://API.OpenAI.com./v1", "gpt-4o-mini", "0.15"},
		"second host":   {"a service may have several hosts", "https://api.cohere.ai/compatibility/v1", "command-r-08-2024", "0.15"},
		"other adapter": {"the protocol does not matter", "https://api.anthropic.com/v1", "claude-opus-4-6", "5"},
		"with prefix": {
			"Gemini's list of models has this prefix", "https://generativelanguage.googleapis.com/v1beta/openai", "models/gemini-2.5-flash",
			"0.3",
		},
		"slash": {
			"the name of a model may have a slash", "https://api.groq.com/openai/v1", "openai/gpt-oss-20b",
			"0.075",
		},
		"own server":               {"an own server has its own costs", "http://llm.internal/v1", "gpt-4o-mini", ""},
		"plain HTTP":               {"the server that answers is not authenticated", "http://api.openai.com/v1", "gpt-4o-mini", ""},
		"other port":               {"the server may be a tunnel or a proxy", "https://api.openai.com:8443/v1", "gpt-4o-mini", ""},
		"region":                   {"the prices of the region are higher", "https://eu.api.openai.com/v1", "gpt-4o-mini", ""},
		"like a host":              {"the host is another one", "https://api.openai.com.example.com/v1", "gpt-4o-mini", ""},
		"other model":              {"the model is not in the table", "https://api.openai.com/v1", "gpt-4o-mini-2", ""},
		"model of another service": {"the service does not have it", "https://api.openai.com/v1", "claude-opus-4-6", ""},
		"no URL":                   {"nothing is known", "://", "gpt-4o-mini", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if p := Of(tc.baseURL, tc.model); p != nil {
				got = p.Input.String()
			}
			if got != tc.want {
				t.Errorf("input price %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestCostOfAListPrice(t *testing.T) {
	haiku := Of("https://api.anthropic.com/v1", "claude-haiku-5-5")
	for name, tc := range map[string]struct {
		usage model.Usage
		want  string
	}{
		"short": {model.Usage{InputTokens: 100_000, CacheReadTokens: 50_000, CacheCreationTokens: 10_000, OutputTokens: 1000}, "0.00625"},
		"long": {
			model.Usage{InputTokens: 100_001, CacheReadTokens: 50_001, CacheCreationTokens: 10_000, OutputTokens: 1000},
			"0.03125005",
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := &model.Cost{Amount: decimal.RequireFromString(tc.want), Currency: "USD", PriceDate: haiku.Date}
			if diff := cmp.Diff(want, haiku.Cost(tc.usage)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestInvalidDataIsRejected(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":       `[`,
		"no output":     `[{"name":"A","models":{"m":{"input":"1"}}}]`,
		"unknown field": `[{"name":"A","models":{"m":{"input":"1","output":"2","cached":"1"}}}]`,
		"no number":     `[{"name":"A","models":{"m":{"input":"1","output":"much"}}}]`,
		"long":          `[{"name":"A","models":{"m":{"input":"1","output":"2","long":{"over":5}}}}]`,
	} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
