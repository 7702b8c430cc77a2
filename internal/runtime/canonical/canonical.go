// Package canonical writes JSON in the one form that hashes are taken of: keys sorted, no white space, UTF-8 without
// HTML escaping, numbers as they were written.
//
// encoding/json alone will not do: it escapes U+2028 and U+2029 whatever it is told, and RFC 8785 rewrites numbers.
package canonical

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// JSON returns the canonical form of a value that marshals to JSON.
func JSON(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("failed to marshal for a hash: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("failed to read back for a hash: %w", err)
	}
	var buf bytes.Buffer
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

func write(buf *bytes.Buffer, v any) {
	switch v := v.(type) {
	case map[string]any:
		buf.WriteByte('{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				buf.WriteByte(',')
			}
			writeString(buf, key)
			buf.WriteByte(':')
			write(buf, v[key])
		}
		buf.WriteByte('}')
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

// shortEscapes are the control characters with an escape of their own, as in RFC 8259 section 7.
var shortEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

func writeString(buf *bytes.Buffer, s string) {
	buf.WriteByte('"')
	for _, r := range s {
		switch esc, ok := shortEscapes[r]; {
		case ok:
			buf.WriteString(esc)
		case r < 0x20:
			fmt.Fprintf(buf, `\u%04x`, r)
		default:
			buf.WriteRune(r)
		}
	}
	buf.WriteByte('"')
}
