package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRewriteJoinsLinesOfParagraphs(t *testing.T) {
	for name, tc := range map[string]struct{ reason, in, want string }{
		"lines": {
			"a comment's line ends mean nothing", "---\ndescription: |-\n  one\n  two\n  three\n",
			"---\ndescription: one two three\n",
		},
		"paragraphs": {
			"an empty line separates paragraphs", "---\ndescription: |-\n  one\n  two\n\n  three\n",
			"---\ndescription: |-\n  one two\n\n  three\n",
		},
		"list": {
			"each entry of a list begins a line", "---\ndescription: |-\n  these:\n  - one\n  - two\n",
			"---\ndescription: |-\n  these:\n  - one\n  - two\n",
		},
		"field": {
			"a field with the name description has a description of its own",
			"---\nproperties:\n  description:\n    description: |-\n      one\n      two\n    type: string\n",
			"---\nproperties:\n  description:\n    description: one two\n    type: string\n",
		},
		"other": {"other texts stay", "---\nmessage: |-\n  one\n  two\n", "---\nmessage: |-\n  one\n  two\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "crd.yaml")
			if err := os.WriteFile(file, []byte(tc.in), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second run must change nothing
				if err := joinDescriptions(dir); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, string(got)); diff != "" {
					t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
				}
			}
		})
	}
}

func TestEmptyDirectoryIsAnError(t *testing.T) {
	if err := joinDescriptions(t.TempDir()); err == nil {
		t.Error("joinDescriptions succeeded without a CRD")
	}
	if err := copyWithMarkers(t.TempDir(), t.TempDir()); err == nil {
		t.Error("copyWithMarkers succeeded without a Go file")
	}
}

func TestMarkersAreJoined(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"types.go": "// Limits are limits.\n// +a:rule=\"x ||\n// +  y\",\n// + message=\"m\"\n// +b\ntype Limits struct {\n" +
			"\t// most is a limit.\n\t// +c:one;\n\t// + two\n\tMost int\n}\n",
		"types_test.go": "package a\n",
	} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyWithMarkers(from, to); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(to, "types.go"))
	if err != nil {
		t.Fatal(err)
	}
	want := "// Limits are limits.\n// +a:rule=\"x || y\",message=\"m\"\n// +b\ntype Limits struct {\n" +
		"\t// most is a limit.\n\t// +c:one;two\n\tMost int\n}\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(to, "types_test.go")); err == nil {
		t.Error("a test was copied")
	}
}
