package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func TestEveryLinkHasATarget(t *testing.T) {
	for _, path := range pages(t) {
		prose := fenced.ReplaceAllString(read(t, path), "")
		for _, m := range link.FindAllStringSubmatch(prose, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(m[1], "#")
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: the target of the link %q does not exist", path, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(t, file), anchor) {
				t.Errorf("%s: the link %q names no heading of %s", path, m[1], file)
			}
		}
	}
}

// anchors returns the anchors of a page's headings, in the form of Git hosts.
func anchors(t *testing.T, path string) []string {
	t.Helper()
	var all []string
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, path), ""), -1) {
		words := dropped.ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(words, " ", "-"))
	}
	return all
}

func TestEveryPageIsLinkedFromTheReadme(t *testing.T) {
	readme := read(t, "README.md")
	for _, path := range pages(t) {
		if path != "README.md" && !strings.Contains(readme, "("+path) {
			t.Errorf("README.md has no link to %s", path)
		}
	}
}

var (
	makeCall   = regexp.MustCompile("(?m)(?:^|`|\\$ )make ([a-z][a-z0-9-]*)")
	makeTarget = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
)

func TestEveryMakeTargetThatAPageNamesExists(t *testing.T) {
	var targets []string
	for _, m := range makeTarget.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	for _, path := range pages(t) {
		for _, m := range makeCall.FindAllStringSubmatch(read(t, path), -1) {
			if !slices.Contains(targets, m[1]) {
				t.Errorf("%s names `make %s`, and the Makefile has no such target", path, m[1])
			}
		}
	}
}
