package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// widest is the maximum width of prose, in columns. A tab has 4.
const widest = 120

var (
	goComment   = regexp.MustCompile(`^\s*//`)
	goDirective = regexp.MustCompile(`^\s*//(go:|nolint| ?\+)`)
)

// TestProseIsNarrow checks the width of comments in Go and of paragraphs in Markdown, so that people can read them in
// two windows side by side.
func TestProseIsNarrow(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, directory := range []string{"api", "charts", "cmd", "docs", "examples", "hack", "internal", "test"} {
		err := filepath.WalkDir(filepath.Join(root, directory), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := entry.Name()
			if entry.IsDir() && (name == "testdata" || name == "node_modules") {
				return fs.SkipDir
			}
			if entry.IsDir() || strings.HasPrefix(name, "zz_generated") {
				return nil
			}
			isProse := map[string]func(line string, code *bool) bool{".go": isComment, ".md": isParagraph}[filepath.Ext(name)]
			if isProse == nil {
				return nil
			}
			checked++
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			code, n := false, 0
			for line := range strings.SplitSeq(string(text), "\n") {
				n++
				width := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
				if isProse(line, &code) && width > widest {
					t.Errorf("%s:%d has %d columns, want at most %d: wrap it", path, n, width, widest)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 500 {
		t.Errorf("only %d files were checked", checked)
	}
}

func isComment(line string, _ *bool) bool {
	return goComment.MatchString(line) && !goDirective.MatchString(line)
}

// isParagraph reports whether a line of Markdown is neither code, nor a row of a table, nor a heading. code is true
// inside a code block; isParagraph changes it at the fences of the block.
func isParagraph(line string, code *bool) bool {
	if strings.HasPrefix(strings.TrimSpace(line), "```") {
		*code = !*code
		return false
	}
	return !*code && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "    ")
}
