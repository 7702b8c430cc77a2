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

// root is the directory of the repository.
const root = "../.."

// source is the text of manifests, and the name of their file.
type source struct{ name, text string }

// directories returns the directories of examples whose manifests these tests apply, at any depth.
func directories() []string {
	examples := filepath.Join(root, "examples")
	var all []string
	err := filepath.WalkDir(examples, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		directory, err := filepath.Rel(examples, filepath.Dir(path))
		if strings.HasPrefix(directory, "gitops") { // test/gitops applies these manifests, because some belong to other tools
			return err
		}
		if directory == filepath.Join("cluster", "servers") { // these are the servers of the example cluster
			return err
		}
		if directory == "eval" || directory == "backtest" { // these files have cases, or a second version of a profile
			return err
		}
		if !slices.Contains(all, directory) {
			all = append(all, directory)
		}
		return err
	})
	if err != nil {
		panic(err) // specs are generated from the directories, so no spec can report the error
	}
	return all
}

// filesOf returns the manifests of a directory of examples.
func filesOf(directory string) []source {
	var all []source
	err := filepath.WalkDir(filepath.Join(root, "examples", directory), func(path string, entry fs.DirEntry, err error) error {
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

// blocksOf returns the fenced YAML blocks of a page, each named by the page and the number of its first line. It leaves
// out a block that begins with a list item, because such a block is part of another file and not a manifest.
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
