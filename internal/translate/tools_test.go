package translate_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

func TestInputWithToolPolicy(t *testing.T) {
	agent := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{
		ToolPolicy: &v1alpha1.ToolPolicy{
			ArgumentValidation: v1alpha1.ArgumentValidationOff, Selection: v1alpha1.ToolSelectionSemantic, MaxToolsPerTurn: 3,
			Execution: v1alpha1.ToolExecutionSequential, Effects: v1alpha1.AllowedEffectsReadOnly,
		},
		Context:       &v1alpha1.AgentContext{Compaction: v1alpha1.CompactionOff, WarnPercent: 10, CompactPercent: 20},
		ReasoningText: v1alpha1.ReasoningTextJournal, ReflectEveryTurns: 4,
	}}
	spec := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{
		WebMode: v1alpha1.WebModeOn, TopK: new(int32(5)),
		Output: &v1alpha1.TurnOutput{Schema: apiextensionsv1.JSON{Raw: []byte(`{"type":"object"}`)}},
	}}
	got, err := translate.Input(spec, agent, nil, nil, preparation)
	want := turn.Input{
		Selection: tool.Selection{Most: 3, Semantic: true}, TopK: 5,
		Config: loop.Config{
			Policy:  loop.Policy{ReadOnly: true, Sequential: true, Unvalidated: true},
			Context: loop.ContextPolicy{WarnPercent: 10, CompactPercent: 20}, KeepReasoning: true,
		},
		Output: json.RawMessage(`{"type":"object"}`), ReflectEvery: 4,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(turn.Input{}, "Preparation", "Limits", "Limit", "Timeout",
		"ShowCitations")); diff != "" || err != nil {
		t.Errorf("Input (error %v): -want +got:\n%s", err, diff)
	}
}

func TestContextWarningComesBeforeCompaction(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		context v1alpha1.AgentContext
		want    loop.ContextPolicy
	}{
		"nothing": {"the defaults", v1alpha1.AgentContext{}, loop.ContextPolicy{Compact: true, WarnPercent: 70, CompactPercent: 90}},
		"compact only": {
			"the default of the warning is lowered to compactPercent",
			v1alpha1.AgentContext{CompactPercent: 50},
			loop.ContextPolicy{Compact: true, WarnPercent: 50, CompactPercent: 50},
		},
		"warn only": {
			"the percentage that is set",
			v1alpha1.AgentContext{WarnPercent: 30},
			loop.ContextPolicy{Compact: true, WarnPercent: 30, CompactPercent: 90},
		},
	} {
		t.Run(name, func(t *testing.T) {
			agent := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Context: &tc.context}}
			got, err := translate.Input(&v1alpha1.Turn{}, agent, nil, nil, preparation)
			if diff := cmp.Diff(tc.want, got.Context); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

func TestInputWithDeclaredModel(t *testing.T) {
	window, output := int64(8192), int64(1024)
	for name, tc := range map[string]struct {
		reason       string
		thinking     v1alpha1.ThinkingLevel
		capabilities []v1alpha1.ModelCapability
		want         loop.Candidate
	}{
		"no capability": {"a model without the capability Reasoning gets no effort", v1alpha1.ThinkingHigh, nil, loop.Candidate{}},
		"reasoning": {
			"the thinking level becomes the effort", v1alpha1.ThinkingMedium,
			[]v1alpha1.ModelCapability{v1alpha1.CapabilityReasoning},
			loop.Candidate{Parameters: model.Parameters{Effort: "medium"}},
		},
		"off": {
			"the provider's default applies", v1alpha1.ThinkingOff,
			[]v1alpha1.ModelCapability{v1alpha1.CapabilityReasoning},
			loop.Candidate{},
		},
		"turned off": {
			"a model that reasons by default must not", v1alpha1.ThinkingOff,
			[]v1alpha1.ModelCapability{v1alpha1.CapabilityReasoningOff},
			loop.Candidate{Parameters: model.Parameters{Effort: model.EffortNone}},
		},
		"only a switch to turn it off": {
			"the setting has no levels", v1alpha1.ThinkingHigh,
			[]v1alpha1.ModelCapability{v1alpha1.CapabilityReasoningOff},
			loop.Candidate{},
		},
		"structured": {
			"the model can restrict its answer to a schema", "",
			[]v1alpha1.ModelCapability{v1alpha1.CapabilityStructuredOutput},
			loop.Candidate{StructuredOutput: true, SchemaExcludesTools: true}, // as the dialect Generic does
		},
	} {
		t.Run(name, func(t *testing.T) {
			link := translate.Link{
				Reference: v1alpha1.ModelReference{Model: "small"},
				Object: &v1alpha1.ModelProvider{Spec: v1alpha1.ModelProviderSpec{
					Models: []v1alpha1.Model{{
						Name: "small", ContextWindow: &window, MaxOutputTokens: &output,
						Capabilities: tc.capabilities,
					}},
				}},
			}
			agent := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Thinking: tc.thinking, Models: []v1alpha1.ModelReference{link.Reference}}}
			in, err := translate.Input(&v1alpha1.Turn{}, agent, []translate.Link{link}, nil, preparation)
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Model, tc.want.ContextWindow, tc.want.MaxOutputTokens = "small", window, output
			if diff := cmp.Diff(tc.want, in.Chain[0]); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
