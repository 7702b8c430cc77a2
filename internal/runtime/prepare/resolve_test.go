package prepare_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

func TestResolve(t *testing.T) {
	chain := []prepare.ModelName{
		{Provider: "openai", Model: "small"},
		{Provider: "local", Model: "small"},
		{Provider: "local", Model: "llama3:8b"},
		{Provider: "local", Model: "large"},
	}
	const list = "openai:small, local:small, local:llama3:8b, local:large"
	for name, tc := range map[string]struct {
		reason, name string
		want         int
		err          string
	}{
		"none named":   {"the first model of the chain", "", 0, ""},
		"model":        {"the first model with that name", "small", 0, ""},
		"second":       {"a later model of the chain", "large", 3, ""},
		"provider":     {"the model of that provider", "local:small", 1, ""},
		"first colon":  {"a model's name may have colons", "local:llama3:8b", 2, ""},
		"only a colon": {"an empty provider means any provider", ":large", 3, ""},
		"split anyway": {
			"the text before the first colon is always the provider", "llama3:8b", 0,
			`Turn spec.model: "llama3:8b" is not a model of the agent's chain: use one of ` + list,
		},
		"other provider": {
			"the provider must match", "openai:large", 0,
			`Turn spec.model: "openai:large" is not a model of the agent's chain: use one of ` + list,
		},
		"only provider": {
			"the model must not be empty", "local:", 0,
			`Turn spec.model: "local:" is not a model of the agent's chain: use one of ` + list,
		},
		"case": {
			"names are exact", "Small", 0,
			`Turn spec.model: "Small" is not a model of the agent's chain: use one of ` + list,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := prepare.Resolve(tc.name, chain)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if got != tc.want || message != tc.err {
				t.Errorf("Resolve(%q) = %d, %v; want %d, %q: %s", tc.name, got, err, tc.want, tc.err, tc.reason)
			}
		})
	}
	if at, err := prepare.Resolve("", nil); at != 0 || err != nil {
		t.Errorf("Resolve without a chain = %d, %v; want 0 and no error, because the Turn names no model", at, err)
	}
}

func TestParseModelName(t *testing.T) {
	for name, want := range map[string]prepare.ModelName{
		"small": {Model: "small"}, "openai:small": {Provider: "openai", Model: "small"}, "a:b:c": {Provider: "a", Model: "b:c"},
		":b": {Model: "b"}, "a:": {Provider: "a"}, "": {}, ":": {},
	} {
		if diff := cmp.Diff(want, prepare.ParseModelName(name)); diff != "" {
			t.Errorf("ParseModelName(%q): -want +got:\n%s", name, diff)
		}
	}
}
