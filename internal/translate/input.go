// Package translate converts API objects into values of the engine, and results of the engine into status. No other
// package converts them. Credentials are not part of these values.
package translate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/prices"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// Link is one model of an agent's chain, with its ModelProvider.
type Link struct {
	// Reference is the entry of the agent's spec.models.
	Reference v1alpha1.ModelReference
	// Object is the ModelProvider, or nil if it does not exist.
	Object *v1alpha1.ModelProvider
	// Provider sends requests to the model.
	Provider model.Provider
}

// Input returns the input of a Turn's run: the request, the models, the limits and the Session. s is nil if the Turn
// has no Session. preparation returns the input of the messages, as Preparation does. The caller fills in the values
// that differ between runs: epoch, time left and interrupts. If the Turn names a model that its Agent does not have,
// the run ends when it prepares its messages.
func Input(
	t *v1alpha1.Turn, a *v1alpha1.Agent, chain []Link, s *v1alpha1.Session, preparation func(context.Context) (prepare.Input, error),
) (turn.Input, error) {
	limit := v1alpha1.Timeout(t.Spec.Limits, a.Spec.Limits)
	in := turn.Input{
		UID: string(t.UID), Namespace: t.Namespace, Name: t.Name, Requester: t.Requester(), Timeout: limit, Limit: limit,
		Preparation:   preparation,
		PrepareOnly:   t.Spec.Execution == v1alpha1.ExecutionPrepareOnly,
		ShowCitations: t.Spec.Citations != v1alpha1.CitationsHide, AppendCitations: t.Spec.Citations == v1alpha1.CitationsAppend,
		DecisionKey: a.Spec.DecisionKey,
		Selection:   selection(a.Spec.ToolPolicy), TopK: v1alpha1.DefaultTopK,
		ReflectEvery: int(a.Spec.ReflectEveryTurns), Config: loop.Config{
			Policy: callPolicy(t, a.Spec.ToolPolicy), Context: contextPolicy(a.Spec.Context),
			KeepReasoning: a.Spec.ReasoningText == v1alpha1.ReasoningTextJournal,
		},
	}
	if t.Spec.TopK != nil {
		in.TopK = int(*t.Spec.TopK)
	}
	if u := t.Spec.Undo; u != nil {
		in.Undo = &turn.Undo{TurnUID: u.TurnUID, Calls: u.Calls}
	}
	if o := t.Spec.Output; o != nil {
		in.Output = json.RawMessage(o.Schema.Raw)
	}
	var err error
	if in.Limits, err = limits(t.Spec.Limits, a.Spec.Limits, defaultLimits(t, a, chain), RemainingLimits(s)); err != nil {
		return turn.Input{}, err
	}
	in.Limits.MaxDescendants = v1alpha1.MaxDescendants(t.Spec.Limits, a.Spec.Limits)
	if s != nil {
		in.Session = &turn.Session{UID: string(s.UID), Name: s.Name, Known: KnownTotals(s)}
	}
	first, unknownModel := FirstModel(t, a)
	if unknownModel != nil {
		in.Preparation = func(context.Context) (prepare.Input, error) { return prepare.Input{}, unknownModel }
	}
	for i := range chain {
		at := i // the model that the Turn names comes first, and the others follow in the order of the chain
		switch {
		case i == 0:
			at = first
		case i <= first:
			at = i - 1
		}
		c, err := Candidate(chain[at], a.Spec.Thinking)
		if err != nil {
			return turn.Input{}, err
		}
		if why := refusedAttachment(t, chain[at].Object, c.Model); why != "" {
			c.Unusable, c.Provider = true, providers.Unusable(c.ProviderName, errors.New(why))
		}
		in.Chain = append(in.Chain, c)
	}
	return in, nil
}

// defaultLimits returns the limits on tokens and cost that apply if neither the Turn nor its Agent sets them.
func defaultLimits(t *v1alpha1.Turn, a *v1alpha1.Agent, chain []Link) *v1alpha1.Limits {
	out := &v1alpha1.Limits{MaxTokens: new(v1alpha1.MaxTokens(t.Spec.Limits, a.Spec.Limits))}
	for _, l := range []*v1alpha1.Limits{t.Spec.Limits, a.Spec.Limits} {
		if l != nil && l.MaxCost != nil {
			return out
		}
	}
	for _, l := range chain {
		switch currency := currencyOf(l); {
		case currency == "": // the cost of a model without prices is unknown and does not count
		case slices.Contains(v1alpha1.DefaultCostCurrencies(), currency):
			out.MaxCost = new(v1alpha1.DefaultMaxCost)
		default:
			out.MaxCost = nil
			return out
		}
	}
	return out
}

// currencyOf returns the currency of a model's prices; empty if it has no prices.
func currencyOf(l Link) string {
	if l.Object == nil {
		return ""
	}
	if m := l.Object.Model(l.Reference.Model); m != nil && m.Pricing != nil {
		return m.Pricing.Currency
	}
	if p := listPrice(&l); p != nil {
		return p.Currency
	}
	return ""
}

// limits returns the lowest given value of each limit, or its default if no value is given.
func limits(all ...*v1alpha1.Limits) (loop.Limits, error) {
	out := loop.Limits{
		MaxSteps: v1alpha1.MaxSteps(all...), MaxToolCalls: v1alpha1.MaxToolCalls(all...), ApprovalTimeout: v1alpha1.ApprovalTimeout(all...),
	}
	for _, l := range all {
		if l == nil {
			continue
		}
		if n := l.MaxTokens; n != nil && (out.MaxTokens == 0 || *n < out.MaxTokens) {
			out.MaxTokens = *n
		}
		if l.MaxCost == nil {
			continue
		}
		cost, err := decimal.NewFromString(*l.MaxCost)
		if err != nil {
			return out, fmt.Errorf("failed to read limits.maxCost %q: %w", *l.MaxCost, err)
		}
		if out.MaxCost.IsZero() || cost.LessThan(out.MaxCost) {
			out.MaxCost = cost
		}
	}
	return out, nil
}

// FirstModel returns the index in the Agent's chain of the model to ask first. It returns an *invalid.Error if the
// Turn names a model that the chain does not have.
func FirstModel(t *v1alpha1.Turn, a *v1alpha1.Agent) (int, error) {
	names := make([]prepare.ModelName, 0, len(a.Spec.Models))
	for _, m := range a.Spec.Models {
		names = append(names, prepare.ModelName{Provider: m.ProviderRef.String(), Model: m.Model})
	}
	return prepare.Resolve(t.Spec.Model, names)
}

// Candidate returns a model of a chain in the form of the engine. thinking is the thinking level of the Agent.
func Candidate(l Link, thinking v1alpha1.ThinkingLevel) (loop.Candidate, error) {
	c := loop.Candidate{
		ProviderName: l.Reference.ProviderRef.String(), Model: l.Reference.Model, Provider: l.Provider,
		Retry: loop.Retry{MaxAttempts: 1},
	}
	var err error
	if c.Parameters, err = Parameters(l.Reference.Parameters); err != nil {
		return c, err
	}
	if c.Unusable = l.Object == nil; c.Unusable {
		return c, nil
	}
	if u, err := url.Parse(l.Object.Spec.BaseURL); err == nil {
		c.Endpoint = strings.ToLower(u.Host)
	}
	c.Protocol = string(l.Object.Spec.Type)
	r := l.Object.Spec.Retry
	c.Retry = loop.Retry{
		MaxAttempts:    int(r.MaxAttempts),
		InitialBackoff: time.Duration(r.InitialBackoffMilliseconds) * time.Millisecond,
		MaxBackoff:     time.Duration(r.MaxBackoffSeconds) * time.Second,
	}
	m := l.Object.Model(l.Reference.Model)
	if m != nil {
		addDeclaredFacts(&c, m)
	}
	alone, withTools := providers.TakesSchemas(&l.Object.Spec)
	c.SchemaExcludesTools = c.StructuredOutput && alone && !withTools
	c.StructuredOutput = c.StructuredOutput && alone
	c.Parameters.Effort = effort(m, thinking)
	c.DefaultOutput = providers.DefaultOutput(&l.Object.Spec, c.Model, c.Parameters.Effort)
	if m == nil || m.Pricing == nil {
		c.Pricing = listPrice(&l)
		return c, nil
	}
	if c.Pricing, err = pricingOf(m.Pricing); err != nil {
		return c, fmt.Errorf("failed to read the prices of model %q of ModelProvider %q: %w", m.Name, l.Object.Name, err)
	}
	return c, nil
}

// Parameters returns the parameters of the requests to a model, without the effort of its reasoning.
func Parameters(p *v1alpha1.ModelParameters) (model.Parameters, error) {
	if p == nil {
		return model.Parameters{}, nil
	}
	out := model.Parameters{Seed: p.Seed, Stop: p.StopSequences, ServiceTier: p.ServiceTier}
	for _, f := range p.ExtraFields {
		out.Extra = append(out.Extra, model.ExtraField{Name: f.Name, Value: f.Value})
	}
	if p.MaxOutputTokens != nil {
		out.MaxOutputTokens = new(int(*p.MaxOutputTokens))
	}
	if p.Temperature != nil {
		f, err := strconv.ParseFloat(*p.Temperature, 64)
		if err != nil {
			return out, fmt.Errorf("failed to read Agent spec.models parameters.temperature %q: %w", *p.Temperature, err)
		}
		out.Temperature = &f
	}
	return out, nil
}

// CheckParameters returns the first parameter of an Agent's model that its provider cannot fulfill, as an
// *invalid.Error that names the field. field is the Agent's field with the model, such as spec.models[0], and thinking
// is the thinking level of the requests to the model.
func CheckParameters(field string, ref v1alpha1.ModelReference, thinking v1alpha1.ThinkingLevel, p *v1alpha1.ModelProvider) error {
	parameters, err := Parameters(ref.Parameters)
	if err != nil {
		return err
	}
	parameters.Effort = effort(p.Model(ref.Model), thinking)
	return checkParameters(field, ref.Model, &parameters, p)
}

// CheckQuestionParameters is CheckParameters for a model that receives only questions about Turns that have ended, or
// texts that it turns into vectors. The Agent's thinking level does not apply to such a model.
func CheckQuestionParameters(field string, ref v1alpha1.ModelReference, p *v1alpha1.ModelProvider) error {
	parameters, err := Parameters(ref.Parameters)
	if err != nil {
		return err
	}
	parameters = parameters.ForQuestion()
	return checkParameters(field, ref.Model, &parameters, p)
}

func checkParameters(field, name string, parameters *model.Parameters, p *v1alpha1.ModelProvider) error {
	refused := providers.CheckParameters(&p.Spec, name, parameters)
	if refused == nil {
		return nil
	}
	field = fmt.Sprintf("Agent %s.parameters.%s", field, refused.Parameter)
	if refused.Parameter == "thinking" {
		field = "Agent spec.thinking"
	}
	return invalid.Field(field, "ModelProvider %q: %s", p.Name, refused.Problem)
}

// standardTiers are the names of tiers whose prices are the list prices.
var standardTiers = []string{"", "auto", "default", "on_demand", "standard_only"}

// pricedFields are fields of a body that change the price of a request.
var pricedFields = []string{"service_tier", "speed", "inference_geo"}

// listPrice returns the list price of a model, or nil if there is none. It applies to the standard tier only.
func listPrice(l *Link) *model.Pricing {
	var extra []v1alpha1.ExtraField
	if r := l.Object.Spec.Requests; r != nil {
		extra = r.ExtraFields
	}
	if p := l.Reference.Parameters; p != nil {
		if !slices.Contains(standardTiers, p.ServiceTier) {
			return nil
		}
		extra = slices.Concat(extra, p.ExtraFields)
	}
	if slices.ContainsFunc(extra, func(f v1alpha1.ExtraField) bool { return slices.Contains(pricedFields, f.Name) }) {
		return nil
	}
	return prices.Of(l.Object.Spec.BaseURL, l.Reference.Model)
}

// effort returns the effort in the requests to a model, which is empty if the model has no setting for it. m may be
// nil.
func effort(m *v1alpha1.Model, thinking v1alpha1.ThinkingLevel) string {
	needed := v1alpha1.CapabilityReasoning
	if thinking == v1alpha1.ThinkingOff {
		needed = v1alpha1.CapabilityReasoningOff
	}
	if m == nil || !slices.Contains(m.Capabilities, needed) {
		return ""
	}
	return efforts[thinking]
}

// addDeclaredFacts fills in the facts about a model that its ModelProvider states.
func addDeclaredFacts(c *loop.Candidate, m *v1alpha1.Model) {
	if m.ContextWindow != nil {
		c.ContextWindow = *m.ContextWindow
	}
	if m.MaxOutputTokens != nil {
		c.MaxOutputTokens = *m.MaxOutputTokens
	}
	c.StructuredOutput = slices.Contains(m.Capabilities, v1alpha1.CapabilityStructuredOutput)
}

// efforts maps a thinking level to the effort in a request.
var efforts = map[v1alpha1.ThinkingLevel]string{
	v1alpha1.ThinkingOff: model.EffortNone,
	v1alpha1.ThinkingLow: "low", v1alpha1.ThinkingMedium: "medium", v1alpha1.ThinkingHigh: "high",
}

func pricingOf(p *v1alpha1.Pricing) (*model.Pricing, error) {
	out := &model.Pricing{Currency: p.Currency}
	var err error
	if out.Input, err = decimal.NewFromString(p.InputPerMillion); err != nil {
		return nil, err
	}
	if out.Output, err = decimal.NewFromString(p.OutputPerMillion); err != nil {
		return nil, err
	}
	out.CacheRead = out.Input
	if p.CacheReadPerMillion != nil {
		if out.CacheRead, err = decimal.NewFromString(*p.CacheReadPerMillion); err != nil {
			return nil, err
		}
	}
	if out.CacheWrite, err = optionalPrice(p.CacheWritePerMillion); err != nil {
		return nil, err
	}
	if out.Reasoning, err = optionalPrice(p.ReasoningPerMillion); err != nil {
		return nil, err
	}
	return out, nil
}

// optionalPrice returns a price, or nil if it is not given.
func optionalPrice(given *string) (*decimal.Decimal, error) {
	if given == nil {
		return nil, nil //nolint:nilnil // because another price applies
	}
	price, err := decimal.NewFromString(*given)
	if err != nil {
		return nil, err
	}
	return &price, nil
}
