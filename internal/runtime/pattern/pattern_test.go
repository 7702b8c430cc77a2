package pattern_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

func TestCompile(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, text, err string
		size              int
	}{
		"literal":            {"each character counts", "abc", "", 3},
		"classes":            {"a class looks for one character", `\d{4}-[a-z]+`, "", 7},
		"nested repetitions": {"nested repetitions multiply", "(?:(?:ab){10}){20}", "", 400},
		"too large":          {"a search would take too long", "(?:a{40}b{40}){25}c", "it has more than 2000 characters", 0},
		"too long": {
			"it would take too much memory", strings.Repeat("a", 1025), "it has 1025 bytes, and the maximum is 1024",
			0,
		},
		"no expression": {"it cannot be compiled", "(", "missing closing )", 0},
		"backward references": {
			"RE2 has no backward references, because they need exponential time", `(a)\1`, "invalid escape sequence",
			0,
		},
		"huge repetition": {"the library rejects it", "a{1001}", "invalid repeat count", 0},
		"look ahead":      {"RE2 has no look-ahead", "(?=a)", "invalid or unsupported Perl syntax", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := pattern.Compile(tc.text)
			switch {
			case tc.err == "" && (err != nil || p.Size != tc.size):
				t.Errorf("Compile = %+v, %v; want the size %d: %s", p, err, tc.size, tc.reason)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("Compile = %v, want an error with %q: %s", err, tc.err, tc.reason)
			}
		})
	}
}
