package redact

import (
	"bytes"
	"encoding/json"
)

// JSON returns a JSON document with redacted strings and member names. redact returns a text without credentials. A
// document without credentials is returned unchanged. A document that is not JSON becomes one JSON string, redacted
// as a whole.
func JSON(document []byte, redact func(text string) string) []byte {
	text := string(document)
	clean := redact(text)
	if clean == text {
		return document
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		value = clean
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(inside(value, redact)); err != nil {
		return []byte(`"` + redacted + `"`) // cannot happen: it was just decoded
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// inside redacts all strings of a value.
func inside(value any, redact func(text string) string) any {
	switch v := value.(type) {
	case string:
		return redact(v)
	case []any:
		for i := range v {
			v[i] = inside(v[i], redact)
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, member := range v {
			clean[redact(name)] = inside(member, redact)
		}
		return clean
	}
	return value
}
