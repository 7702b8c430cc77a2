package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

const (
	valuesSource = "charts/capstan/values.yaml"
	schemaSource = "charts/capstan/values.schema.json"
	readmeTarget = "charts/capstan/README.md"
	// defaultsTarget is the file with each default value and its path.
	defaultsTarget = "charts/capstan/files/defaults.yaml"
	tableHead      = "| value | default | what it does |\n| --- | --- | --- |\n"
)

// value is an entry of values.yaml. If isGroup is true, the entry contains other values and has no default itself.
type value struct {
	path, comment string
	node          *yamlv3.Node
	isGroup       bool
	mayBeNull     bool
}

// valueSchema is the part of the JSON schema that shows which entries are groups. An object without properties in the
// schema is a single value, whose content the user chooses.
type valueSchema struct {
	Type       any                    `json:"type"`
	Ref        string                 `json:"$ref"`
	OneOf      []valueSchema          `json:"oneOf"`
	Properties map[string]valueSchema `json:"properties"`
	// Definitions are the definitions of the root schema.
	Definitions map[string]valueSchema `json:"definitions"`
}

// allowsNull reports whether null is among the types of a value, or is one of its alternatives.
func (s valueSchema) allowsNull() bool {
	types, isList := s.Type.([]any)
	if !isList {
		types = []any{s.Type}
	}
	return slices.Contains(types, any("null")) || slices.ContainsFunc(s.OneOf, valueSchema.allowsNull)
}

// syncValues writes the defaults and the table of values.
func syncValues(root string) error {
	all, err := readValues(root)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(root, defaultsTarget), defaultsOf(all)); err != nil {
		return err
	}
	path := filepath.Join(root, readmeTarget)
	readme, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("failed to read the chart's README: %w", err)
	}
	before, rest, found := strings.Cut(string(readme), tableHead)
	if !found {
		return fmt.Errorf("failed to find the table of values in %s: no line is the head %q", readmeTarget, tableHead)
	}
	for strings.HasPrefix(rest, "|") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	var table strings.Builder
	for _, v := range all {
		text := ""
		if !v.isGroup {
			text = "`" + shown(v.node) + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", v.path, text, strings.ReplaceAll(v.comment, "|", "\\|"))
	}
	return write(path, []byte(before+tableHead+table.String()+rest))
}

// readValues returns the values in the order of values.yaml.
func readValues(root string) ([]value, error) {
	data, err := os.ReadFile(filepath.Join(root, valuesSource))
	if err != nil {
		return nil, fmt.Errorf("failed to read the values: %w", err)
	}
	var document yamlv3.Node
	if err := yamlv3.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("failed to read %s: %w", valuesSource, err)
	}
	data, err = os.ReadFile(filepath.Join(root, schemaSource))
	if err != nil {
		return nil, fmt.Errorf("failed to read the schema of the values: %w", err)
	}
	var schema valueSchema
	if err := json.Unmarshal(data, &schema); err != nil {
		return nil, fmt.Errorf("failed to read %s: %w", schemaSource, err)
	}
	return walk("", document.Content[0], schema, schema.Definitions), nil
}

func walk(prefix string, mapping *yamlv3.Node, schema valueSchema, definitions map[string]valueSchema) []value {
	var all []value
	for i := 0; i < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		entrySchema := schema.Properties[key.Value]
		if name, isRef := strings.CutPrefix(entrySchema.Ref, "#/definitions/"); isRef {
			entrySchema = definitions[name]
		}
		v := value{
			path: prefix + key.Value, comment: comment(key.HeadComment), node: node,
			// resources is one value without defaults of its fields: a user removes a limit with null, and a default
			// would bring the limit back.
			isGroup:   len(entrySchema.Properties) > 0 && len(node.Content) > 0 && key.Value != "resources",
			mayBeNull: entrySchema.allowsNull(),
		}
		all = append(all, v)
		if v.isGroup {
			all = append(all, walk(v.path+".", node, entrySchema, definitions)...)
		}
	}
	return all
}

// comment joins the lines of a comment. If there are several paragraphs, only the last one describes the value.
func comment(text string) string {
	if i := strings.LastIndex(text, "\n\n"); i >= 0 {
		text = text[i:]
	}
	var words []string
	for line := range strings.Lines(text) {
		words = append(words, strings.Fields(strings.TrimPrefix(line, "#"))...)
	}
	return strings.Join(words, " ")
}

// shown returns a default on one line, in the form of values.yaml.
func shown(n *yamlv3.Node) string {
	if n.Kind == yamlv3.MappingNode {
		var items []string
		for i := 0; i < len(n.Content); i += 2 {
			items = append(items, n.Content[i].Value+": "+shown(n.Content[i+1]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	if n.Kind == yamlv3.SequenceNode {
		var items []string
		for _, item := range n.Content {
			items = append(items, shown(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	if n.Style == yamlv3.DoubleQuotedStyle {
		return `"` + n.Value + `"`
	}
	return n.Value
}

// defaultsOf returns the content of the file with each default and its path. It leaves out defaults that a user may set
// to null, because Helm passes null on as a missing value, and the template could not tell the two apart.
func defaultsOf(all []value) []byte {
	type entry struct {
		Path  []string `json:"path"`
		Value any      `json:"value"`
	}
	var entries []entry
	for _, v := range all {
		if v.isGroup || v.mayBeNull {
			continue
		}
		var decoded any
		if err := v.node.Decode(&decoded); err != nil {
			panic(err) // the node was decoded before
		}
		entries = append(entries, entry{strings.Split(v.path, "."), decoded})
	}
	text, err := yaml.Marshal(entries)
	if err != nil {
		panic(err) // plain values can always be encoded
	}
	return append([]byte("# The defaults of "+valuesSource+" by their paths, copied by hack/chart; do not edit.\n"), text...)
}
