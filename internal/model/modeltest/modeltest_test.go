package modeltest_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/modeltest"
)

// TestCorpusIsComplete checks that each file can be read, and that the services with a protocol of their own have an
// answer of each kind.
func TestCorpusIsComplete(t *testing.T) {
	folders, err := modeltest.Folders()
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		all, err := modeltest.Load(folder)
		if err != nil {
			t.Error(err)
		}
		if folder != "openai" && folder != "anthropic" {
			continue
		}
		kinds := map[string]bool{}
		for _, x := range all {
			kind, _, _ := strings.Cut(x.Name, "-")
			kinds[kind] = true
		}
		for _, kind := range []string{"reply", "tools", "parallel", "reasoning", "finish", "error", "broken"} {
			if !kinds[kind] {
				t.Errorf("%s has no answer of the kind %q: add a file whose name begins with it", folder, kind)
			}
		}
	}
}

// TestWrongFiles checks that a file with a mistake is refused.
func TestWrongFiles(t *testing.T) {
	for want, file := range map[string]string{
		"no blank line":              "source: x\nHTTP/1.1 200 OK\n",
		`field "sorce"`:              "sorce: x\n\nHTTP/1.1 200 OK\n\n",
		`field "reply": json: unkno`: "source: x\nreply: {\"txt\":\"\"}\n\nHTTP/1.1 200 OK\n\n",
		"either reply or error":      "source: x\n\nHTTP/1.1 200 OK\n\n",
		"head of the answer":         "source: x\nreply: {}\n\nHTP\n\n",
	} {
		if _, err := modeltest.Parse([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, want %q", file, err, want)
		}
	}
}
