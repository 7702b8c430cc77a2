package redact

import (
	"bytes"
	"encoding/json"
)

// JSON returns a JSON document with redacted strings and member names. redact returns a text without credentials. A
// document without credentials is returned unchanged. A document that is not JSON becomes one redacted JSON string.
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
	if err := encoder.Encode(redactStrings(value, redact)); err != nil {
		return []byte(`"` + redacted + `"`) // cannot happen, because the value was just decoded
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// redactStrings redacts all strings and member names of a value.
func redactStrings(value any, redact func(text string) string) any {
	switch v := value.(type) {
	case string:
		return redact(v)
	case []any:
		for i := range v {
			v[i] = redactStrings(v[i], redact)
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, member := range v {
			clean[redact(name)] = redactStrings(member, redact)
		}
		return clean
	}
	return value
}
