package mcp

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
)

// maxCompared is the maximum size of structured content that is compared in canonical form, in bytes. The decoded form
// takes many times as much memory.
const maxCompared = 256 << 10

// repeats reports whether the texts of a result have the same data as its structured content. The protocol recommends
// that a text repeats it. Libraries that need an object put any other value into an object with one member, so the
// texts may also have only the value of this member, or one text for each item of a list.
func repeats(texts []string, structured []byte) bool {
	if len(structured) > maxCompared {
		return slices.ContainsFunc(texts, func(text string) bool { return equalCompact(text, structured) })
	}
	values := []json.RawMessage{structured}
	var members map[string]json.RawMessage
	if json.Unmarshal(structured, &members) == nil && len(members) == 1 {
		for _, value := range members {
			values = append(values, value)
		}
	}
	return slices.ContainsFunc(values, func(value json.RawMessage) bool {
		var items []json.RawMessage
		return slices.ContainsFunc(texts, func(text string) bool { return isText(text, value) }) ||
			json.Unmarshal(value, &items) == nil && slices.EqualFunc(texts, items, isText)
	})
}

// isText reports whether a text is a JSON value: a string with this text, or a value of which the text is the JSON.
func isText(text string, value json.RawMessage) bool {
	text = strings.TrimSpace(text)
	var s string
	if json.Unmarshal(value, &s) == nil && strings.TrimSpace(s) == text {
		return true
	}
	value = bytes.TrimSpace(value)
	if text == "" || len(text) > 2*maxCompared || len(value) == 0 || text[0] != value[0] {
		return false
	}
	a, err := canonical.JSON(json.RawMessage(text))
	if err != nil {
		return false
	}
	b, err := canonical.JSON(value)
	return err == nil && bytes.Equal(a, b)
}

// equalCompact reports whether a text and a value are the same JSON apart from white space.
func equalCompact(text string, value []byte) bool {
	var a, b bytes.Buffer
	return json.Compact(&a, []byte(text)) == nil && json.Compact(&b, value) == nil && bytes.Equal(a.Bytes(), b.Bytes())
}
