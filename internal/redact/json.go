package redact

import (
	"bytes"
	"encoding/json"
)

// JSON returns a JSON document whose strings and names of members are redacted. redact returns a text without credentials. A document
// in which it finds nothing is returned as it is; what is no JSON becomes a JSON string that is redacted as a whole.
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
		return []byte(`"` + redacted + `"`) // cannot be: it was decoded just now
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
