package tool

import (
	"bytes"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// shownSchema returns a schema in the form that the model receives, or nil if that form equals the schema. Descriptions
// are text from outside and must not contain control tokens of a model's chat template, so they are cleaned. Keywords
// that validate arguments keep their meaning: only forms of older drafts are replaced.
func shownSchema(source json.RawMessage) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(source))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	cleaned := cleanSchema(v)
	if !schema.Modernize(v) && !cleaned {
		return nil
	}
	shown, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return shown
}

// cleanSchema cleans the texts of a schema in place, and reports whether it changed a text.
func cleanSchema(v any) (changed bool) {
	switch v := v.(type) {
	case []any:
		for _, inner := range v {
			changed = cleanSchema(inner) || changed
		}
	case map[string]any:
		for key, inner := range v {
			changed = cleanKeyword(v, key, inner) || changed
		}
	}
	return changed
}

func cleanKeyword(keywords map[string]any, key string, v any) (changed bool) {
	switch key {
	case "title", "description", "$comment", "examples":
		keywords[key], changed = cleanText(v)
		return changed
	case "const", "enum", "default":
		return false
	case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
		subschemas, ok := v.(map[string]any)
		if !ok {
			return false
		}
		for _, inner := range subschemas {
			changed = cleanSchema(inner) || changed
		}
		return changed
	}
	return cleanSchema(v)
}

// cleanText cleans all texts in a value. The names of properties stay unchanged.
func cleanText(v any) (clean any, changed bool) {
	switch v := v.(type) {
	case string:
		text := untrusted.Neutral(v, "")
		return text, text != v
	case []any:
		for i, inner := range v {
			var c bool
			v[i], c = cleanText(inner)
			changed = changed || c
		}
	case map[string]any:
		for key, inner := range v {
			var c bool
			v[key], c = cleanText(inner)
			changed = changed || c
		}
	}
	return v, changed
}
