package skillfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "skills.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		text   string
		want   []prepare.Skill
	}{
		"Whole": {
			reason: "the skills are in the order of the file",
			text: "- key: refunds\n  name: Refunds\n  description: when money goes back\n  content: |\n    " +
				"Ask for the order.\n- {key: a-1_B, content: \"{{ as it is }}\"}\n",
			want: []prepare.Skill{
				{Key: "refunds", Name: "Refunds", Description: "when money goes back", Content: "Ask for the order.\n"},
				{Key: "a-1_B", Content: "{{ as it is }}"},
			},
		},
		"Empty": {reason: "a file of comments is a list without entries", text: "# none yet\n"},
		"Separators": {
			reason: "empty documents have no skill that could be lost",
			text:   "# skills\n---\n- {key: a, content: \"b\\n---\\nc\"}\n...\n---\n# the end\n",
			want:   []prepare.Skill{{Key: "a", Content: "b\n---\nc"}},
		},
		"EmptyList": {reason: "an empty list has no skill", text: "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Load(write(t, tc.text))
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestLoadErrorsNameFileEntryAndField(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"not YAML": {text: "a: [", want: []string{"it must be YAML"}},
		"two documents": {
			text: "- {key: a, content: b}\n---\n- {key: c, content: d}\n",
			want: []string{"it must have one document, but has more: remove the other documents"},
		},
		"a document after an empty one": {
			text: "---\n---\n- {key: c, content: d}\n",
			want: []string{"it must have one document"},
		},
		"an invalid document after the first": {text: "- {key: a, content: b}\n---\n[", want: []string{"it must be YAML"}},
		"not a list":                          {text: "skills: []", want: []string{"it must be a list of skills"}},
		"not a mapping":                       {text: "- refunds", want: []string{"[0]: must be a skill"}},
		"an unknown field": {
			text: "- {key: a, content: b, when: now}",
			want: []string{`[0]: unknown field "when": use key, name, description and content`},
		},
		"a field twice": {text: "- {key: a, key: b, content: c}", want: []string{`key "key" already set`}},
		"a wrong type":  {text: "- {key: a, content: [b]}", want: []string{"[0]: content must be a string"}},
		"no key":        {text: "- {content: b}", want: []string{"[0]: key is required"}},
		"a bad key":     {text: "- {key: \"a b\", content: c}", want: []string{`[0]: key "a b" must be`}},
		"a long key":    {text: "- {key: " + strings.Repeat("a", 64) + ", content: c}", want: []string{"at most 63 letters"}},
		"no content":    {text: "- {key: a}", want: []string{"[0]: content is required and must not be blank"}},
		"blank content": {text: "- {key: a, content: \" \\n\"}", want: []string{"[0]: content is required and must not be blank"}},
		"a key twice":   {text: "- {key: a, content: b}\n- {key: a, content: c}", want: []string{`[1]: key "a" is already used by [0]`}},
		"a long name": {
			text: "- {key: a, content: b, name: " + strings.Repeat("ü", 129) + "}",
			want: []string{"[0]: name has 129 characters but may have at most 128"},
		},
		"a long description": {
			text: "- {key: a, content: b, description: " + strings.Repeat("d", 1025) + "}",
			want: []string{"[0]: description has 1025 characters"},
		},
		"long content": {
			text: "- {key: a, content: " + strings.Repeat("c", 65537) + "}",
			want: []string{"[0]: content has 65537 characters"},
		},
		"too many":   {text: strings.Repeat("- {}\n", 33), want: []string{"it has 33 skills but may have at most 32"}},
		"two faults": {text: "- {key: a}\n- {content: b}", want: []string{"[0]: content is required", "[1]: key is required"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, tc.text)
			skills, err := Load(path)
			if err == nil {
				t.Fatalf("got %v, want an error", skills)
			}
			for _, want := range append(tc.want, path) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %q, want it to contain %q", err, want)
				}
			}
		})
	}
}

func TestLoadOfAMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent.yaml")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Load = %v, want an error that names the file", err)
	}
}

// TestLoadBoundsTheFile checks that a file that is too long is not read to its end.
func TestLoadBoundsTheFile(t *testing.T) {
	path := write(t, "")
	if err := os.Truncate(path, maxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path+": it must be at most 32 MiB") {
		t.Errorf("the error is %v, want one about the size", err)
	}
}
