package providers_test

import (
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestCheckParameters(t *testing.T) {
	const noTiers, noSeed = "the service of this dialect has no tiers: remove it", "the service of this dialect has no seed: remove it"
	const setTwice = `the ModelProvider sets %q in requests.extraFields: remove one of them`
	const noLevels = `its form is a switch without levels: use High or "Off", or set requests.thinking to Effort if the model has levels`
	const noLevel = `models of this service have no level %q: use High or "Off", ` +
		"or set requests.thinking to Effort if the model has levels"
	seeded := model.Parameters{Seed: new(int64(7))}
	stopped := model.Parameters{Stop: []string{"END"}}
	tier := func(name string) model.Parameters { return model.Parameters{ServiceTier: name} }
	heated := func(temperature float64, effort string) model.Parameters {
		return model.Parameters{Temperature: &temperature, Effort: effort}
	}
	named := func(spec v1alpha1.ModelProviderSpec, name string) v1alpha1.ModelProviderSpec {
		spec.Models = []v1alpha1.Model{{Name: name}}
		return spec
	}
	limited := func(spec v1alpha1.ModelProviderSpec, tokens int64) v1alpha1.ModelProviderSpec {
		spec.Models[0].MaxOutputTokens = &tokens
		return spec
	}
	extra := func(name, value string) model.Parameters {
		return model.Parameters{Extra: []model.ExtraField{{Name: name, Value: value}}}
	}
	at := func(url string) v1alpha1.ModelProviderSpec {
		return v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI, BaseURL: url}
	}
	of := func(d v1alpha1.Dialect, fields ...string) v1alpha1.ModelProviderSpec {
		spec := v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI, Dialect: d, Requests: &v1alpha1.RequestOptions{}}
		for _, name := range fields {
			spec.Requests.ExtraFields = append(spec.Requests.ExtraFields, v1alpha1.ExtraField{Name: name, Value: "1"})
		}
		return spec
	}
	with := func(spec v1alpha1.ModelProviderSpec, r v1alpha1.RequestOptions) v1alpha1.ModelProviderSpec {
		spec.Requests = &r
		return spec
	}
	thinkingAs := func(d v1alpha1.Dialect, form v1alpha1.ThinkingForm) v1alpha1.ModelProviderSpec {
		spec := of(d)
		spec.Requests.Thinking = form
		return spec
	}
	anthropic := func(fields ...string) v1alpha1.ModelProviderSpec {
		spec := of("", fields...)
		spec.Type = v1alpha1.ProviderTypeAnthropic
		return spec
	}
	for name, tc := range map[string]struct {
		spec       v1alpha1.ModelProviderSpec
		parameters model.Parameters
		parameter  string
		problem    string
	}{
		"nothing":                    {of(v1alpha1.DialectDeepSeek), model.Parameters{}, "", ""},
		"a seed":                     {of(v1alpha1.DialectGeneric), seeded, "", ""},
		"a seed for Mistral":         {of(v1alpha1.DialectMistral), seeded, "", ""},
		"a seed for DeepSeek":        {of(v1alpha1.DialectDeepSeek), seeded, "seed", noSeed},
		"a seed for DeepSeek's host": {at("https://api.deepseek.com/v1"), seeded, "seed", noSeed},
		"a seed for Moonshot":        {of(v1alpha1.DialectMoonshot), seeded, "seed", noSeed},
		"a seed for Gemini's host": {
			at("https://generativelanguage.googleapis.com/v1beta/openai"), seeded, "seed", noSeed,
		},
		"a seed for Anthropic":      {anthropic(), seeded, "seed", "the Messages protocol has no seed: remove it"},
		"a second seed":             {of(v1alpha1.DialectOpenAI, "seed"), seeded, "seed", fmt.Sprintf(setTwice, "seed")},
		"a second seed for Mistral": {of(v1alpha1.DialectMistral, "Random_Seed"), seeded, "seed", fmt.Sprintf(setTwice, "random_seed")},
		"a stop":                    {of(v1alpha1.DialectGroq), stopped, "", ""},
		"a blank stop for Anthropic": {
			anthropic(),
			model.Parameters{Stop: []string{"END", "\n"}},
			"stopSequences",
			"the Messages protocol refuses texts of white space alone: remove them",
		},
		"a blank stop":         {of(v1alpha1.DialectGroq), model.Parameters{Stop: []string{"\n"}}, "", ""},
		"a stop for Anthropic": {anthropic(), stopped, "", ""},
		"a stop for a reasoning model of OpenAI": {
			at("https://api.openai.com/v1"), stopped, "stopSequences",
			`model "o4-mini" refuses them: remove them, or set requests.stopSequences to "On" if it accepts them`,
		},
		"a stop for a model of this name behind a gateway": {of(v1alpha1.DialectOpenAI), stopped, "", ""},
		"a stop that is switched on": {
			with(at("https://api.openai.com/v1"), v1alpha1.RequestOptions{StopSequences: v1alpha1.SwitchOn}), stopped, "", "",
		},
		"a stop that is switched off": {
			with(of(v1alpha1.DialectGroq), v1alpha1.RequestOptions{StopSequences: v1alpha1.SwitchOff}), stopped,
			"stopSequences", "the ModelProvider's requests.stopSequences is Off: remove them",
		},
		"a seed that is switched on": {
			with(of(v1alpha1.DialectDeepSeek), v1alpha1.RequestOptions{Seed: v1alpha1.SeedParameterSeed}), seeded, "", "",
		},
		"a seed that is switched off": {
			with(of(v1alpha1.DialectOpenAI), v1alpha1.RequestOptions{Seed: v1alpha1.SeedParameterNone}), seeded, "seed", noSeed,
		},
		"tiers that are switched on": {
			with(of(v1alpha1.DialectGroq), v1alpha1.RequestOptions{ServiceTiers: v1alpha1.SwitchOn}), tier("gold"), "", "",
		},
		"tiers that are switched off": {
			with(of(v1alpha1.DialectGroq), v1alpha1.RequestOptions{ServiceTiers: v1alpha1.SwitchOff}), tier("auto"), "serviceTier", noTiers,
		},
		"a second stop": {of(v1alpha1.DialectGroq, "stop"), stopped, "stopSequences", fmt.Sprintf(setTwice, "stop")},
		"a second stop for Anthropic": {
			anthropic("stop_sequences"), stopped, "stopSequences", fmt.Sprintf(setTwice, "stop_sequences"),
		},
		"a tier of OpenAI":               {of(v1alpha1.DialectOpenAI), tier("flex"), "", ""},
		"a tier of Anthropic":            {anthropic(), tier("standard_only"), "", ""},
		"a tier of a gateway":            {of(v1alpha1.DialectLiteLLM), tier("gold"), "", ""},
		"a tier of a self-hosted server": {of(v1alpha1.DialectVLLM), tier("flex"), "serviceTier", noTiers},
		"a tier of Mistral":              {of(v1alpha1.DialectMistral), tier("flex"), "serviceTier", noTiers},
		"an unknown tier": {
			of(v1alpha1.DialectGroq), tier("gold"), "serviceTier",
			`the service has no tier "gold": use one of auto, on_demand, flex, performance`,
		},
		"an unknown tier of Anthropic": {
			anthropic(), tier("flex"), "serviceTier", `the Messages protocol has no tier "flex": use one of auto, standard_only`,
		},
		"a second tier": {
			of(v1alpha1.DialectGeneric, "service_tier"), tier("flex"), "serviceTier", fmt.Sprintf(setTwice, "service_tier"),
		},
		"a second tier of Anthropic": {anthropic("service_tier"), tier("auto"), "serviceTier", fmt.Sprintf(setTwice, "service_tier")},
		"an extra field":             {of(v1alpha1.DialectGeneric, "top_k"), extra("top_p", "0.5"), "", ""},
		"an extra field twice": {
			of(v1alpha1.DialectGeneric, "top_k"), extra("Top_K", "5"), "extraFields", fmt.Sprintf(setTwice, "Top_K"),
		},
		"an extra field of Capstan": {
			of(v1alpha1.DialectGeneric), extra("seed", "5"), "extraFields",
			`Capstan sends the field "seed" itself: remove it from extraFields, and use the parameter for it if there is one`,
		},
		"an extra field of Capstan for Anthropic": {
			anthropic(), extra("system", `"x"`), "extraFields",
			`Capstan sends the field "system" itself: remove it from extraFields, and use the parameter for it if there is one`,
		},
		"an extra field that is not JSON": {
			of(v1alpha1.DialectGeneric), extra("top_p", "half"), "extraFields", `the value of "top_p" is not JSON: correct it`,
		},
		"a temperature":               {of(v1alpha1.DialectOpenAI), heated(2, "high"), "", ""},
		"a temperature for Anthropic": {named(anthropic(), "claude-sonnet-4-5"), heated(1, ""), "", ""},
		"a high temperature for Anthropic": {
			named(anthropic(), "claude-sonnet-4-5"), heated(1.1, ""), "temperature",
			"models of Anthropic accept 0 to 1: lower it to at most 1",
		},
		"a temperature with thinking for Anthropic": {
			named(anthropic(), "claude-sonnet-4-5"), heated(0.5, "low"), "temperature",
			`models of Anthropic accept only 1 with thinking: remove it, or set spec.thinking to "Off"`,
		},
		"a high temperature for another server of the protocol": {anthropic(), heated(1.5, "low"), "", ""},
		"a temperature for an alias":                            {named(anthropic(), "claude-sonnet-latest"), heated(0.5, ""), "", ""},
		"a temperature for an old model of Anthropic":           {named(anthropic(), "claude-3-7-sonnet-latest"), heated(0.5, ""), "", ""},
		"the default temperature with thinking for Anthropic":   {anthropic(), heated(1, "low"), "", ""},
		"a temperature for a newer model of Anthropic": {
			named(anthropic(), "claude-opus-4-8"), heated(0, ""), "temperature", `model "claude-opus-4-8" refuses it: remove it`,
		},
		"thinking with a small output limit for Anthropic": {
			anthropic(),
			model.Parameters{Effort: "low", MaxOutputTokens: new(2047)},
			"thinking",
			`model "o4-mini" has an output limit of 2047 tokens, and thinking requires 2048: ` +
				`raise maxOutputTokens, or set spec.thinking to "Off"`,
		},
		"thinking with a small model of Anthropic": {
			limited(named(anthropic(), "claude-3-haiku"), 1000),
			model.Parameters{Effort: "high"},
			"thinking",
			`model "claude-3-haiku" has an output limit of 1000 tokens, and thinking requires 2048: ` +
				`raise maxOutputTokens, or set spec.thinking to "Off"`,
		},
		"thinking with just enough tokens for Anthropic": {
			limited(named(anthropic(), "claude-sonnet-4-5"), 2048), model.Parameters{Effort: "high"}, "", "",
		},
		"thinking without a budget and with a small output limit for Anthropic": {
			limited(named(anthropic(), "claude-opus-4-8"), 1000), model.Parameters{Effort: "high"}, "", "",
		},
		"no thinking and a small output limit for Anthropic": {
			anthropic(), model.Parameters{MaxOutputTokens: new(10)}, "", "",
		},
		"thinking":                         {of(v1alpha1.DialectMoonshot), model.Parameters{Effort: "high"}, "", ""},
		"a level of thinking":              {of(v1alpha1.DialectOpenAI), model.Parameters{Effort: "low"}, "", ""},
		"a level of thinking for Moonshot": {of(v1alpha1.DialectMoonshot), model.Parameters{Effort: "medium"}, "thinking", noLevels},
		"a level of thinking for a model of Moonshot with levels": {
			thinkingAs(v1alpha1.DialectMoonshot, v1alpha1.ThinkingFormEffort), model.Parameters{Effort: "low"}, "", "",
		},
		"a level of thinking for a chat template": {
			thinkingAs(v1alpha1.DialectVLLM, v1alpha1.ThinkingFormChatTemplate), model.Parameters{Effort: "low"}, "thinking", noLevels,
		},
		"thinking for a chat template": {
			thinkingAs(v1alpha1.DialectVLLM, v1alpha1.ThinkingFormChatTemplate), model.Parameters{Effort: "high"}, "", "",
		},
		"a level of thinking for Cohere": {
			of(v1alpha1.DialectCohere),
			model.Parameters{Effort: "medium"},
			"thinking",
			fmt.Sprintf(noLevel, "medium"),
		},
		"a level of thinking for Mistral": {
			of(v1alpha1.DialectMistral), model.Parameters{Effort: "low"}, "thinking", fmt.Sprintf(noLevel, "low"),
		},
		"a level of thinking for a model of Mistral with levels": {
			thinkingAs(v1alpha1.DialectMistral, v1alpha1.ThinkingFormEffort), model.Parameters{Effort: "low"}, "", "",
		},
		"thinking for Mistral": {of(v1alpha1.DialectMistral), model.Parameters{Effort: "high"}, "", ""},
		"thinking for Cohere":  {of(v1alpha1.DialectCohere), model.Parameters{Effort: "high"}, "", ""},
		"a second thinking": {
			of(v1alpha1.DialectMoonshot, "thinking"), model.Parameters{Effort: "high"}, "thinking", fmt.Sprintf(setTwice, "thinking"),
		},
		"an extra field that this dialect does not use for thinking": {
			of(v1alpha1.DialectOpenAI, "thinking"), model.Parameters{Effort: "low"}, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var parameter, problem string
			name := "o4-mini"
			if len(tc.spec.Models) > 0 {
				name = tc.spec.Models[0].Name
			}
			if got := providers.CheckParameters(&tc.spec, name, &tc.parameters); got != nil {
				parameter, problem = got.Parameter, got.Problem
			}
			if parameter != tc.parameter || problem != tc.problem {
				t.Errorf("%s: %q, want %s: %q", parameter, problem, tc.parameter, tc.problem)
			}
		})
	}
}

func TestTakesSchemas(t *testing.T) {
	of := func(d v1alpha1.Dialect, url string) v1alpha1.ModelProviderSpec {
		return v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI, Dialect: d, BaseURL: url}
	}
	schemas := func(d v1alpha1.Dialect, which v1alpha1.AnswerSchemas) v1alpha1.ModelProviderSpec {
		return v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, Dialect: d, Requests: &v1alpha1.RequestOptions{AnswerSchemas: which},
		}
	}
	for name, tc := range map[string]struct {
		spec             v1alpha1.ModelProviderSpec
		alone, withTools bool
	}{
		"OpenAI":                {of("", "https://api.openai.com/v1"), true, true},
		"LiteLLM":               {of(v1alpha1.DialectLiteLLM, ""), true, true},
		"generic":               {of("", "http://llm/v1"), true, false},
		"SGLang":                {of(v1alpha1.DialectSGLang, ""), true, false},
		"Cohere":                {of("", "https://api.cohere.ai/v1"), true, false},
		"vLLM":                  {of(v1alpha1.DialectVLLM, ""), true, false},
		"Groq":                  {of("", "https://api.groq.com/openai/v1"), true, false},
		"DeepSeek":              {of("", "https://api.deepseek.com"), false, false},
		"generic, with tools":   {schemas(v1alpha1.DialectGeneric, v1alpha1.AnswerSchemasAlways), true, true},
		"OpenAI, without tools": {schemas(v1alpha1.DialectOpenAI, v1alpha1.AnswerSchemasWithoutTools), true, false},
		"OpenAI, never":         {schemas(v1alpha1.DialectOpenAI, v1alpha1.AnswerSchemasNever), false, false},
		"DeepSeek, always":      {schemas(v1alpha1.DialectDeepSeek, v1alpha1.AnswerSchemasAlways), true, true},
		"DeepSeek's tool": {
			v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeAnthropic, BaseURL: "https://api.deepseek.com/anthropic"}, true, true,
		},
	} {
		if alone, withTools := providers.TakesSchemas(&tc.spec); alone != tc.alone || withTools != tc.withTools {
			t.Errorf("%s: %t, with tools %t; want %t, %t", name, alone, withTools, tc.alone, tc.withTools)
		}
	}
}

// TestDefaultOutput checks the output limit of requests whose Agent sets none.
func TestDefaultOutput(t *testing.T) {
	anthropic := v1alpha1.ModelProviderSpec{
		Type: v1alpha1.ProviderTypeAnthropic, Models: []v1alpha1.Model{{Name: "known", MaxOutputTokens: new(int64(64_000))}},
	}
	for name, tc := range map[string]struct {
		reason        string
		spec          v1alpha1.ModelProviderSpec
		model, effort string
		want          int64
	}{
		"chat completions": {"the endpoint decides", v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI}, "m", "", 0},
		"messages":         {"the protocol requires a limit", anthropic, "claude-sonnet-4-5", "", 8192},
		"thoughts":         {"the budget for thinking is added", anthropic, "claude-sonnet-4-5", "medium", 16_384},
		"adaptive":         {"the model has no budget for its thoughts", anthropic, "claude-opus-4-8", "high", 8192},
		"declared":         {"the limit of the model counts", anthropic, "known", "high", 64_000},
	} {
		if got := providers.DefaultOutput(&tc.spec, tc.model, tc.effort); got != tc.want {
			t.Errorf("%s: %d tokens, want %d: %s", name, got, tc.want, tc.reason)
		}
	}
}
