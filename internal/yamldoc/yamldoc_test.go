package yamldoc_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/yamldoc"
)

func TestToJSON(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want, err string }{
		"a document":              {"a: 1\n---\n# a comment\n", `{"a":1}`, ""},
		"a syntax error":          {"a: [\n", "", "it must be YAML: line 1: did not find expected node content"},
		"an error without a line": {"a: *b\n", "", "it must be YAML: unknown anchor 'b' referenced"},
		"keys that occur twice": {
			"a: 1\na: 2\nb: 1\nb: 2\n", "",
			`it must be YAML: line 2: key "a" already set in map; line 4: key "b" already set in map`,
		},
		"an error in a second document": {"a: 1\n---\nb: [\n", "", "it must be YAML: line 3: did not find expected node content"},
		"two documents": {
			"a: 1\n---\nb: 1\n", "",
			"it must have one document, but has more: remove the other documents, or put each into its own file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := yamldoc.ToJSON([]byte(tc.text))
			message := ""
			if err != nil {
				message = err.Error()
			}
			if string(data) != tc.want || message != tc.err {
				t.Errorf("ToJSON(%q) returned %s and %q, want %s and %q", tc.text, data, message, tc.want, tc.err)
			}
		})
	}
}
