package controller

import (
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestParametersOfAnAgent checks that the finding names the models of the chain that cannot fulfill a parameter, and
// that it does not hold if no model can fulfill its parameters.
func TestParametersOfAnAgent(t *testing.T) {
	const (
		seedless = `Agent spec.models[1].parameters.seed: ModelProvider "b": the Messages protocol has no seed: remove it`
		stopless = `Agent spec.models[0].parameters.stopSequences: ModelProvider "a": model "o3" refuses them: remove them, ` +
			`or set requests.stopSequences to "On" if it accepts them`
		all    = "True Resolved: all models of the chain can be used"
		part   = "True PartiallyResolved: turns use only a part of the chain: "
		silent = "True PartiallyResolved: no endpoint answers whose model can fulfill its parameters, " +
			"and turns try those that exist: "
		refused  = "False UnsupportedParameter: "
		notReady = "False ProviderNotReady: "
		bFaulty  = `ModelProvider "b" is not ready: the reason in words`
		bMissing = `ModelProvider "b" does not exist`
		aSilent  = `ModelProvider "a" does not answer (EndpointUnreachable)`
		bSilent  = `ModelProvider "b" does not answer (EndpointUnreachable)`
	)
	stopped := &v1alpha1.ModelParameters{StopSequences: []string{"END"}}
	seeded := &v1alpha1.ModelParameters{Seed: new(int64(1))}
	withSpec := func(name, reason string, spec v1alpha1.ModelProviderSpec) client.Object {
		p := providerOf(name, reason, time.Hour)
		p.(*v1alpha1.ModelProvider).Spec = spec
		return p
	}
	a := func(reason string) client.Object {
		return withSpec("a", reason, v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI, BaseURL: "https://api.openai.com/v1"})
	}
	b := func(reason string) client.Object {
		return withSpec("b", reason, v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeAnthropic})
	}
	const isReady, unreachable = v1alpha1.ReasonReady, v1alpha1.ReasonEndpointUnreachable
	for name, tc := range map[string]struct {
		because    string
		ofA, ofB   *v1alpha1.ModelParameters
		a, b       client.Object
		wantStatus string
	}{
		"none":              {"no parameter is set", nil, nil, a(isReady), b(isReady), all},
		"fulfilled":         {"each model can do it", seeded, stopped, a(isReady), b(isReady), all},
		"refused":           {"the fallback cannot do it", nil, seeded, a(isReady), b(isReady), part + seedless},
		"both refused":      {"the message names both", stopped, seeded, a(isReady), b(isReady), refused + stopless + "; " + seedless},
		"only one exists":   {"no model that exists can do it", stopped, nil, a(isReady), nil, refused + stopless + "; " + bMissing},
		"another is absent": {"the message names both faults", nil, stopped, a(isReady), nil, part + bMissing},
		"silent, refused": {
			"no request would be sent", stopped, seeded, a(unreachable), b(unreachable),
			refused + stopless + "; " + seedless + "; " + aSilent + "; " + bSilent,
		},
		"silent, one refused": {
			"the other one is tried", stopped, nil, a(unreachable), b(unreachable), silent + stopless + "; " + aSilent + "; " + bSilent,
		},
		"ready, refused; another lacks its key": {
			"turns wait for the key of the only model that can do it", stopped, nil, a(isReady), b(v1alpha1.ReasonSecretNotFound),
			notReady + stopless + "; " + bFaulty,
		},
		"ready, refused; another is not checked yet": {
			"turns wait for the check of the only model that can do it", stopped, nil, a(isReady), b(""),
			notReady + stopless + `; ModelProvider "b" is not checked yet`,
		},
		"ready, refused; another does not answer": {
			"each Turn tries the only model that can do it", stopped, nil, a(isReady), b(unreachable), silent + stopless + "; " + bSilent,
		},
		"not checked yet, refused; another does not answer": {
			"no Turn waits for a model that cannot do it", stopped, nil, a(""), b(unreachable),
			silent + stopless + `; ModelProvider "a" is not checked yet; ` + bSilent,
		},
		"no key, both refused": {
			"the key would not help", stopped, seeded, a(v1alpha1.ReasonSecretNotFound), b(isReady),
			refused + stopless + "; " + seedless + `; ModelProvider "a" is not ready: the reason in words`,
		},
		"another fault": {
			"the fault of the only model that can do it gives the reason", stopped, nil, nil, nil,
			`False ProviderNotFound: ModelProvider "a" does not exist; ` + bMissing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			agent := subAgent("desk")
			agent.Spec.Models = []v1alpha1.ModelReference{
				{ProviderRef: v1alpha1.SharedReference{Name: "a"}, Model: "o3", Parameters: tc.ofA},
				{ProviderRef: v1alpha1.SharedReference{Name: "b"}, Model: "claude-sonnet-4-5", Parameters: tc.ofB},
			}
			objects := slices.DeleteFunc([]client.Object{agent, tc.a, tc.b}, func(o client.Object) bool { return o == nil })
			clock := func() time.Time { return now }
			r := &AgentReconciler{Client: inMemory(t, objects...), Now: clock, ServerClock: clock, ProbeInterval: time.Minute}
			found, err := r.resolveModels(t.Context(), agent)
			status := map[bool]string{true: "True ", false: "False "}[found.holds]
			if got := status + found.reason + ": " + found.message; err != nil || got != tc.wantStatus {
				t.Errorf("got %q, error %v; want %q: %s", got, err, tc.wantStatus, tc.because)
			}
		})
	}
}
