// Package output encodes the objects that commands print, and aligns tables.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

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
	text, err := yaml.JSONToYAML([]byte(escaped))
	if err != nil {
		return "", fmt.Errorf("failed to encode the output: %w", err)
	}
	return string(text), nil
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
