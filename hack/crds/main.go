// Command crds post-processes the CRDs of controller-gen. It joins the lines of each paragraph in a description, so
// that kubectl explain breaks lines at the width of the terminal and not where the Go comment did.
//
//	go run ./hack/crds config/crd/bases
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"go.yaml.in/yaml/v3"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: crds FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "crds:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no CRD in %q", dir)
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
			child.Value = paragraphs(child.Value)
			child.Style = 0
			continue
		}
		join(child)
	}
}

// brk matches a line break within a paragraph. A break next to an empty line or before a list item does not match.
var brk = regexp.MustCompile(`([^\n])\n([^\n\s-])`)

func paragraphs(text string) string {
	return brk.ReplaceAllString(text, "$1 $2")
}
