// Package docs_test checks that the pages are complete and current: each page covers its part of the code, and all
// links have a target.
package docs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the directory of the repository.
const root = "../.."

// read returns a file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages returns the paths of all pages, from the root.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "charts/capstan/README.md"}
	found, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		all = append(all, "docs/"+filepath.Base(path))
	}
	return all
}

// row returns the row of a page's table that begins with a name in backquotes, or an empty string if there is none.
func row(page, name string) string {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| `"+name+"` |") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
