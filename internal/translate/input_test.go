package translate_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/shopspring/decimal"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/prices"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// unasked is a model provider that must not be asked.
type unasked struct{ model.Provider }

// Generate fails.
func (unasked) Generate(context.Context, *model.Request) (*model.Reply, error) {
	return nil, fmt.Errorf("the model was asked")
}

// preparation is the preparation that the tests pass to Input.
func preparation(context.Context) (prepare.Input, error) {
	return prepare.Input{Model: "of the caller"}, nil
}

func TestInput(t *testing.T) {
	agent := &v1alpha1.Agent{
		ObjectMeta: metav1.ObjectMeta{Name: "helper"},
		Spec: v1alpha1.AgentSpec{
			DecisionKey: "k", Limits: &v1alpha1.Limits{TimeoutSeconds: new(int32(30))},
		},
	}
	spec := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "demo", UID: "u"},
		Spec: v1alpha1.TurnSpec{
			Message: "What?", Execution: v1alpha1.ExecutionPrepareOnly, Citations: v1alpha1.CitationsHide,
		},
	}
	temperature, tokens := "0.2", int32(64)
	chain := []translate.Link{
		{
			Reference: v1alpha1.ModelReference{
				ProviderRef: v1alpha1.SharedReference{Name: "main"}, Model: "small",
				Parameters: &v1alpha1.ModelParameters{Temperature: &temperature, MaxOutputTokens: &tokens},
			},
			Object: &v1alpha1.ModelProvider{Spec: v1alpha1.ModelProviderSpec{
				BaseURL: "https://LLM.example:8443/v1",
				Retry:   v1alpha1.RetryPolicy{MaxAttempts: 4, InitialBackoffMilliseconds: 500, MaxBackoffSeconds: 20},
				Models: []v1alpha1.Model{{
					Name:    "small",
					Pricing: &v1alpha1.Pricing{Currency: "USD", InputPerMillion: "2.5", OutputPerMillion: "10"},
				}},
			}},
			Provider: unasked{},
		},
		{Reference: v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: "gone"}, Model: "large"}, Provider: unasked{}},
	}
	got, err := translate.Input(spec, agent, chain, nil, preparation)
	if err != nil {
		t.Fatalf("Input: %v", err)
	}
	want := turn.Input{
		UID: "u", Namespace: "demo", Name: "first", Timeout: 30 * time.Second, Limit: 30 * time.Second, PrepareOnly: true, DecisionKey: "k",
		Selection: tool.Selection{Most: 25}, TopK: 8,
		Config: loop.Config{
			Policy: loop.Policy{NoWeb: true}, Context: loop.ContextPolicy{Compact: true, WarnPercent: 70, CompactPercent: 90},
			Limits: loop.Limits{
				MaxSteps: 6, MaxToolCalls: 25, MaxTokens: 1_000_000, MaxCost: decimal.NewFromInt(5),
				MaxDescendants: 25, ApprovalTimeout: 24 * time.Hour,
			},
			Chain: []loop.Candidate{
				{
					ProviderName: "main", Model: "small", Endpoint: "llm.example:8443",
					Parameters: model.Parameters{Temperature: new(0.2), MaxOutputTokens: new(64)},
					Retry:      loop.Retry{MaxAttempts: 4, InitialBackoff: 500 * time.Millisecond, MaxBackoff: 20 * time.Second},
					Provider:   unasked{},
					Pricing: &model.Pricing{
						Currency: "USD", Input: decimal.RequireFromString("2.5"), Output: decimal.RequireFromString("10"),
						CacheRead: decimal.RequireFromString("2.5"),
					},
				},
				{ProviderName: "gone", Model: "large", Unusable: true, Retry: loop.Retry{MaxAttempts: 1}, Provider: unasked{}},
			},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(unasked{}), cmpopts.IgnoreFields(turn.Input{}, "Preparation")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if in, err := got.Preparation(t.Context()); err != nil || in.Model != "of the caller" {
		t.Errorf("Preparation = %+v, %v; want that of the caller", in, err)
	}
}

// TestPrices checks which prices apply to a model.
func TestPrices(t *testing.T) {
	const public, own = "https://api.openai.com/v1", "https://llm.example/v1"
	declared := &v1alpha1.Pricing{
		Currency: "EUR", InputPerMillion: "1", OutputPerMillion: "2", CacheReadPerMillion: new("0.5"), CacheWritePerMillion: new("1.5"),
		ReasoningPerMillion: new("3"),
	}
	price := decimal.RequireFromString
	asDeclared := &model.Pricing{
		Currency: "EUR", Input: price("1"), Output: price("2"), CacheRead: price("0.5"),
		CacheWrite: new(price("1.5")), Reasoning: new(price("3")),
	}
	listed := prices.Of(public, "gpt-4o-mini")
	for name, tc := range map[string]struct {
		reason, baseURL string
		models          []v1alpha1.Model
		want            *model.Pricing
		limited         bool
	}{
		"declared": {"the declared price applies", own, []v1alpha1.Model{{Name: "gpt-4o-mini", Pricing: declared}}, asDeclared, true},
		"replaced": {
			"a declared price replaces the list price", public,
			[]v1alpha1.Model{{Name: "gpt-4o-mini", Pricing: declared}},
			asDeclared, true,
		},
		"listed": {"the host is that of a public service", public, nil, listed, true},
		"without price": {
			"a declared model without a price has the list price", public, []v1alpha1.Model{{Name: "gpt-4o-mini"}}, listed, true,
		},
		"unknown": {"list prices are not those of other hosts", own, []v1alpha1.Model{{Name: "gpt-4o-mini"}}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := translate.Input(&v1alpha1.Turn{}, &v1alpha1.Agent{}, []translate.Link{{
				Reference: v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: "main"}, Model: "gpt-4o-mini"},
				Object:    &v1alpha1.ModelProvider{Spec: v1alpha1.ModelProviderSpec{BaseURL: tc.baseURL, Models: tc.models}},
			}}, nil, preparation)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Chain[0].Pricing); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if got.Limits.MaxCost.IsPositive() != tc.limited {
				t.Errorf("the cost is limited to %s, want a limit: %t", got.Limits.MaxCost, tc.limited)
			}
		})
	}
}

func TestInputWithSession(t *testing.T) {
	s := &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Name: "talk", UID: "s-uid"}}
	got, err := translate.Input(&v1alpha1.Turn{}, &v1alpha1.Agent{}, nil, s, preparation)
	if diff := cmp.Diff(&turn.Session{UID: "s-uid", Name: "talk"}, got.Session); diff != "" || err != nil {
		t.Errorf("Input (error %v): -want +got:\n%s", err, diff)
	}
}

func TestLimits(t *testing.T) {
	limits := func(steps, calls int32, tokens int64, cost string) *v1alpha1.Limits {
		return &v1alpha1.Limits{MaxSteps: &steps, MaxToolCalls: &calls, MaxTokens: &tokens, MaxCost: &cost}
	}
	sessionWith := func(maxTokens, tokens int64, maxCost, cost string) *v1alpha1.Session {
		s := &v1alpha1.Session{Spec: v1alpha1.SessionSpec{Budget: &v1alpha1.SessionBudget{MaxTokens: &maxTokens, MaxCost: &maxCost}}}
		s.Status.Usage = &v1alpha1.Usage{TotalTokens: tokens, Cost: &v1alpha1.Cost{Amount: cost, Currency: "USD"}}
		return s
	}
	wantLimits := func(steps, calls int, tokens int64, cost string) loop.Limits {
		return loop.Limits{
			MaxSteps: steps, MaxToolCalls: calls, MaxTokens: tokens, MaxCost: decimal.RequireFromString(cost),
			MaxDescendants: 25, ApprovalTimeout: 24 * time.Hour,
		}
	}
	for name, tc := range map[string]struct {
		reason      string
		turn, agent *v1alpha1.Limits
		session     *v1alpha1.Session
		want        loop.Limits
	}{
		"none": {"the defaults apply; without prices, the cost has no limit", nil, nil, nil, wantLimits(6, 25, 1_000_000, "0")},
		"other limits": {
			"the defaults apply", &v1alpha1.Limits{TimeoutSeconds: new(int32(9))},
			&v1alpha1.Limits{}, &v1alpha1.Session{}, wantLimits(6, 25, 1_000_000, "0"),
		},
		"turn": {
			"its limits apply, also above the defaults", limits(9, 99, 1000, "0.5"), nil, nil,
			wantLimits(9, 99, 1000, "0.5"),
		},
		"agent": {
			"its limits apply, also above the defaults", nil, limits(9, 99, 1000, "0.5"), nil,
			wantLimits(9, 99, 1000, "0.5"),
		},
		"turn is lower": {
			"the lowest limit applies", limits(1, 0, 10, "0.05"), limits(9, 99, 1000, "0.5"), nil,
			wantLimits(1, 0, 10, "0.05"),
		},
		"agent is lower": {
			"the lowest limit applies", limits(9, 99, 1000, "0.5"), limits(1, 0, 10, "0.05"), nil,
			wantLimits(1, 0, 10, "0.05"),
		},
		"each lowers some": {
			"the lowest value of each limit applies", limits(9, 1, 1000, "0.05"), limits(2, 99, 10, "0.5"), nil,
			wantLimits(2, 1, 10, "0.05"),
		},
		"session alone": {"the rest of its budget applies", nil, nil, sessionWith(1000, 400, "1", "0.25"), wantLimits(6, 25, 600, "0.75")},
		"session has much": {
			"the default applies if it is lower", nil, nil, sessionWith(1_000_000_000, 400, "1", "0.25"),
			wantLimits(6, 25, 1_000_000, "0.75"),
		},
		"session is lower": {
			"the rest of its budget applies", limits(9, 9, 601, "0.76"), limits(9, 9, 900, "0.9"), sessionWith(1000, 400, "1", "0.25"),
			wantLimits(9, 9, 600, "0.75"),
		},
		"session is higher": {
			"the limit of the Turn applies", limits(9, 9, 10, "0.05"), nil,
			sessionWith(1000, 400, "1", "0.25"), wantLimits(9, 9, 10, "0.05"),
		},
		"session is used up": {
			"0 would be no limit, so the lowest limit stops the next request", limits(9, 9, 10, "0.05"), nil,
			sessionWith(1000, 1000, "1", "3"), wantLimits(9, 9, 1, "0.0000000001"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := translate.Input(
				&v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Limits: tc.turn}},
				&v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Limits: tc.agent}}, nil, tc.session, preparation)
			if diff := cmp.Diff(tc.want, got.Limits); diff != "" || err != nil {
				t.Errorf("limits (error %v): %s: -want +got:\n%s", err, tc.reason, diff)
			}
		})
	}
	_, err := translate.Input(&v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Limits: &v1alpha1.Limits{MaxCost: new("much")}}},
		&v1alpha1.Agent{}, nil, nil, preparation)
	if want := `failed to read limits.maxCost "much": can't convert much to decimal`; err == nil || err.Error() != want {
		t.Errorf("Input: %v, want %q", err, want)
	}
}

// TestModelOfTurnComesFirst checks that the model that the Turn names comes first, and that the other models follow in
// the order of the chain.
func TestModelOfTurnComesFirst(t *testing.T) {
	var agent v1alpha1.Agent
	var chain []translate.Link
	for _, m := range []prepare.ModelName{
		{Provider: "a", Model: "x"},
		{Provider: "b", Model: "y"},
		{Provider: "c", Model: "y"},
		{Provider: "d", Model: "z:8b"},
	} {
		r := v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: m.Provider}, Model: m.Model}
		agent.Spec.Models = append(agent.Spec.Models, r)
		chain = append(chain, translate.Link{Reference: r, Provider: unasked{}})
	}
	const none = " is not a model of the agent's chain: use one of a:x, b:y, c:y, d:z:8b"
	for name, tc := range map[string]struct {
		reason, model, want, err string
	}{
		"none":          {"the order of the chain", "", "a b c d", ""},
		"first":         {"the model already is the first", "x", "a b c d", ""},
		"no provider":   {"the first model of that name", "y", "b a c d", ""},
		"with provider": {"the model of that provider", "c:y", "c a b d", ""},
		"last":          {"the model moves from the end of the chain", "d:z:8b", "d a b c", ""},
		"unknown": {
			"the preparation fails, and the chain stays complete to read a journal", "w",
			"a b c d", `Turn spec.model: "w"` + none,
		},
		"wrong provider": {"the provider does not have that model", "a:y", "a b c d", `Turn spec.model: "a:y"` + none},
		"colon in model": {"the text is split at the first colon", "z:8b", "a b c d", `Turn spec.model: "z:8b"` + none},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Model: tc.model}}
			in, err := translate.Input(spec, &agent, chain, nil, preparation)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for i, c := range in.Chain {
				if i > 0 {
					got += " "
				}
				got += c.ProviderName
			}
			if got != tc.want {
				t.Errorf("chain %q, want %q: %s", got, tc.want, tc.reason)
			}
			_, err = in.Preparation(t.Context())
			if _, ends := errors.AsType[*invalid.Error](err); ends != (tc.err != "") || ends && err.Error() != tc.err {
				t.Errorf("Preparation: %v, want %q: %s", err, tc.err, tc.reason)
			}
			if at, err := translate.FirstModel(spec, &agent); (err != nil) != (tc.err != "") || err == nil &&
				agent.Spec.Models[at].ProviderRef.Name != tc.want[:1] {
				t.Errorf("FirstModel = %d, %v; want the index of %s", at, err, tc.want[:1])
			}
		})
	}
}

// TestListPricesAreForStandardTiers checks that a request for another tier has no list price.
func TestListPricesAreForStandardTiers(t *testing.T) {
	field := func(name string) []v1alpha1.ExtraField { return []v1alpha1.ExtraField{{Name: name, Value: `"x"`}} }
	for name, tc := range map[string]struct {
		parameters *v1alpha1.ModelParameters
		requests   *v1alpha1.RequestOptions
		priced     bool
	}{
		"no parameters":              {nil, nil, true},
		"no tier":                    {&v1alpha1.ModelParameters{Seed: new(int64(1))}, &v1alpha1.RequestOptions{}, true},
		"the standard tier":          {&v1alpha1.ModelParameters{ServiceTier: "default"}, nil, true},
		"another tier":               {&v1alpha1.ModelParameters{ServiceTier: "priority"}, nil, false},
		"a tier of the provider":     {nil, &v1alpha1.RequestOptions{ExtraFields: field("service_tier")}, false},
		"a speed":                    {&v1alpha1.ModelParameters{ExtraFields: field("speed")}, nil, false},
		"a field that does not cost": {&v1alpha1.ModelParameters{ExtraFields: field("top_p")}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := translate.Input(&v1alpha1.Turn{}, &v1alpha1.Agent{}, []translate.Link{{
				Reference: v1alpha1.ModelReference{Model: "gpt-4o-mini", Parameters: tc.parameters},
				Object: &v1alpha1.ModelProvider{Spec: v1alpha1.ModelProviderSpec{
					BaseURL: "https://api.openai.com/v1", Requests: tc.requests,
				}},
			}}, nil, preparation)
			if err != nil || (got.Chain[0].Pricing != nil) != tc.priced || got.Limits.MaxCost.IsPositive() != tc.priced {
				t.Errorf("prices %+v, limit %s, error %v; want prices: %t", got.Chain[0].Pricing, got.Limits.MaxCost, err, tc.priced)
			}
		})
	}
}

// TestParameters checks how the parameters of an Agent become those of requests, and which are rejected.
func TestParameters(t *testing.T) {
	a := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Thinking: v1alpha1.ThinkingLow, Models: []v1alpha1.ModelReference{{}, {
		Model: "m", Parameters: &v1alpha1.ModelParameters{
			Seed: new(int64(7)), StopSequences: []string{"END"}, ServiceTier: "flex",
			ExtraFields: []v1alpha1.ExtraField{{Name: "a", Value: "1"}},
		},
	}}}}
	got, err := translate.Parameters(a.Spec.Models[1].Parameters)
	want := model.Parameters{
		Seed: new(int64(7)), Stop: []string{"END"}, ServiceTier: "flex", Extra: []model.ExtraField{{Name: "a", Value: "1"}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
	p := &v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{Name: "main"}, Spec: v1alpha1.ModelProviderSpec{
		Type: v1alpha1.ProviderTypeOpenAI, Dialect: v1alpha1.DialectGeneric,
		Models: []v1alpha1.Model{{Name: "m", Capabilities: []v1alpha1.ModelCapability{v1alpha1.CapabilityReasoning}}},
	}}
	check := func() error {
		return translate.CheckParameters("spec.models[1]", a.Spec.Models[1], a.Spec.Thinking, p)
	}
	if err := check(); err != nil {
		t.Errorf("error %v, want none", err)
	}
	p.Spec.Dialect = v1alpha1.DialectMoonshot
	expect := func(want string) {
		t.Helper()
		err := check()
		if _, ok := errors.AsType[*invalid.Error](err); !ok || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	expect(`Agent spec.models[1].parameters.seed: ModelProvider "main": the service of this dialect has no seed: remove it`)
	a.Spec.Models[1].Parameters = nil
	p.Spec.Requests = &v1alpha1.RequestOptions{ExtraFields: []v1alpha1.ExtraField{{Name: "thinking", Value: "{}"}}}
	expect(`Agent spec.thinking: ModelProvider "main": the ModelProvider sets "thinking" in requests.extraFields: remove one of them`)
}

// TestEndpointsThatTakeSchemas checks which endpoints receive the schema of the answer, and which only without tools.
func TestEndpointsThatTakeSchemas(t *testing.T) {
	for url, want := range map[string][2]bool{
		"https://api.deepseek.com": {false, false}, "https://api.openai.com/v1": {true, false},
		"https://api.groq.com/openai/v1": {true, true}, "https://llm.example/v1": {true, true},
	} {
		got, err := translate.Input(&v1alpha1.Turn{}, &v1alpha1.Agent{}, []translate.Link{{
			Reference: v1alpha1.ModelReference{Model: "m"},
			Object: &v1alpha1.ModelProvider{Spec: v1alpha1.ModelProviderSpec{
				Type: v1alpha1.ProviderTypeOpenAI, BaseURL: url,
				Models: []v1alpha1.Model{{Name: "m", Capabilities: []v1alpha1.ModelCapability{v1alpha1.CapabilityStructuredOutput}}},
			}},
		}}, nil, preparation)
		if c := got.Chain[0]; err != nil || c.StructuredOutput != want[0] || c.SchemaExcludesTools != want[1] {
			t.Errorf("%s: receives the schema %t, only without tools %t, error %v; want %t", url, c.StructuredOutput,
				c.SchemaExcludesTools, err, want)
		}
	}
}

func TestInvalidPrice(t *testing.T) {
	wrong, right := "much", "1"
	for name, p := range map[string]*v1alpha1.Pricing{
		"input":       {InputPerMillion: wrong, OutputPerMillion: right},
		"output":      {InputPerMillion: right, OutputPerMillion: wrong},
		"cache read":  {InputPerMillion: right, OutputPerMillion: right, CacheReadPerMillion: &wrong},
		"cache write": {InputPerMillion: right, OutputPerMillion: right, CacheWritePerMillion: &wrong},
		"reasoning":   {InputPerMillion: right, OutputPerMillion: right, ReasoningPerMillion: &wrong},
	} {
		_, err := translate.Input(&v1alpha1.Turn{}, &v1alpha1.Agent{}, []translate.Link{{
			Reference: v1alpha1.ModelReference{Model: "small"},
			Object: &v1alpha1.ModelProvider{
				ObjectMeta: metav1.ObjectMeta{Name: "main"},
				Spec:       v1alpha1.ModelProviderSpec{Models: []v1alpha1.Model{{Name: "small", Pricing: p}}},
			},
		}}, nil, preparation)
		const want = `failed to read the prices of model "small" of ModelProvider "main": can't convert much to decimal`
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestLocation(t *testing.T) {
	for name, tc := range map[string]struct{ zone, want, err string }{
		"default": {"", "UTC", ""},
		"utc":     {"UTC", "UTC", ""},
		"named":   {"America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires", ""},
		"unknown": {"Mars/Olympus", "", `Agent spec.timeZone: "Mars/Olympus" is not an IANA time zone: use a ` +
			`name such as Europe/Berlin or UTC`},
		"machine": {"Local", "", `Agent spec.timeZone: "Local" is not an IANA time zone: use a name such as Europe/Berlin or UTC`},
		"path": {"../etc/passwd", "", `Agent spec.timeZone: "../etc/passwd" is not an IANA time zone: use a ` +
			`name such as Europe/Berlin or UTC`},
	} {
		t.Run(name, func(t *testing.T) {
			loc, err := translate.Location(&v1alpha1.Agent{Spec: v1alpha1.AgentSpec{TimeZone: tc.zone}})
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("Location: %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || loc.String() != tc.want {
				t.Errorf("Location = %v, %v; want %s", loc, err, tc.want)
			}
		})
	}
}

// TestDefaultMaxCost checks that the default applies only if all prices are in currencies in which 5 is a sensible
// amount.
func TestDefaultMaxCost(t *testing.T) {
	link := func(currency string) translate.Link {
		m := v1alpha1.Model{Name: "m"}
		if currency != "" {
			m.Pricing = &v1alpha1.Pricing{Currency: currency, InputPerMillion: "1", OutputPerMillion: "1"}
		}
		return translate.Link{
			Reference: v1alpha1.ModelReference{Model: "m"}, Provider: unasked{},
			Object: &v1alpha1.ModelProvider{Spec: v1alpha1.ModelProviderSpec{Models: []v1alpha1.Model{m}}},
		}
	}
	for name, tc := range map[string]struct {
		reason      string
		turn, agent *v1alpha1.Limits
		currencies  []string
		want        string
	}{
		"dollars":            {"the currency has the default", nil, nil, []string{"USD"}, "5"},
		"all with a default": {"each currency has the default", nil, nil, []string{"USD", "EUR", "GBP", "CHF"}, "5"},
		"yen":                {"5 yen do not pay for a request", nil, nil, []string{"JPY"}, "0"},
		"dollars and yen":    {"one currency without a default is enough for no limit", nil, nil, []string{"USD", "JPY"}, "0"},
		"no prices":          {"no cost counts", nil, nil, []string{""}, "0"},
		"dollars and none":   {"the cost of a model without a price does not count", nil, nil, []string{"", "USD"}, "5"},
		"limit of the Turn":  {"the default does not apply", &v1alpha1.Limits{MaxCost: new("7")}, nil, []string{"USD"}, "7"},
		"limit of the Agent": {"the default does not apply", nil, &v1alpha1.Limits{MaxCost: new("70")}, []string{"USD"}, "70"},
	} {
		t.Run(name, func(t *testing.T) {
			var chain []translate.Link
			for _, c := range tc.currencies {
				chain = append(chain, link(c))
			}
			in, err := translate.Input(&v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Limits: tc.turn}},
				&v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Limits: tc.agent}}, chain, nil, preparation)
			if err != nil || in.Limits.MaxCost.String() != tc.want {
				t.Errorf("a cost of %s (error %v), want %s: %s", in.Limits.MaxCost, err, tc.want, tc.reason)
			}
		})
	}
}
