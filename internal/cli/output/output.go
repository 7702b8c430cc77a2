// Package output encodes the objects that commands print, and aligns tables.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Format is a format of a command's output.
type Format string

// The formats. Some commands accept only some of them.
const (
	Text Format = "text"
	JSON Format = "json"
	YAML Format = "yaml"
	// Name prints an object as kind/name.
	Name Format = "name"
)

// nonCharacters escapes two characters that YAML forbids. They do not control a terminal, so termsafe.Safe keeps them.
var nonCharacters = strings.NewReplacer("\uFFFE", `\ufffe`, "\uFFFF", `\uffff`)

// Encode returns an object as JSON or YAML that ends with a line feed. It does not escape <, > and &, which are
// frequent in prompts. It escapes the characters that control a terminal.
func Encode(object any, format Format) (string, error) {
	escaped, err := encode(object, "  ")
	if err != nil || format == JSON {
		return escaped, err
	}
	// yaml.JSONToYAML of sigs.k8s.io would read the JSON as YAML, which has no keys over 1024 characters in braces, and
	// no escapes of the halves of a character.
	decoder := json.NewDecoder(strings.NewReader(escaped))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return "", fmt.Errorf("failed to encode the output: %w", err)
	}
	document, err := node(value)
	if err != nil {
		return "", fmt.Errorf("failed to encode the output: %w", err)
	}
	var buf bytes.Buffer
	e := yaml.NewEncoder(&buf)
	e.SetIndent(2)
	e.CompactSeqIndent()
	if err := e.Encode(document); err != nil {
		return "", fmt.Errorf("failed to encode the output: %w", err)
	}
	return termsafe.Safe(buf.String()), nil // only texts in double quotes have a character to escape
}

// node returns a decoded JSON value as a node of YAML. Integers stay exact if they have at most 64 bits.
func node(value any) (*yaml.Node, error) {
	n := &yaml.Node{}
	switch v := value.(type) {
	case map[string]any:
		n.Kind = yaml.MappingNode
		for _, name := range slices.Sorted(maps.Keys(v)) {
			key, err := textNode(name)
			if err != nil {
				return nil, err
			}
			child, err := node(v[name])
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, key, child)
		}
		return n, nil
	case []any:
		n.Kind = yaml.SequenceNode
		for _, element := range v {
			child, err := node(element)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		return n, nil
	case string:
		return textNode(v)
	case json.Number:
		value = number(v)
	}
	return n, n.Encode(value)
}

// textNode returns a text as a node of YAML. It puts texts with characters to escape in double quotes, because YAML has
// escapes only there, and texts with tabs, because the library writes them in places where YAML expects spaces.
func textNode(text string) (*yaml.Node, error) {
	n := &yaml.Node{}
	if termsafe.Safe(text) == text && !strings.Contains(text, "\t") {
		return n, n.Encode(text)
	}
	n.SetString(text)
	n.Style = yaml.DoubleQuotedStyle
	return n, nil
}

// number returns a number of JSON as one of Go, or as a text if it is too large for a float.
func number(n json.Number) any {
	if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
		return u
	}
	if f, err := n.Float64(); err == nil {
		return f
	}
	return n.String()
}

// Line returns an object as one line of JSON, with the escapes of Encode.
func Line(object any) (string, error) { return encode(object, "") }

func encode(object any, indent string) (string, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(object); err != nil {
		return "", fmt.Errorf("failed to encode the output: %w", err)
	}
	// A text may have characters that JSON allows, but that YAML refuses or takes for the end of a line. Escapes keep
	// them. All these characters are in strings, because the encoder writes only line feeds and spaces elsewhere.
	return nonCharacters.Replace(termsafe.Safe(buf.String())), nil
}

// PrintObject prints an object in the given format. In the text format, it prints line instead.
func PrintObject(env terminal.Environment, o metav1.Object, resource, line string, format Format) error {
	switch format {
	case Text:
		return env.Print(termsafe.Safe(line) + "\n")
	case Name:
		return env.Print(resource + "/" + o.GetName() + "\n")
	case JSON, YAML:
	}
	text, err := Encode(o, format)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return env.Print(text)
}
