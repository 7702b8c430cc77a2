// Package canonical writes JSON in the one form that hashes are computed from: sorted keys, no white space, UTF-8
// without HTML escaping, numbers as they were written.
//
// Neither encoding/json nor RFC 8785 fits: encoding/json always escapes U+2028 and U+2029, and RFC 8785 rewrites
// numbers.
package canonical

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// JSON returns the canonical form of a value that marshals to JSON. It writes a map[string]any of strings, lists and
// maps directly, at a third of the cost of encoding/json.
func JSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	if texts, ok := v.(map[string]string); ok && texts != nil { // a whole prompt: avoid two more copies of it
		writeObject(&buf, texts, writeString)
		return buf.Bytes(), nil
	}
	if object, ok := v.(map[string]any); ok && object != nil && isTree(object) {
		write(&buf, object)
		return buf.Bytes(), nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("failed to marshal for a hash: %w", err)
	}
	if c := raw[0]; c != '{' && c != '[' && c != '"' {
		return raw, nil // a number or a literal, which has only one form
	}
	var text string
	if raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
		writeString(&buf, text)
		return buf.Bytes(), nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("failed to read back for a hash: %w", err)
	}
	buf.Grow(len(raw))
	write(&buf, tree)
	return buf.Bytes(), nil
}

// Hash returns the SHA-256 of the canonical form of a value, in hexadecimal.
func Hash(v any) (string, error) {
	data, err := JSON(v)
	if err != nil {
		return "", err
	}
	return Sum(data), nil
}

// Sum returns the SHA-256 of bytes, in hexadecimal.
func Sum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// isTree reports whether a value consists only of strings, lists and maps.
func isTree(v any) bool {
	switch v := v.(type) {
	case string:
		return true
	case []any:
		return v != nil && !slices.ContainsFunc(v, func(item any) bool { return !isTree(item) })
	case map[string]any:
		for _, item := range v {
			if !isTree(item) {
				return false
			}
		}
		return v != nil
	}
	return false
}

func write(buf *bytes.Buffer, v any) {
	switch v := v.(type) {
	case map[string]any:
		writeObject(buf, v, write)
	case []any:
		buf.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				buf.WriteByte(',')
			}
			write(buf, item)
		}
		buf.WriteByte(']')
	case string:
		writeString(buf, v)
	case json.Number:
		buf.WriteString(v.String())
	case bool:
		fmt.Fprintf(buf, "%t", v)
	case nil:
		buf.WriteString("null")
	}
}

func writeObject[T any](buf *bytes.Buffer, object map[string]T, value func(*bytes.Buffer, T)) {
	buf.WriteByte('{')
	for i, key := range slices.Sorted(maps.Keys(object)) {
		if i > 0 {
			buf.WriteByte(',')
		}
		writeString(buf, key)
		buf.WriteByte(':')
		value(buf, object[key])
	}
	buf.WriteByte('}')
}

// shortEscapes are the characters with a short escape in RFC 8259 section 7.
var shortEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

func writeString(buf *bytes.Buffer, s string) {
	buf.WriteByte('"')
	start := 0 // the beginning of the unescaped text that is not written yet
	for i, r := range s {
		if r >= 0x20 && r != '"' && r != '\\' && r != utf8.RuneError {
			continue
		}
		buf.WriteString(s[start:i])
		switch esc, ok := shortEscapes[r]; {
		case ok:
			buf.WriteString(esc)
		case r < 0x20:
			fmt.Fprintf(buf, `\u%04x`, r)
		default: // U+FFFD, or an invalid byte, which becomes U+FFFD
			buf.WriteRune(r)
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		start = i + size
	}
	buf.WriteString(s[start:])
	buf.WriteByte('"')
}
