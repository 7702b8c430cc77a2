package tool

import (
	"bytes"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
)

// shownSchema is a schema as a model is shown it: what describes is text from outside, and nothing in it may pass for a control
// token of a model's chat template. It is nil where that changes nothing. What decides about arguments stays as it is.
func shownSchema(source json.RawMessage) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(source))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	if !cleanSchema(v) {
		return nil
	}
	shown, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return shown
}

// cleanSchema cleans the texts of a schema in place, and says whether it changed any.
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

func cleanKeyword(schema map[string]any, key string, v any) (changed bool) {
	switch key {
	case "title", "description", "$comment", "examples":
		schema[key], changed = cleanText(v)
		return changed
	case "const", "enum", "default":
		return false
	case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
		named, ok := v.(map[string]any)
		if !ok {
			return false
		}
		for _, inner := range named {
			changed = cleanSchema(inner) || changed
		}
		return changed
	}
	return cleanSchema(v)
}

// cleanText is a value whose texts are cleaned; the names of properties stay.
func cleanText(v any) (clean any, changed bool) {
	switch v := v.(type) {
	case string:
		text := fence.Neutral(v, "")
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
