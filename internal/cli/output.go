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

// outputFormats are the values of -o, for messages and completion.
var outputFormats = []string{string(outputText), string(outputJSON), string(outputYAML)}

// String returns the format.
func (f *outputFormat) String() string { return string(*f) }

// Type names the values in help texts.
func (f *outputFormat) Type() string { return strings.Join(outputFormats, "|") }

// Set takes a value of the command line.
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

// textOrJSON is the value of -o where there is no YAML.
type textOrJSON struct{ *outputFormat }

// Type names the values in help texts.
func (textOrJSON) Type() string { return "text|json" }

// Set takes a value of the command line.
func (f textOrJSON) Set(value string) error {
	if value != string(outputText) && value != string(outputJSON) {
		return errors.New("must be text or json")
	}
	return f.outputFormat.Set(value)
}

// instant is the value of --now; the zero time if it was not given.
type instant struct{ time.Time }

// String returns the time, empty if it was not given.
func (i *instant) String() string {
	if i.IsZero() {
		return ""
	}
	return i.Format(time.RFC3339Nano)
}

// Type names the values in help texts.
func (i *instant) Type() string { return "RFC3339" }

// Set takes a value of the command line.
func (i *instant) Set(value string) error {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil || t.IsZero() {
		return errors.New("must be a time of RFC 3339, such as 2026-04-09T10:00:00Z")
	}
	i.Time = t
	return nil
}

// encode returns an object as JSON or YAML that ends with a line feed. Unlike the default of encoding/json it keeps <, >
// and & readable, which prompts are full of.
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

// forScreen returns a text as it may go to Out: without the control characters that a terminal would act on, if it is one.
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
