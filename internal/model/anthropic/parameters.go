package anthropic

import (
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Check returns the first parameter that cannot be sent to the model with this name, or nil.
func Check(name string, p *model.Parameters, o *Options) *model.Unsupported {
	if unsupported := checkTemperature(name, p); unsupported != nil {
		return unsupported
	}
	if unsupported := checkThinking(name, p, o); unsupported != nil {
		return unsupported
	}
	if p.Seed != nil {
		return &model.Unsupported{Parameter: "seed", Problem: "the Messages protocol has no seed: remove it"}
	}
	if slices.ContainsFunc(p.Stop, func(text string) bool { return strings.TrimSpace(text) == "" }) {
		return &model.Unsupported{
			Parameter: "stopSequences", Problem: "the Messages protocol refuses texts of white space alone: remove them",
		}
	}
	if len(p.Stop) > 0 {
		if unsupported := endpoint.CheckField("stopSequences", "stop_sequences", o.Extra); unsupported != nil {
			return unsupported
		}
	}
	if t := p.ServiceTier; t != "" {
		if t != "auto" && t != "standard_only" { // platform.claude.com, service tiers
			return &model.Unsupported{Parameter: "serviceTier", Problem: fmt.Sprintf(
				"the Messages protocol has no tier %q: use one of auto, standard_only", t)}
		}
		if unsupported := endpoint.CheckField("serviceTier", "service_tier", o.Extra); unsupported != nil {
			return unsupported
		}
	}
	return endpoint.CheckExtra(p.Extra, o.Extra, "stop_sequences", "service_tier", "system", "thinking", "output_config", "cache_control")
}

// thinks reports whether a request asks the model to think.
func thinks(p *model.Parameters) bool { return p.Effort != "" && p.Effort != model.EffortNone }

// checkThinking returns why thinking cannot be sent, or nil. Half of the output limit is for thoughts, and the protocol
// refuses a smaller budget than minBudget.
func checkThinking(name string, p *model.Parameters, o *Options) *model.Unsupported {
	limit := o.outputLimit(name, p)
	if !thinks(p) || o.isAdaptive(name) || limit <= 0 || limit/2 >= minBudget {
		return nil
	}
	return &model.Unsupported{Parameter: "thinking", Problem: fmt.Sprintf(
		`model %q has an output limit of %d tokens, and thinking requires %d: raise maxOutputTokens, or set spec.thinking to "Off"`,
		name, limit, 2*minBudget)}
}

// checkTemperature returns why a temperature cannot be sent, or nil.
func checkTemperature(name string, p *model.Parameters) *model.Unsupported {
	const parameter = "temperature"
	switch t := p.Temperature; {
	case t == nil:
		return nil
	case !claude.MatchString(name): // other models have rules of their own, which their servers check
		return nil
	case refusesTemperature(name):
		return &model.Unsupported{Parameter: parameter, Problem: fmt.Sprintf("model %q refuses it: remove it", name)}
	case *t > 1:
		return &model.Unsupported{Parameter: parameter, Problem: "models of Anthropic accept 0 to 1: lower it to at most 1"}
	case *t < 1 && thinks(p): // platform.claude.com, extended thinking
		return &model.Unsupported{
			Parameter: parameter,
			Problem:   `models of Anthropic accept only 1 with thinking: remove it, or set spec.thinking to "Off"`,
		}
	}
	return nil
}
