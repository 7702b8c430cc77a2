// Package output encodes the objects that commands print, and aligns tables.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2"
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
	text, err := yaml.Marshal(withNumbers(value))
	if err != nil {
		return "", fmt.Errorf("failed to encode the output: %w", err)
	}
	return string(text), nil
}

// withNumbers returns a decoded JSON value with numbers of Go. Integers stay exact if they have at most 64 bits.
func withNumbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name := range v {
			v[name] = withNumbers(v[name])
		}
	case []any:
		for i := range v {
			v[i] = withNumbers(v[i])
		}
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return n
		}
		if n, err := v.Float64(); err == nil {
			return n
		}
		return v.String() // too large for a float
	}
	return value
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
