package translate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/translate"
)

func TestJudges(t *testing.T) {
	p := &v1alpha1.PromptProfile{Spec: v1alpha1.PromptProfileSpec{Judges: []v1alpha1.Judge{
		{Name: "faithful", Type: v1alpha1.JudgeFaithfulness},
		{Name: "polite", Type: v1alpha1.JudgeCustom, Prompt: "Be polite.", Threshold: "0.85", ModelRef: &v1alpha1.JudgeModelReference{
			ProviderRef: v1alpha1.ObjectReference{Name: "other"}, Model: "large",
		}},
	}}}
	want := []judge.Judge{
		{Name: "faithful", Kind: judge.Faithfulness, Threshold: 70},
		{Name: "polite", Kind: judge.Custom, Prompt: "Be polite.", Threshold: 85, Provider: "other", Model: "large"},
	}
	got, err := translate.Judges(p)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("judges (error %v): -want +got:\n%s", err, diff)
	}
	p.Spec.Judges[1].Threshold = "1.5"
	const message = `PromptProfile spec.judges[1].threshold: "1.5" must be a decimal number from 0 to 1 with at most two digits ` +
		`after the point, such as 0.75`
	if _, err := translate.Judges(p); err == nil || err.Error() != message {
		t.Errorf("error %v, want %s", err, message)
	}
}
