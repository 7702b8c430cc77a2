package modeltest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/modeltest"
)

// kinds are the kinds of answers. The name of a file begins with one of them.
var kinds = []string{"reply", "tools", "parallel", "reasoning", "finish", "input", "error", "broken"}

// absent are the kinds that a service does not have, and why.
var absent = map[string]map[string]string{
	"bedrock": {"reasoning": "the documentation of its chat completions does not show reasoning"},
	"cohere":  {"reasoning": "its compatible API returns no reasoning"},
}

// embeddings is the kind of answers with vectors, which not all services have.
const embeddings = "embeddings"

// TestCorpusIsComplete checks that each file can be read, and that each service has an answer of each kind, or a reason
// why not.
func TestCorpusIsComplete(t *testing.T) {
	directories, err := modeltest.Directories()
	if err != nil {
		t.Fatal(err)
	}
	for _, directory := range directories {
		all, err := modeltest.Load(directory)
		if err != nil {
			t.Error(err)
		}
		found := map[string]bool{}
		for _, x := range all {
			kind, _, _ := strings.Cut(x.Name, "-")
			if found[kind] = true; !slices.Contains(kinds, kind) && kind != embeddings {
				t.Errorf("%s/%s.http has an unknown kind: begin its name with one of %v or with %s", directory, x.Name, kinds, embeddings)
			}
			if (x.Texts > 0) != (kind == embeddings) {
				t.Errorf("%s/%s.http has %d texts: files whose names begin with %s must have texts, and no others", directory, x.Name,
					x.Texts, embeddings)
			}
		}
		for _, kind := range kinds {
			switch isAbsent := absent[directory][kind] != ""; {
			case !found[kind] && !isAbsent:
				t.Errorf("%s has no answer of the kind %q: add a file whose name begins with it, or a reason in absent", directory, kind)
			case found[kind] && isAbsent:
				t.Errorf("%s has an answer of the kind %q: remove the kind from absent", directory, kind)
			}
		}
	}
}

// TestInvalidFiles checks that an invalid file is rejected.
func TestInvalidFiles(t *testing.T) {
	for want, file := range map[string]string{
		"no blank line":              "source: x\nHTTP/1.1 200 OK\n",
		`field "sorce"`:              "sorce: x\n\nHTTP/1.1 200 OK\n\n",
		`field "reply": json: unkno`: "source: x\nreply: {\"txt\":\"\"}\n\nHTTP/1.1 200 OK\n\n",
		"needs sent":                 "source: x\nattached: image/png\nreply: {}\n\nHTTP/1.1 200 OK\n\n",
		"either reply or error":      "source: x\n\nHTTP/1.1 200 OK\n\n",
		"head of the answer":         "source: x\nreply: {}\n\nHTP\n\n",
	} {
		if _, err := modeltest.Parse([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, want %q", file, err, want)
		}
	}
}
