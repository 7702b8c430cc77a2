package wildcard_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/wildcard"
)

func TestMatchesOne(t *testing.T) {
	many := strings.Repeat("*a", 64) + "b"
	for name, tc := range map[string]struct {
		reason   string
		patterns []string
		name     string
		want     bool
	}{
		"same":               {"without wildcards, the name must be the same", []string{"gpt-5"}, "gpt-5", true},
		"longer":             {"a prefix is not enough", []string{"gpt-5"}, "gpt-5-mini", false},
		"shorter":            {"the whole pattern must match", []string{"gpt-5-mini"}, "gpt-5", false},
		"case":               {"matching is case-sensitive", []string{"GPT-*"}, "gpt-5", false},
		"any":                {"a star is any text", []string{"*"}, "qwen/qwen3:8b", true},
		"nothing":            {"a star may be an empty text", []string{"a*b*"}, "ab", true},
		"empty name":         {"a star matches an empty name", []string{"*"}, "", true},
		"one":                {"a question mark is one character", []string{"gpt-?"}, "gpt-ü", true},
		"not two":            {"a question mark is not two characters", []string{"gpt-?"}, "gpt-55", false},
		"second try":         {"the text of a star may itself contain what follows the star", []string{"*-mini"}, "a-mini-b-mini", true},
		"second pattern":     {"one of several patterns is enough", []string{"a", "b*"}, "bc", true},
		"no pattern":         {"without patterns nothing matches", nil, "a", false},
		"many stars":         {"the time grows at most with the product of the lengths", []string{many}, strings.Repeat("a", 4096), false},
		"special characters": {"other characters have no special meaning", []string{"[a].^"}, "[a].^", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := wildcard.MatchesOne(tc.patterns, tc.name); got != tc.want {
				t.Errorf("MatchesOne = %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}
