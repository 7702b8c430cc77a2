package translate_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// agentOffering returns an Agent whose status lists tools with these effects.
func agentOffering(effects ...v1alpha1.ToolEffect) *v1alpha1.Agent {
	a := &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: v1alpha1.AgentSpec{Tools: []v1alpha1.AgentTool{{}}}}
	a.Status.ObservedGeneration = 2
	for _, e := range effects {
		a.Status.Tools = append(a.Status.Tools, v1alpha1.ExposedTool{Effect: e})
	}
	return a
}

func TestMayAffect(t *testing.T) {
	readOnly, many := agentOffering(v1alpha1.ToolEffectReadOnly), make([]v1alpha1.ToolEffect, 128) // maxListedTools
	for i := range many {
		many[i] = v1alpha1.ToolEffectReadOnly
	}
	changed := readOnly.DeepCopy()
	changed.Generation++
	bounded := agentOffering(v1alpha1.ToolEffectDestructive)
	bounded.Spec.ToolPolicy = &v1alpha1.ToolPolicy{Effects: v1alpha1.AllowedEffectsReadOnly}
	leftOut := readOnly.DeepCopy()
	leftOut.Spec.Tools, leftOut.Status.Conditions = nil, []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTooManyObjects,
	}}
	for name, tc := range map[string]struct {
		reason string
		agent  *v1alpha1.Agent
		turn   v1alpha1.Turn
		want   bool
	}{
		"no tools":       {"the Turn has nothing to call", &v1alpha1.Agent{}, v1alpha1.Turn{}, false},
		"ReadOnly tools": {"they change nothing", readOnly, v1alpha1.Turn{}, false},
		"an Idempotent tool": {
			"it may be called",
			agentOffering(v1alpha1.ToolEffectReadOnly, v1alpha1.ToolEffectIdempotent),
			v1alpha1.Turn{},
			true,
		},
		"a Destructive tool": {"it may be called", agentOffering(v1alpha1.ToolEffectDestructive), v1alpha1.Turn{}, true},
		"effects ReadOnly":   {"calls of tools that are not ReadOnly are refused", bounded, v1alpha1.Turn{}, false},
		"PrepareOnly": {
			"nothing is called", agentOffering(v1alpha1.ToolEffectDestructive),
			v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Execution: v1alpha1.ExecutionPrepareOnly}},
			false,
		},
		"no tools in the status":           {"the tools are not known yet", agentOffering(), v1alpha1.Turn{}, true},
		"a changed Agent":                  {"its tools are not known yet", changed, v1alpha1.Turn{}, true},
		"an Agent that the cache left out": {"its tools are not known", leftOut, v1alpha1.Turn{}, true},
		"a full status":                    {"the Agent may have further tools", agentOffering(many...), v1alpha1.Turn{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := translate.MayAffect(&tc.turn, tc.agent); got != tc.want {
				t.Errorf("MayAffect = %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}
