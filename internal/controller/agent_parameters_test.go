package controller

import (
	"testing"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestParametersOfAnAgent checks that an Agent names the models of its chain that cannot fulfill a parameter, and is
// refused if no model can.
func TestParametersOfAnAgent(t *testing.T) {
	const seedless = `Agent spec.models[1].parameters.seed: ModelProvider "b": the Messages protocol has no seed: remove it`
	const stopless = `Agent spec.models[0].parameters.stopSequences: ModelProvider "a": model "o3" refuses them: remove them`
	stopped := &v1alpha1.ModelParameters{StopSequences: []string{"END"}}
	seeded := &v1alpha1.ModelParameters{Seed: new(int64(1))}
	resolved := finding{holds: true, reason: v1alpha1.ReasonResolved, message: "all model providers exist", after: time.Second}
	for name, tc := range map[string]struct {
		because string
		a, b    *v1alpha1.ModelParameters
		models  finding
		want    finding
	}{
		"none":      {"there is no wish", nil, nil, resolved, resolved},
		"fulfilled": {"each model can do it", seeded, stopped, resolved, resolved},
		"refused": {
			"the fallback cannot do it", nil, seeded, resolved,
			finding{holds: true, reason: v1alpha1.ReasonPartiallyResolved, message: onlyPart + seedless, after: time.Second},
		},
		"both refused": {
			"the message names both", stopped, seeded, resolved,
			finding{reason: v1alpha1.ReasonUnsupportedParameter, message: stopless + "; " + seedless, after: time.Second},
		},
		"a missing fallback": {
			"the message names it as well", stopped, nil,
			finding{holds: true, reason: v1alpha1.ReasonPartiallyResolved, message: onlyPart + "other"},
			finding{holds: true, reason: v1alpha1.ReasonPartiallyResolved, message: onlyPart + stopless + "; other"},
		},
		"another fault": {
			"the first fault gives the reason", stopped, nil,
			finding{reason: "Other", message: "other"},
			finding{reason: "Other", message: stopless + "; other"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			agent := subAgent("desk")
			agent.Spec.Models = []v1alpha1.ModelReference{
				{ProviderRef: v1alpha1.SharedReference{Name: "a"}, Model: "o3", Parameters: tc.a},
				{ProviderRef: v1alpha1.SharedReference{Name: "b"}, Model: "m", Parameters: tc.b},
				{ProviderRef: v1alpha1.SharedReference{Name: "missing"}, Model: "m", Parameters: seeded},
			}
			a, b := providerOf("a", v1alpha1.ReasonReady, time.Hour), providerOf("b", v1alpha1.ReasonReady, time.Hour)
			a.(*v1alpha1.ModelProvider).Spec = v1alpha1.ModelProviderSpec{
				Type: v1alpha1.ProviderTypeOpenAI, Dialect: v1alpha1.DialectOpenAI,
			}
			b.(*v1alpha1.ModelProvider).Spec = v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeAnthropic}
			r := &AgentReconciler{Client: inMemory(t, agent, a, b)}
			if got, err := r.checkParameters(t.Context(), agent, tc.models); err != nil || got != tc.want {
				t.Errorf("%+v, error %v; want %+v: %s", got, err, tc.want, tc.because)
			}
		})
	}
}
