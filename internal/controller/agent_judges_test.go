package controller

import (
	"testing"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestParametersOfModelsAfterTheTurn checks that a finding names a parameter that a model of the judges or of learning
// cannot fulfill.
func TestParametersOfModelsAfterTheTurn(t *testing.T) {
	seeded := &v1alpha1.ModelParameters{Seed: new(int64(1))}
	const seedless = `ModelProvider "a": the Messages protocol has no seed: remove it`
	for name, tc := range map[string]struct {
		because    string
		parameters *v1alpha1.ModelParameters
		judging    string
		learning   string
	}{
		"none": {
			"no parameter is set", nil, "True Resolved the judges of the PromptProfile evaluate answers",
			"True Resolved memories are learned from turns",
		},
		"not sent": {
			"questions have no stop sequences", &v1alpha1.ModelParameters{StopSequences: []string{" "}},
			"True Resolved the judges of the PromptProfile evaluate answers", "True Resolved memories are learned from turns",
		},
		"refused": {
			"each request would fail", seeded,
			"False UnsupportedParameter Agent spec.evaluation.models[1].parameters.seed: " + seedless,
			"False UnsupportedParameter Agent spec.memory.learning.models[1].parameters.seed: " + seedless,
		},
	} {
		t.Run(name, func(t *testing.T) {
			models := []v1alpha1.ModelReference{
				{ProviderRef: v1alpha1.SharedReference{Name: "b"}, Model: "m", Parameters: seeded},
				{ProviderRef: v1alpha1.SharedReference{Name: "a"}, Model: "m", Parameters: tc.parameters},
			}
			agent := subAgent("desk")
			// spec.thinking applies only to spec.models.
			agent.Spec.Thinking, agent.Spec.PromptProfileRef.Name = v1alpha1.ThinkingLow, "calm"
			agent.Spec.Evaluation = &v1alpha1.AgentEvaluation{Models: models}
			agent.Spec.Memory = &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{Models: models}}
			a, b := providerOf("a", v1alpha1.ReasonReady, time.Hour), providerOf("b", v1alpha1.ReasonReady, time.Hour)
			a.(*v1alpha1.ModelProvider).Spec = v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeAnthropic}
			b.(*v1alpha1.ModelProvider).Spec = v1alpha1.ModelProviderSpec{
				Type: v1alpha1.ProviderTypeOpenAI, Dialect: v1alpha1.DialectCohere,
				Models: []v1alpha1.Model{{Name: "m", Capabilities: []v1alpha1.ModelCapability{v1alpha1.CapabilityReasoning}}},
			}
			profile := &v1alpha1.PromptProfile{}
			profile.Namespace, profile.Name = agent.Namespace, "calm"
			profile.Spec.Judges = []v1alpha1.Judge{{Name: "relevant"}}
			r := &AgentReconciler{Client: inMemory(t, agent, a, b, profile)}
			judging, err := r.resolveJudges(t.Context(), agent)
			if got := textOf(judging); err != nil || got != tc.judging {
				t.Errorf("judges: %s, error %v; want %s: %s", got, err, tc.judging, tc.because)
			}
			learning, err := r.resolveLearning(t.Context(), agent)
			if got := textOf(learning); err != nil || got != tc.learning {
				t.Errorf("learning: %s, error %v; want %s: %s", got, err, tc.learning, tc.because)
			}
		})
	}
}

// textOf returns a finding as a text.
func textOf(f *finding) string {
	return map[bool]string{true: "True ", false: "False "}[f.holds] + f.reason + " " + f.message
}
