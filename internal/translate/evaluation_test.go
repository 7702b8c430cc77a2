package translate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/translate"
)

func TestIsSampled(t *testing.T) {
	sampled := func(percent *int32) (n int) {
		a := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Evaluation: &v1alpha1.AgentEvaluation{SamplePercent: percent}}}
		for i := range 1000 {
			turn := &v1alpha1.Turn{}
			turn.UID = types.UID(fmt.Sprintf("uid-%d", i))
			first := translate.IsSampled(a, turn)
			if first != translate.IsSampled(a, turn) {
				t.Fatalf("IsSampled differs between two calls for the Turn %s", turn.UID)
			}
			if first {
				n++
			}
		}
		return n
	}
	for percent, want := range map[int32][2]int{0: {0, 0}, 10: {70, 130}, 50: {450, 550}, 100: {1000, 1000}} {
		if n := sampled(&percent); n < want[0] || n > want[1] {
			t.Errorf("%d of 1000 Turns are sampled at %d %%, want %d to %d", n, percent, want[0], want[1])
		}
	}
	if n := sampled(nil); n != 1000 {
		t.Errorf("%d of 1000 Turns are sampled by default, want all", n)
	}
	if translate.IsSampled(&v1alpha1.Agent{}, &v1alpha1.Turn{}) {
		t.Error("a Turn of an Agent without spec.evaluation is sampled")
	}
}

// TestEvaluationsFitIntoAStatus checks the bounds on which test/api relies.
func TestEvaluationsFitIntoAStatus(t *testing.T) {
	for _, character := range []string{"a", "\U0001F680", "\x01", "<"} {
		long := strings.Repeat(character, 300)
		one := task.Evaluation{Evaluation: turnrecord.Evaluation{Judge: "j", Provider: "p", Model: long}, Reason: long}
		for _, e := range translate.Evaluations([]task.Evaluation{one, one, one, one, one}) {
			for field, text := range map[string]string{"reason": e.Reason, "model": e.Model} {
				if data, err := json.Marshal(text); err != nil || len(data) > 602 || text == "" {
					t.Errorf("%s of %q: %d bytes (error %v), want at most 602 with the quotes", field, character, len(data), err)
				}
			}
		}
		if n := len(translate.Evaluations([]task.Evaluation{one, one, one, one, one})); n != 4 {
			t.Errorf("%d evaluations, want 4", n)
		}
	}
}

func TestJudgesAskOnlyModelsOfTheAgent(t *testing.T) {
	ref := func(namespace, provider, model string) v1alpha1.ModelReference {
		return v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: provider, Namespace: namespace}, Model: model}
	}
	a := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Models: []v1alpha1.ModelReference{ref("", "main", "m")}}}
	a.Namespace = "team"
	a.Spec.Evaluation = &v1alpha1.AgentEvaluation{}
	expect := func(provider, model string, want bool) {
		t.Helper()
		if i := translate.JudgeModel(a, provider, model); (i >= 0) != want {
			t.Errorf("JudgeModel(%s, %s) = %d, want an index: %t", provider, model, i, want)
		}
	}
	expect("main", "m", true)
	expect("main", "larger", false)
	a.Spec.Evaluation.Models = []v1alpha1.ModelReference{ref("", "judges", "j"), ref("platform", "shared", "s"), ref("team", "own", "o")}
	expect("main", "m", false)
	expect("judges", "j", true)
	expect("own", "o", true)
	expect("shared", "s", false) // a modelRef names a ModelProvider in the Agent's namespace
}
