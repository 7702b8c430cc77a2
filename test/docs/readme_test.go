package docs_test

import (
	"strings"
	"testing"
)

// The maximum lengths of the README and of its first screen, which is all that most readers see, in lines.
const (
	readmeLines = 150
	firstScreen = 48
)

func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(read(t, "README.md"), "\n"); n > readmeLines {
		t.Errorf("README.md has %d lines, want at most %d: move output and details to a page of docs", n, readmeLines)
	}
}

func TestFirstScreenOfReadmeAnswers(t *testing.T) {
	screen := strings.Join(strings.SplitAfter(read(t, "README.md"), "\n")[:firstScreen], "")
	for question, answer := range map[string]string{
		"what it is":                "Capstan is a Kubernetes operator",
		"who it is for":             "Capstan is for ",
		"what a Turn looks like":    "kind: Turn",
		"what an answer looks like": "$ kubectl get turn",
		"how to get an answer":      "\nmake demo",
		"how to run the tests":      "\nmake test",
	} {
		if !strings.Contains(screen, answer) {
			t.Errorf("the first %d lines of README.md do not say %s: they lack %q", firstScreen, question, answer)
		}
	}
}

// TestReadmeShowsTheManifestOfTheQuickstart checks that the README shows the same manifest as the quickstart, above the
// output of the quickstart.
func TestReadmeShowsTheManifestOfTheQuickstart(t *testing.T) {
	comment, manifest, _ := strings.Cut(read(t, "examples/quickstart/turn.yaml"), "\n")
	if !strings.HasPrefix(comment, "#") {
		t.Fatalf("examples/quickstart/turn.yaml begins with %q, want one line of comment", comment)
	}
	if !strings.Contains(read(t, "README.md"), "```yaml\n"+manifest+"```") {
		t.Errorf("README.md does not show the manifest of examples/quickstart/turn.yaml:\n%s", manifest)
	}
}
