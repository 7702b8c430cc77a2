package docs_test

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// located matches an error of the command line that names an object and a field. The page leaves out the object's name.
var located = regexp.MustCompile(`(Turn|Agent|PromptProfile) \S+: (spec.*)`)

func TestPromptPageShowsRealErrors(t *testing.T) {
	page := read(t, promptPage)
	// Each case breaks the manifests of an example in one place.
	for name, tc := range map[string]struct{ example, right, wrong string }{
		"undeclared variable": {"hostile-context", "mails for {{ .customer }}", "mails for {{ .custmer }}"},
		"function call":       {"hostile-context", "mails for {{ .customer }}", `mails for {{ printf "%s" .customer }}`},
		"loop":                {"hostile-context", "mails for {{ .customer }}", "mails for {{ range .customer }}x{{ end }}"},
		"no conversation":     {"none", "You answer in rhymes.", "You answer in {{ .Session.Name }}."},
		"no value":            {"full", "  - name: customer\n    value: Grace\n", "  - name: shop\n    value: Lumen\n"},
		"unknown parameter": {
			"full", "  - name: customer\n    value: Grace\n",
			"  - name: customer\n    value: Grace\n  - name: town\n    value: Graz\n",
		},
		"unknown section":  {"sections", "[instructions, agent,", "[instruction, agent,"},
		"repeated section": {"sections", "[instructions, agent,", "[instructions, instructions,"},
		"unknown skill":    {"full", "loaded: [returns]", "loaded: [refunds]"},
		"unknown key":      {"full", "key: complaints.md", "key: complaint.md"},
		"trust":            {"full", "text: Parcels to", "trust: Trusted\n      text: Parcels to"},
		"unknown model":    {"none", "  promptMode: None", "  model: demo-large"},
	} {
		t.Run(name, func(t *testing.T) {
			text := manifests(t, filepath.Join("examples/prompts", tc.example))
			if !strings.Contains(text, tc.right) {
				t.Fatalf("examples/prompts/%s does not contain %q", tc.example, tc.right)
			}
			message := failure(t, strings.Replace(text, tc.right, tc.wrong, 1))
			if !strings.Contains(page, "| `"+message+"` |") {
				t.Errorf("%s has no row for the error `%s`", promptPage, message)
			}
		})
	}
}

// manifests returns all manifests of a directory as one text.
func manifests(t *testing.T, directory string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, directory, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests in %s: %v", directory, err)
	}
	var all strings.Builder
	for _, file := range files {
		rel, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString("---\n" + read(t, rel))
	}
	return all.String()
}

// failure renders invalid manifests and returns the error, without the name of the object.
func failure(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	code := cli.Execute(t.Context(), terminal.Environment{
		Program: "capstan", In: strings.NewReader(text), Out: &out, Err: &out, Now: time.Now,
		LookupEnv: func(string) (string, bool) { return "", false },
	}, []string{"render", "-f", "-"})
	m := located.FindStringSubmatch(out.String())
	if code != exit.Failed || m == nil {
		t.Fatalf("capstan render exited with %d, want %d and an error that names a field:\n%s", code, exit.Failed, &out)
	}
	return m[1] + " " + m[2]
}
