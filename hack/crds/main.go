// Command crds finishes the CRDs that controller-gen wrote: it joins the lines of each paragraph of a description, so that
// kubectl explain breaks them where the terminal ends and not where the Go comment did.
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
	encoder.CompactSeqIndent() // as controller-gen writes them
	if err := errors.Join(encoder.Encode(&document), encoder.Close()); err != nil {
		return fmt.Errorf("failed to write %q: %w", file, err)
	}
	return os.WriteFile(file, out.Bytes(), 0o600)
}

// join joins the lines of all descriptions below a node. A property of the name description is a mapping and stays.
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

// brk is a line break within a paragraph: none beside an empty line, and none before an entry of a list.
var brk = regexp.MustCompile(`([^\n])\n([^\n\s-])`)

func paragraphs(text string) string {
	return brk.ReplaceAllString(text, "$1 $2")
}
