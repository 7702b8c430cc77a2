package translate_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TestLineEndsOfTexts checks that a checkout or an editor of Windows does not change the prompt of a profile and an
// Agent whose texts are in ConfigMaps, and that the texts of a user stay as they are.
func TestLineEndsOfTexts(t *testing.T) {
	t.Parallel()
	from := v1alpha1.ContentSource{ConfigMapKeyRef: v1alpha1.ConfigMapKeyReference{Name: "texts", Key: "body.md"}}
	profile := &v1alpha1.PromptProfile{Spec: v1alpha1.PromptProfileSpec{
		Identity:         &v1alpha1.Identity{SystemPromptFrom: &from},
		InstructionsFrom: &from,
		Skills:           []v1alpha1.Skill{{Key: "refunds", ContentFrom: &from}},
		Contributions:    []v1alpha1.Contribution{{Name: "hours", ConfigMapKeyRef: &from.ConfigMapKeyRef}},
	}}
	agent := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{InstructionsFrom: &from}}
	const plain, windows = "One.\n\nTwo.\rThree.\n", "\ufeffOne.\r\n\r\nTwo.\rThree.\r\n"
	mapsWith := func(text string) translate.ConfigMaps {
		return func(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
			return translate.ConfigMapValue(ref, map[string]string{"body.md": text})
		}
	}
	made := func(text string) (all [2]any) {
		t.Helper()
		p, err := translate.Profile(t.Context(), profile, mapsWith(text))
		if err != nil {
			t.Fatal(err)
		}
		a, err := translate.Agent(t.Context(), agent, mapsWith(text))
		if err != nil {
			t.Fatal(err)
		}
		if p.Instructions != plain || p.Identity.SystemPrompt != plain || p.Skills[0].Content != plain ||
			p.Contributions[0].Text != plain || a.Instructions != plain {
			t.Errorf("want each text to be %q, have %+v and %+v", plain, p, a)
		}
		return [2]any{p, a}
	}
	if diff := cmp.Diff(made(plain), made(windows)); diff != "" {
		t.Errorf("the texts of Windows make another prompt:\n%s", diff)
	}
	turn := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{MessageFrom: &from}}
	if text, err := translate.Message(t.Context(), turn, mapsWith(windows)); text != windows || err != nil {
		t.Errorf("Message = %q, %v; want %q", text, err, windows)
	}
}
