// Package translate is the one place where API objects become values of the engine, and results of the engine become
// status. Credentials pass through it as plain values and end in a provider's configuration, nowhere else.
package translate

import (
	"fmt"
	"strconv"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// Agent returns the part of an Agent that its prompt speaks of.
func Agent(a *v1alpha1.Agent) prompt.Agent {
	return prompt.Agent{Name: a.Name, Description: a.Spec.Description, Instructions: a.Spec.Instructions}
}

// Profile returns what a PromptProfile says.
func Profile(p *v1alpha1.PromptProfile) prepare.Profile {
	out := prepare.Profile{
		Name: p.Name, ID: p.Spec.ID, Version: p.Spec.Version, Generation: p.Generation, Tags: p.Spec.Tags,
		Profile: prompt.Profile{Instructions: p.Spec.Instructions},
	}
	if id := p.Spec.Identity; id != nil {
		out.AssistantName, out.SystemPrompt, out.DeveloperPrompt = id.AssistantName, id.SystemPrompt, id.DeveloperPrompt
	}
	if o := p.Spec.Overrides; o != nil {
		out.Behavior = o.Behavior
	}
	for _, v := range p.Spec.Variables {
		variable := prepare.Variable{Name: v.Name, Required: v.Required, Trusted: v.Trust == v1alpha1.TrustTrusted}
		if v.Default != nil {
			variable.Default = *v.Default
		}
		out.Variables = append(out.Variables, variable)
	}
	return out
}

// Location returns the agent's time zone. It fails for a name that the time zone database does not know.
func Location(a *v1alpha1.Agent) (*time.Location, error) {
	name := a.Spec.TimeZone
	if name == "" || name == "Local" {
		name = "UTC"
	}
	loc, err := time.LoadLocation(name)
	if err != nil || a.Spec.TimeZone == "Local" {
		return nil, fmt.Errorf("Agent spec.timeZone: %q is not an IANA time zone: use a name such as Europe/Berlin or UTC", a.Spec.TimeZone)
	}
	return loc, nil
}

// Preparation returns what the messages of a Turn are made of; now is the time they speak of. It fails for an unknown
// time zone and for a spec that is too large.
func Preparation(t *v1alpha1.Turn, a *v1alpha1.Agent, p *v1alpha1.PromptProfile, now time.Time) (prepare.Input, error) {
	if err := t.Spec.CheckSize(); err != nil {
		return prepare.Input{}, fmt.Errorf("Turn %q: %w", t.Name, err) //nolint:staticcheck // because it begins with the name of a kind
	}
	loc, err := Location(a)
	if err != nil {
		return prepare.Input{}, err
	}
	in := prepare.Input{
		Agent: Agent(a), Profile: Profile(p), TurnName: t.Name, TurnNamespace: t.Namespace,
		Parameters: map[string]string{}, Message: t.Spec.Message, Now: now.In(loc),
	}
	for _, v := range t.Spec.Parameters {
		in.Parameters[v.Name] = v.Value
	}
	for _, h := range t.Spec.History {
		role := model.RoleUser
		if h.Role == v1alpha1.HistoryRoleAssistant {
			role = model.RoleAssistant
		}
		in.History = append(in.History, prepare.HistoryMessage{Role: role, Content: h.Content})
	}
	if c := t.Spec.Context; c != nil {
		for _, f := range c.Facts {
			in.Facts = append(in.Facts, prepare.Fact{ID: f.ID, Text: f.Text, Source: f.Source})
		}
	}
	return in, nil
}

// Link is one model of an agent's chain with what it takes to ask it.
type Link struct {
	// Reference is the entry of the agent's spec.models.
	Reference v1alpha1.ModelReference
	// Object is the ModelProvider, nil if there is none.
	Object *v1alpha1.ModelProvider
	// Provider asks it.
	Provider model.Provider
}

// Input returns the input of a Turn's run: what is asked, of which models, and for how long. now is the time the messages
// speak of; what changes from run to run (UID, epoch, time left, interrupts) is the caller's to fill in.
func Input(t *v1alpha1.Turn, a *v1alpha1.Agent, p *v1alpha1.PromptProfile, chain []Link, now time.Time) (turn.Input, error) {
	preparation, err := Preparation(t, a, p, now)
	if err != nil {
		return turn.Input{}, err
	}
	limit := v1alpha1.Timeout(t.Spec.Limits, a.Spec.Limits)
	in := turn.Input{
		UID: string(t.UID), Timeout: limit, Limit: limit, Preparation: preparation,
		PrepareOnly:   t.Spec.Execution == v1alpha1.ExecutionPrepareOnly,
		ShowCitations: t.Spec.Citations != v1alpha1.CitationsHide,
		DecisionKey:   a.Spec.DecisionKey,
	}
	for _, link := range chain {
		c, err := candidate(link)
		if err != nil {
			return turn.Input{}, err
		}
		in.Chain = append(in.Chain, c)
	}
	return in, nil
}

func candidate(l Link) (turn.Candidate, error) {
	c := turn.Candidate{Candidate: loop.Candidate{
		ProviderName: l.Reference.ProviderRef.Name, Model: l.Reference.Model, Provider: l.Provider,
		Retry: loop.Retry{MaxAttempts: 1},
	}}
	if p := l.Reference.Parameters; p != nil {
		if p.MaxOutputTokens != nil {
			n := int(*p.MaxOutputTokens)
			c.Parameters.MaxOutputTokens = &n
		}
		if p.Temperature != nil {
			f, err := strconv.ParseFloat(*p.Temperature, 64)
			if err != nil {
				return c, fmt.Errorf("failed to read Agent spec.models parameters.temperature %q: %w", *p.Temperature, err)
			}
			c.Parameters.Temperature = &f
		}
	}
	if l.Object == nil {
		return c, nil
	}
	r := l.Object.Spec.Retry
	c.Retry = loop.Retry{
		MaxAttempts:    int(r.MaxAttempts),
		InitialBackoff: time.Duration(r.InitialBackoffMilliseconds) * time.Millisecond,
		MaxBackoff:     time.Duration(r.MaxBackoffSeconds) * time.Second,
	}
	m := l.Object.Model(l.Reference.Model)
	if m == nil || m.Pricing == nil {
		return c, nil
	}
	pricing, err := pricingOf(m.Pricing)
	if err != nil {
		return c, fmt.Errorf("failed to read the prices of model %q of ModelProvider %q: %w", m.Name, l.Object.Name, err)
	}
	c.Pricing = pricing
	return c, nil
}

func pricingOf(p *v1alpha1.Pricing) (*finalize.Pricing, error) {
	out := &finalize.Pricing{Currency: p.Currency}
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
	return out, nil
}
