package prepare_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// TestTextsForModels checks which texts of a profile are in the prompt of a model.
func TestTextsForModels(t *testing.T) {
	all := []prepare.ModelTexts{
		{Models: []string{"qwen*", "small"}, Behavior: new("Think in short steps."), Contributions: []prompt.Contribution{
			{Name: "qwen", Text: "The model is small."},
		}},
		{Models: []string{"router:*"}, ToolsText: new("Call one tool at a time.")},
		{Models: []string{"*"}, Behavior: new("")},
	}
	const (
		behavior = "Think in short steps."
		tools    = "Call one tool at a time."
		qwen     = "The model is small."
		own      = "Own behavior."
		profile  = "Own text."
	)
	texts := []string{behavior, tools, qwen, own, profile}
	for name, tc := range map[string]struct {
		reason, provider, model string
		want                    []string
	}{
		"pattern":        {"contributions are added, and overrides replace", "main", "qwen3:8b", []string{behavior, qwen, profile}},
		"name":           {"a pattern may be a name", "main", "small", []string{behavior, qwen, profile}},
		"provider":       {"texts without an override stay", "router", "gpt-5", []string{tools, own, profile}},
		"first entry":    {"only the first entry that matches applies", "router", "qwen3:8b", []string{behavior, qwen, profile}},
		"all others":     {"an override may be empty", "main", "gpt-5", []string{profile}},
		"colon in names": {"the pattern router:* also matches this model name", "main", "router:x", []string{tools, own, profile}},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(func(in *prepare.Input) {
				in.Provider, in.Model, in.Tools = tc.provider, tc.model, []prompt.Tool{{Name: "find"}}
				in.Profile.Behavior, in.Profile.ForModels = new(own), all
				in.Profile.Contributions = []prompt.Contribution{{Name: "profile", Text: profile}}
			})
			system := mustPrepare(t, in).Messages[0].Content
			for _, text := range texts {
				want := false
				for _, w := range tc.want {
					want = want || w == text
				}
				if strings.Contains(system, text) != want {
					t.Errorf("the prompt contains %q: %t, want %t: %s\n%s", text, !want, want, tc.reason, system)
				}
			}
		})
	}
}

// TestFaultInTextsForModels checks that a fault is found with every model.
func TestFaultInTextsForModels(t *testing.T) {
	_, err := prepare.Prepare(input(func(in *prepare.Input) {
		in.Profile.ForModels = []prepare.ModelTexts{
			{Models: []string{"a"}, Behavior: new("Be kind.")}, {Models: []string{"b"}, ToolsText: new("Ask {{ .nobody }}.")},
		}
	}))
	const want = "PromptProfile spec.forModels[1].overrides.tools:1:8: "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Prepare: %v, want %s...", err, want)
	}
}
