// Command crds prepares the input of controller-gen and edits its output.
//
//	crds markers FROM TO      copies the Go files of a directory, and joins the lines of each marker
//	crds descriptions DIRECTORY  joins the lines of each paragraph in the descriptions of CRDs
//
// controller-gen expects each marker on one line, and a rule may have 500 characters. In our sources, a marker
// continues on each line that begins with "// + ". The text after these five characters is appended unchanged.
//
// The lines of descriptions are joined so that kubectl explain breaks lines at the width of the terminal and not
// where the Go comment did.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "markers":
		err = copyWithMarkers(args[1], args[2])
	case len(args) == 2 && args[0] == "descriptions":
		err = joinDescriptions(args[1])
	default:
		fmt.Fprintln(os.Stderr, "usage: crds markers FROM TO | crds descriptions DIRECTORY")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crds:", err)
		os.Exit(1)
	}
}

// copyWithMarkers copies the Go files of a directory, except for tests, to an existing directory. In the copies, each
// marker is one line.
func copyWithMarkers(from, to string) error {
	files, err := list(from, "*.go")
	if err != nil {
		return err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), joinMarkers(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// continued matches the line break and the prefix of a line that continues a marker.
var continued = regexp.MustCompile(`\n[\t ]*// \+ `)

func joinMarkers(text []byte) []byte { return continued.ReplaceAll(text, nil) }

// list returns the files of a directory that match a pattern. It is an error if there are none.
func list(dir, pattern string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("directory %q has no %s", dir, pattern)
	}
	return files, err
}

func joinDescriptions(dir string) error {
	files, err := list(dir, "*.yaml")
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		errs = append(errs, rewrite(file))
	}
	return errors.Join(errs...)
}

func rewrite(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return fmt.Errorf("failed to read %q: %w", file, err)
	}
	join(&document)
	var out bytes.Buffer
	out.WriteString("---\n")
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent() // in the style of controller-gen
	if err := errors.Join(encoder.Encode(&document), encoder.Close()); err != nil {
		return fmt.Errorf("failed to write %q: %w", file, err)
	}
	return os.WriteFile(file, out.Bytes(), 0o600)
}

// join joins the lines of all descriptions below a node. A property named description is a mapping and stays
// unchanged.
func join(n *yaml.Node) {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Value == "description" && child.Kind == yaml.ScalarNode {
			child.Value = joinParagraphs(child.Value)
			child.Style = 0
			continue
		}
		join(child)
	}
}

// lineBreak matches a line break within a paragraph. A break next to an empty line or before a list item does not
// match.
var lineBreak = regexp.MustCompile(`([^\n])\n([^\n\s-])`)

// joinParagraphs joins the lines of each paragraph.
func joinParagraphs(text string) string {
	return lineBreak.ReplaceAllString(text, "$1 $2")
}
