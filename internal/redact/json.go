package redact

import (
	"bytes"
	"encoding/json"
)

// JSON returns a JSON document with redacted strings, numbers and member names. redact returns a text without
// credentials. A number with a credential becomes a string. A document without credentials is returned unchanged. A
// document that is not JSON becomes one redacted JSON string.
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
	if err := encoder.Encode(redactValue(value, redact)); err != nil {
		return []byte(`"` + redacted + `"`) // cannot happen, because the value was just decoded
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// redactValue redacts all strings, numbers and member names of a value.
func redactValue(value any, redact func(text string) string) any {
	switch v := value.(type) {
	case string:
		return redact(v)
	case json.Number:
		if clean := redact(v.String()); clean != v.String() {
			return clean
		}
	case []any:
		for i := range v {
			v[i] = redactValue(v[i], redact)
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, member := range v {
			clean[redact(name)] = redactValue(member, redact)
		}
		return clean
	}
	return value
}
