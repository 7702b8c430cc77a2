package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/objectbudget"
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

// leftOut returns an object as the cache holds it without its content.
func leftOut[T client.Object](t *testing.T, o T) T {
	t.Helper()
	o.SetAnnotations(map[string]string{"a": strings.Repeat("x", 8<<10)})
	transform := objectbudget.New(bytebudget.New(1<<10, 1)).Transform(func(in any) (any, error) { return in, nil })
	out, err := transform(o)
	kept, ok := out.(T)
	if err != nil || !ok || !objectbudget.IsLeftOut(kept) {
		t.Fatalf("the cache holds %T, error %v; want an object without its content", out, err)
	}
	return kept
}

// TestObjectsLeftOutAfterTheTurn checks that the findings about judges, learning and embeddings report an object that
// the cache holds without its content.
func TestObjectsLeftOutAfterTheTurn(t *testing.T) {
	notReady := `False ProviderNotReady ModelProvider "b" is not ready: ` + objectbudget.Message("helpdesk")
	const noJudges = `False NoJudges PromptProfile "calm" cannot be used: see ProfileResolved`
	for name, tc := range map[string]struct {
		noProvider, noProfile      bool
		judges, learns, embeddings string
	}{
		"ModelProvider": {true, false, notReady, notReady, notReady},
		"PromptProfile": {
			false, true, noJudges, "True Resolved memories are learned from turns",
			"True Resolved texts are compared by their meaning and their words",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ref := v1alpha1.SharedReference{Name: "b"}
			agent := subAgent("desk")
			agent.Spec.PromptProfileRef.Name = "calm"
			models := []v1alpha1.ModelReference{
				{ProviderRef: v1alpha1.SharedReference{Name: "a"}, Model: "m"}, {ProviderRef: ref, Model: "m"},
			}
			agent.Spec.Evaluation = &v1alpha1.AgentEvaluation{Models: models}
			agent.Spec.Memory = &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{Models: models}}
			agent.Spec.Embeddings = &v1alpha1.AgentEmbeddings{ProviderRef: ref, Model: "m"}
			a, _ := providerOf("a", v1alpha1.ReasonReady, time.Hour).(*v1alpha1.ModelProvider)
			b, _ := providerOf("b", v1alpha1.ReasonReady, time.Hour).(*v1alpha1.ModelProvider)
			a.Spec.Type, b.Spec.Type = v1alpha1.ProviderTypeOpenAI, v1alpha1.ProviderTypeOpenAI
			profile := &v1alpha1.PromptProfile{}
			profile.Namespace, profile.Name = agent.Namespace, "calm"
			profile.Spec.Judges = []v1alpha1.Judge{{Name: "relevant"}}
			if tc.noProvider {
				b = leftOut(t, b)
			}
			if tc.noProfile {
				profile = leftOut(t, profile)
			}
			r := &AgentReconciler{Client: inMemory(t, agent, a, b, profile)}
			for want, resolve := range map[string]func(context.Context, *v1alpha1.Agent) (*finding, error){
				"judges: " + tc.judges: r.resolveJudges, "learning: " + tc.learns: r.resolveLearning,
				"embeddings: " + tc.embeddings: r.resolveEmbeddings,
			} {
				f, err := resolve(t.Context(), agent)
				about, _, _ := strings.Cut(want, ": ")
				if got := about + ": " + textOf(f); err != nil || got != want {
					t.Errorf("got %q, error %v; want %q", got, err, want)
				}
			}
		})
	}
}

// TestModelOfAJudgeThatIsNotAllowed checks that the advice fits the list of models that the judges ask.
func TestModelOfAJudgeThatIsNotAllowed(t *testing.T) {
	const begin = `False JudgeModelNotAllowed judge "relevant" of PromptProfile "calm" names model a/huge, which is not in `
	small := []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: "a"}, Model: "small"}}
	for name, tc := range map[string]struct {
		models []v1alpha1.ModelReference
		want   string
	}{
		"models for evaluation": {
			small, begin + "spec.evaluation.models: add it there; otherwise the judge asks the models in this list",
		},
		"models of the Agent": {
			nil, begin + "spec.models: list all models that judges may ask, including this one, in spec.evaluation.models; " +
				"otherwise the judge asks the models in spec.models",
		},
	} {
		t.Run(name, func(t *testing.T) {
			agent := subAgent("desk")
			agent.Spec.PromptProfileRef.Name, agent.Spec.Models = "calm", small
			agent.Spec.Evaluation = &v1alpha1.AgentEvaluation{Models: tc.models}
			profile := &v1alpha1.PromptProfile{}
			profile.Namespace, profile.Name = agent.Namespace, "calm"
			profile.Spec.Judges = []v1alpha1.Judge{{Name: "relevant", ModelRef: &v1alpha1.JudgeModelReference{
				ProviderRef: v1alpha1.ObjectReference{Name: "a"}, Model: "huge",
			}}}
			r := &AgentReconciler{Client: inMemory(t, agent, profile, providerOf("a", v1alpha1.ReasonReady, time.Hour))}
			f, err := r.resolveJudges(t.Context(), agent)
			if got := textOf(f); err != nil || got != tc.want {
				t.Errorf("got %q, error %v; want %q", got, err, tc.want)
			}
		})
	}
}

// textOf returns a finding as a text, or an empty text if there is none.
func textOf(f *finding) string {
	if f == nil {
		return ""
	}
	return map[bool]string{true: "True ", false: "False "}[f.holds] + f.reason + " " + f.message
}
