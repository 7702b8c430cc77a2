package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"sigs.k8s.io/yaml"
)

// outputFormat is the value of -o.
type outputFormat string

const (
	outputText outputFormat = "text"
	outputJSON outputFormat = "json"
	outputYAML outputFormat = "yaml"
)

// outputFormats lists the values of -o, for messages and completion.
var outputFormats = []string{string(outputText), string(outputJSON), string(outputYAML)}

// String returns the format.
func (f *outputFormat) String() string { return string(*f) }

// Type returns the values for help texts.
func (f *outputFormat) Type() string { return strings.Join(outputFormats, "|") }

// Set parses a value of the command line.
func (f *outputFormat) Set(value string) error {
	if !slices.Contains(outputFormats, value) {
		message := "must be text, json or yaml"
		if guess := closest(value, outputFormats); guess != "" {
			message += fmt.Sprintf(": did you mean %s?", guess)
		}
		return errors.New(message)
	}
	*f = outputFormat(value)
	return nil
}

// textOrJSON is the value of -o of commands that cannot print YAML.
type textOrJSON struct{ *outputFormat }

// Type returns the values for help texts.
func (textOrJSON) Type() string { return "text|json" }

// Set parses a value of the command line.
func (f textOrJSON) Set(value string) error {
	if value != string(outputText) && value != string(outputJSON) {
		return errors.New("must be text or json")
	}
	return f.outputFormat.Set(value)
}

// instant is the value of --now. It is the zero time if the flag is not set.
type instant struct{ time.Time }

// String returns the time in RFC 3339, or an empty string if the flag is not set.
func (i *instant) String() string {
	if i.IsZero() {
		return ""
	}
	return i.Format(time.RFC3339Nano)
}

// Type returns the format for help texts.
func (i *instant) Type() string { return "RFC3339" }

// Set parses a value of the command line.
func (i *instant) Set(value string) error {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil || t.IsZero() {
		return errors.New("must be an RFC 3339 time, such as 2026-04-09T10:00:00Z")
	}
	i.Time = t
	return nil
}

// encode returns an object as JSON or YAML that ends with a line feed. It does not escape <, > and &, which are
// frequent in prompts.
func encode(object any, format outputFormat) (string, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(object); err != nil {
		return "", fmt.Errorf("failed to encode the output: %w", err)
	}
	if format == outputJSON {
		return buf.String(), nil
	}
	text, err := yaml.JSONToYAML(buf.Bytes())
	if err != nil {
		return "", fmt.Errorf("failed to encode the output: %w", err)
	}
	return string(text), nil
}

// forScreen removes control characters from a text if Out is a terminal, because the terminal would obey them.
func (e Environment) forScreen(text string) string {
	if !e.OutIsTerminal {
		return text
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}
