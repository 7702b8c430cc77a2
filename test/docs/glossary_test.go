package docs_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	entry        = regexp.MustCompile(`(?m)^### (.+)$`)
	outerHeading = regexp.MustCompile(`(?m)^##? `)
)

func TestGlossaryDefinesEachTermOnceInOrderWithALink(t *testing.T) {
	page := read(t, "docs/glossary.md")
	starts := entry.FindAllStringSubmatchIndex(page, -1)
	if len(starts) == 0 {
		t.Fatal("docs/glossary.md has no terms: each one is a heading of level 3")
	}
	var terms []string
	for i, start := range starts {
		term, end := page[start[2]:start[3]], len(page)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		text := page[start[1]:end]
		if outerHeading.MatchString(text) {
			t.Errorf("docs/glossary.md: a heading of another level follows %q: want one list of terms", term)
		}
		if !link.MatchString(text) {
			t.Errorf("docs/glossary.md: %q has no link to the page that explains it", term)
		}
		terms = append(terms, strings.ToLower(term))
	}
	if !slices.IsSorted(terms) {
		t.Errorf("docs/glossary.md: the terms are not in alphabetical order: %q", terms)
	}
	if unique := slices.Compact(slices.Clone(terms)); len(unique) != len(terms) {
		t.Errorf("docs/glossary.md defines a term twice: %q", terms)
	}
}

func TestGlossaryDefinesEveryKind(t *testing.T) {
	page := read(t, "docs/glossary.md")
	for _, path := range kinds {
		title, _, _ := strings.Cut(read(t, path), "\n")
		kind := strings.TrimSuffix(strings.TrimPrefix(title, "# "), "s")
		_, text, found := strings.Cut(page, "\n### "+kind+"\n")
		text, _, _ = strings.Cut(text, "\n### ")
		if !found || !strings.Contains(text, "("+filepath.Base(path)+")") {
			t.Errorf("docs/glossary.md must define the kind %s and link to %s", kind, path)
		}
	}
}
