package examples_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// root is the folder of the repository.
const root = "../.."

// source is a text of manifests and its location.
type source struct{ name, text string }

// folders returns all folders with manifests, at any depth.
func folders() []string {
	examples := filepath.Join(root, "examples")
	var all []string
	err := filepath.WalkDir(examples, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		folder, err := filepath.Rel(examples, filepath.Dir(path))
		if strings.HasPrefix(folder, "gitops") { // test/gitops applies it, because it contains objects of other tools
			return err
		}
		if folder == filepath.Join("cluster", "servers") { // these are the servers of the example above
			return err
		}
		if folder == "eval" || folder == "backtest" { // its file has cases, or a second version of a profile
			return err
		}
		if !slices.Contains(all, folder) {
			all = append(all, folder)
		}
		return err
	})
	if err != nil {
		panic(err) // specs are generated from the folders, so no spec can report the error
	}
	return all
}

// filesOf returns the manifests of a folder of examples.
func filesOf(folder string) []source {
	var all []source
	err := filepath.WalkDir(filepath.Join(root, "examples", folder), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		all = append(all, source{name: path, text: string(text)})
		return err
	})
	if err != nil {
		panic(err)
	}
	return all
}

// pages returns the pages with manifests for readers.
func pages() []string {
	all, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		panic(err)
	}
	return append(all, filepath.Join(root, "README.md"), filepath.Join(root, "examples", "README.md"))
}

// blocksOf returns the fenced YAML blocks of a page, named by their first line. A block with a list is part of
// another file and not a manifest.
func blocksOf(page string) []source {
	text, err := os.ReadFile(page)
	if err != nil {
		panic(err)
	}
	var all []source
	var block []string
	begin := 0
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case begin == 0 && line == "```yaml":
			begin = i + 1
		case begin > 0 && line == "```":
			if text := strings.Join(block, "\n"); !strings.HasPrefix(text, "- ") {
				all = append(all, source{name: fmt.Sprintf("%s:%d", page, begin), text: text})
			}
			begin, block = 0, nil
		case begin > 0:
			block = append(block, line)
		}
	}
	return all
}

// objects returns the objects of a text.
func objects(text string) ([]*unstructured.Unstructured, error) {
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewBufferString(text)))
	var all []*unstructured.Unstructured
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

// kinds lists the kinds that an example may contain.
var kinds = []string{
	"Agent", "ModelProvider", "PromptProfile", "ToolServer", "ToolApproval", "Turn", "Session", "Budget",
	"Secret", "ConfigMap", "Deployment", "Service",
}

func isExampleKind(kind string) bool { return slices.Contains(kinds, kind) }
