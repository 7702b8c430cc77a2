package cli_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// redactionYAML is a field of an Agent with redaction rules.
const redactionYAML = `  redaction:
    patterns: [{name: email, pattern: '[a-z.]+@[a-z]+\.example'}]
    jsonPaths: ["$..pin"]
`

// TestRunRedacts runs a Turn whose message, facts, ConfigMap and attachment contain personal data, with a model that
// repeats the data. Neither the requests nor a file of the store may contain the data.
func TestRunRedacts(t *testing.T) {
	t.Parallel()
	model, url := fake(t, `rules: [{reply: {text: "I write to z\u200boe@shop.example."}}]`)
	f := complete().with(t, "turn.yaml", "What is up?", "I am zoe@shop.example.").
		with(t, "turn.yaml", "Nothing much.", `'{"pin": 998877665544, "to": "zoe\u0040shop.example"}'`)
	f["agent.yaml"] += redactionYAML + "  contributions: [{name: notes, configMapKeyRef: {name: notes, key: today}}]\n"
	f["turn.yaml"] += "  attachments: [{name: mail, mediaType: text/plain, configMapKeyRef: {name: notes, key: refunds}}]\n"
	f["notes.yaml"] = strings.NewReplacer("The shop is closed.", "Ask zoe@shop.example.", "Pay back within a week.",
		"zoe@shop.example paid.").Replace(notesYAML)
	dir, data := f.written(t, url), t.TempDir()
	rendered := capstan(t, "render", "-f", dir, "--now", noon).mustEnd(t, exit.OK)
	got := capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	if got.out != "I write to [redacted:email].\n" {
		t.Errorf("the answer is %q, want [redacted:email] in place of the address", got.out)
	}
	logs := capstan(t, "logs", "first", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
	mustSay(t, logs.out, `"text.redacted"`)
	mustSay(t, got.err, "emoved texts by the rules $..pin (1), email (4)")
	again := capstan(t, "run", "-f", dir, "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
	mustSay(t, again.out, `"redactions"`, `"rule": "email"`, `"rule": "$..pin"`)

	texts := map[string]string{"the journal": logs.out, "the progress": got.err, "the rendered prompt": rendered.out}
	for _, r := range model.Requests() {
		texts["a request"] += string(r.Body)
	}
	mustSay(t, texts["a request"], "I am [redacted:email].", "Ask [redacted:email].", "[redacted:email] paid.")
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		texts[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range texts {
		for _, secret := range []string{"shop.example", "998877665544"} {
			if strings.Contains(text, secret) {
				t.Errorf("want no %q in %s", secret, name)
			}
		}
	}
}

// TestRunWithInvalidRedactionRule checks the error for an invalid rule.
func TestRunWithInvalidRedactionRule(t *testing.T) {
	t.Parallel()
	f := complete()
	f["agent.yaml"] += "  redaction: {patterns: [{name: all, pattern: 'a*'}]}\n"
	got := capstan(t, "run", "-f", f.written(t, nowhere)).mustEnd(t, exit.Failed)
	mustSay(t, got.err, "spec.redaction.patterns[0].pattern: must not match an empty text: write + in place of *")
}
