package providers

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestDialectOfASpec(t *testing.T) {
	no, yes := false, true
	mistral := openai.DialectOf("Mistral", "")
	for name, tc := range map[string]struct {
		reason string
		spec   v1alpha1.ModelProviderSpec
		want   openai.Dialect
	}{
		"nothing": {
			"the host is not known",
			v1alpha1.ModelProviderSpec{BaseURL: "http://llm:8000/v1"},
			openai.DialectOf(openai.Generic, ""),
		},
		"host": {"the host is known", v1alpha1.ModelProviderSpec{BaseURL: "https://api.mistral.ai/v1"}, mistral},
		"name": {
			"the name counts more than the host",
			v1alpha1.ModelProviderSpec{BaseURL: "https://api.openai.com/v1", Dialect: v1alpha1.DialectMistral},
			mistral,
		},
		"Generic": {
			"Generic can be selected",
			v1alpha1.ModelProviderSpec{BaseURL: "https://api.openai.com/v1", Dialect: v1alpha1.DialectGeneric},
			openai.DialectOf(openai.Generic, ""),
		},
		"no option": {
			"an empty object replaces nothing",
			v1alpha1.ModelProviderSpec{Dialect: v1alpha1.DialectMistral, Requests: &v1alpha1.RequestOptions{}},
			mistral,
		},
		"all options of Mistral replaced": {
			"each field replaces its setting",
			v1alpha1.ModelProviderSpec{Dialect: v1alpha1.DialectMistral, Requests: &v1alpha1.RequestOptions{
				OutputLimit: v1alpha1.OutputLimitMaxCompletionTokens, SystemMessages: v1alpha1.SystemMessagesInPlace,
				MessageNames: v1alpha1.SwitchOn, StreamOptions: v1alpha1.SwitchOn, ToolCallIDs: v1alpha1.ToolCallIDsAny,
				StrictSchemas: v1alpha1.SwitchOff, ParallelToolCalls: v1alpha1.SwitchOff, DeveloperRole: v1alpha1.SwitchOff,
				ReturnedData: v1alpha1.ReturnedDataReasoningContent, Thinking: v1alpha1.ThinkingFormEffort,
			}},
			openai.Dialect{
				ParallelCalls: &no, Returned: openai.ReturnReasoningContent, Seed: mistral.Seed, Tiers: mistral.Tiers,
				OutputDimension: true,
			},
		},
		"deployments": {
			"the model is in the path",
			v1alpha1.ModelProviderSpec{
				Dialect: v1alpha1.DialectAzureOpenAI, Requests: &v1alpha1.RequestOptions{APIVersion: "2024-10-21"},
			},
			openai.Dialect{APIVersion: "2024-10-21", ForbidsCalls: true},
		},
		"nothing returned": {
			"the endpoint does not need its data again",
			v1alpha1.ModelProviderSpec{Dialect: v1alpha1.DialectOpenRouter, Requests: &v1alpha1.RequestOptions{
				ReturnedData: v1alpha1.ReturnedDataNothing,
			}},
			func() openai.Dialect {
				d := openai.DialectOf("OpenRouter", "")
				d.Returned = openai.ReturnNothing
				return d
			}(),
		},
		"all options of OpenAI replaced": {
			"each field replaces its setting",
			v1alpha1.ModelProviderSpec{Dialect: v1alpha1.DialectOpenAI, Requests: &v1alpha1.RequestOptions{
				OutputLimit: v1alpha1.OutputLimitMaxTokens, SystemMessages: v1alpha1.SystemMessagesBeforeReplies,
				MessageNames: v1alpha1.SwitchOff, StreamOptions: v1alpha1.SwitchOff, ToolCallIDs: v1alpha1.ToolCallIDsPlain,
				StrictSchemas: v1alpha1.SwitchOn, ParallelToolCalls: v1alpha1.SwitchOn, DeveloperRole: v1alpha1.SwitchOn,
				ExtraFields: []v1alpha1.ExtraField{{Name: "top_k", Value: "20"}},
			}},
			openai.Dialect{
				UseMaxTokens: true, System: openai.SystemBeforeReplies, NoNames: true, NoStreamOptions: true,
				CallIDs:       endpoint.CallIDsPlain,
				StrictSchemas: true, ParallelCalls: &yes, DeveloperRole: true, Extra: []model.ExtraField{{Name: "top_k", Value: "20"}},
				Tiers: openai.DialectOf("OpenAI", "").Tiers, ForbidsCalls: true,
			},
		},
		"parameters of DeepSeek replaced": {
			"each field replaces its setting",
			v1alpha1.ModelProviderSpec{Dialect: v1alpha1.DialectDeepSeek, Requests: &v1alpha1.RequestOptions{
				AnswerSchemas: v1alpha1.AnswerSchemasAlways, AnswerSchemaForm: v1alpha1.AnswerSchemaFormJSONObject,
				Seed: v1alpha1.SeedParameterRandomSeed, ServiceTiers: v1alpha1.SwitchOn, StopSequences: v1alpha1.SwitchOff,
				EndMarks: v1alpha1.SwitchOff,
			}},
			func() openai.Dialect {
				d := openai.DialectOf("DeepSeek", "")
				d.NoSchemas, d.SchemaInJSONObject, d.Seed, d.Tiers = false, true, openai.SeedRandom, nil
				d.Stop, d.OpenEnd = openai.StopRefused, true
				return d
			}(),
		},
		"parameters of Cohere replaced": {
			"each switch has its other position",
			v1alpha1.ModelProviderSpec{Dialect: v1alpha1.DialectCohere, Requests: &v1alpha1.RequestOptions{
				AnswerSchemas: v1alpha1.AnswerSchemasNever, AnswerSchemaForm: v1alpha1.AnswerSchemaFormJSONSchema,
				Seed: v1alpha1.SeedParameterNone, ServiceTiers: v1alpha1.SwitchOff, StopSequences: v1alpha1.SwitchOn,
				EndMarks: v1alpha1.SwitchOn,
			}},
			func() openai.Dialect {
				d := openai.DialectOf("Cohere", "")
				d.NoSchemas, d.SchemasExcludeTools, d.SchemaInJSONObject, d.Seed = true, false, false, openai.SeedNone
				return d
			}(),
		},
		"thinking": {
			"a server may have another form",
			v1alpha1.ModelProviderSpec{Dialect: v1alpha1.DialectVLLM, Requests: &v1alpha1.RequestOptions{
				Thinking: v1alpha1.ThinkingFormChatTemplate,
			}},
			func() openai.Dialect {
				d := openai.DialectOf("VLLM", "")
				d.Thinking = openai.ThinkingTemplate
				return d
			}(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.Accepts = openai.DialectOf(string(tc.spec.Dialect), tc.spec.BaseURL).Accepts // TestAccepts checks the rest
			if diff := cmp.Diff(tc.want, dialectOf(&tc.spec)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestAnthropicOptions checks the options of the adapter that are made from a spec.
func TestAnthropicOptions(t *testing.T) {
	no, most := false, int64(64000)
	models := []v1alpha1.Model{{Name: "a", MaxOutputTokens: &most}, {Name: "b"}}
	for name, tc := range map[string]struct {
		reason string
		spec   v1alpha1.ModelProviderSpec
		want   anthropic.Options
	}{
		"nothing": {"the model decides", v1alpha1.ModelProviderSpec{}, anthropic.Options{MaxOutput: map[string]int{}}},
		"all": {
			"each field has its setting",
			v1alpha1.ModelProviderSpec{Models: models, Requests: &v1alpha1.RequestOptions{
				Thinking: v1alpha1.ThinkingFormAdaptive, StrictSchemas: v1alpha1.SwitchOn, ParallelToolCalls: v1alpha1.SwitchOff,
				ExtraFields: []v1alpha1.ExtraField{{Name: "top_k", Value: "20"}},
			}},
			anthropic.Options{
				MaxOutput: map[string]int{"a": 64000}, Thinking: anthropic.ThinkingAdaptive, StrictSchemas: true, ParallelCalls: &no,
				Extra: []model.ExtraField{{Name: "top_k", Value: "20"}},
			},
		},
		"budget": {
			"thinking has the other form",
			v1alpha1.ModelProviderSpec{Requests: &v1alpha1.RequestOptions{Thinking: v1alpha1.ThinkingFormBudget}},
			anthropic.Options{MaxOutput: map[string]int{}, Thinking: anthropic.ThinkingBudget},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(&tc.want, anthropicOptions(&tc.spec)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
