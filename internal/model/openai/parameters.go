package openai

import (
	"fmt"
	"slices"
	"strings"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// thinkingSwitch is the field that ThinkingSwitch sends.
type thinkingSwitch struct {
	Type string `json:"type"`
}

// addParameters adds the parameters whose names or forms differ between dialects. Check has accepted them.
func (r *chatRequest) addParameters(p *model.Parameters, d *Dialect) {
	r.Stop, r.ServiceTier = p.Stop, api.ServiceTier(p.ServiceTier)
	if p.Seed != nil && d.Seed == SeedRandom {
		r.RandomSeed = p.Seed
	} else if p.Seed != nil {
		r.Seed = new(int(*p.Seed))
	}
	switch isOn := p.Effort != model.EffortNone; {
	case p.Effort == "":
	case d.Thinking == ThinkingSwitch && isOn:
		r.Thinking = &thinkingSwitch{Type: "enabled"}
	case d.Thinking == ThinkingSwitch:
		r.Thinking = &thinkingSwitch{Type: "disabled"}
	case d.Thinking == ThinkingTemplate:
		r.ChatTemplateKwargs = map[string]any{"enable_thinking": isOn}
	default:
		r.ReasoningEffort = p.Effort
	}
}

// thinkingFields are the fields for reasoning that the extra fields of an endpoint may set as well.
var thinkingFields = map[ThinkingForm]string{ThinkingSwitch: "thinking", ThinkingTemplate: "chat_template_kwargs"}

// Check returns the first parameter that cannot be sent to the model with this name in a dialect, or nil.
func Check(name string, p *model.Parameters, d *Dialect) *model.Unsupported {
	seed := "seed"
	if d.Seed == SeedRandom {
		seed = "random_seed"
	}
	if p.Seed != nil {
		if d.Seed == SeedNone {
			return &model.Unsupported{Parameter: "seed", Problem: "the service of this dialect has no seed: remove it"}
		}
		if unsupported := endpoint.CheckField("seed", seed, d.Extra); unsupported != nil {
			return unsupported
		}
	}
	if unsupported := checkStop(name, p.Stop, d); unsupported != nil {
		return unsupported
	}
	if unsupported := checkTier(p.ServiceTier, d); unsupported != nil {
		return unsupported
	}
	sent := []string{seed, "stop", "service_tier"}
	if field := thinkingFields[d.Thinking]; p.Effort != "" && field != "" {
		if unsupported := endpoint.CheckField("thinking", field, d.Extra); unsupported != nil {
			return unsupported
		}
		sent = append(sent, field)
	}
	if unsupported := checkEffort(p.Effort, d); unsupported != nil {
		return unsupported
	}
	return endpoint.CheckExtra(p.Extra, d.Extra, sent...)
}

// effortHigh is the effort that turns on reasoning without levels.
const effortHigh = "high"

// checkEffort returns why an effort cannot be requested, or nil.
func checkEffort(effort string, d *Dialect) *model.Unsupported {
	const parameter = "thinking"
	switch {
	case effort == "" || effort == effortHigh || effort == model.EffortNone:
		return nil
	case d.Thinking != ThinkingEffort:
		return &model.Unsupported{
			Parameter: parameter,
			Problem:   `its form is a switch without levels: use High or "Off", or set requests.thinking to Effort if the model has levels`,
		}
	case d.OnlyHighEffort:
		return &model.Unsupported{Parameter: parameter, Problem: fmt.Sprintf(
			`models of this service have no level %q: use High or "Off", or set requests.thinking to Effort if the model has levels`,
			effort)}
	}
	return nil
}

// checkStop returns why stop sequences cannot be sent to a model, or nil.
func checkStop(name string, stop []string, d *Dialect) *model.Unsupported {
	const parameter = "stopSequences"
	switch {
	case len(stop) == 0:
		return nil
	case d.Stop == StopRefused:
		return &model.Unsupported{Parameter: parameter, Problem: "the ModelProvider's requests.stopSequences is Off: remove them"}
	case d.Stop == StopByOpenAI && refusesStop.MatchString(name):
		return &model.Unsupported{Parameter: parameter, Problem: fmt.Sprintf(
			`model %q refuses them: remove them, or set requests.stopSequences to "On" if it accepts them`, name)}
	}
	return endpoint.CheckField(parameter, "stop", d.Extra)
}

// checkTier returns why a service tier cannot be requested, or nil.
func checkTier(tier string, d *Dialect) *model.Unsupported {
	switch {
	case tier == "" || d.Tiers == nil:
	case len(d.Tiers) == 0:
		return &model.Unsupported{Parameter: "serviceTier", Problem: "the service of this dialect has no tiers: remove it"}
	case !slices.Contains(d.Tiers, tier):
		return &model.Unsupported{Parameter: "serviceTier", Problem: fmt.Sprintf(
			"the service has no tier %q: use one of %s", tier, strings.Join(d.Tiers, ", "))}
	}
	if tier == "" {
		return nil
	}
	return endpoint.CheckField("serviceTier", "service_tier", d.Extra)
}
