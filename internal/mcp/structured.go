package mcp

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
)

// maxCompared is the maximum size of a value that is compared in canonical form, in bytes, because the decoded form
// takes many times as much memory. In a larger value, the order of members counts.
const maxCompared = 256 << 10

// wrapper is the name of the member in which libraries put a value that is no object.
const wrapper = "result"

// repetition says how the texts of a result repeat its structured content.
type repetition struct {
	// found is true if the texts have the same data. at is the index of the text that is the value, or -1 if the texts
	// are the items of a list.
	found bool
	at    int
	value json.RawMessage
}

// repetitionOf reports whether the texts of a result have the same data as its structured content. The protocol
// recommends that a text repeats it. Libraries that need an object put any other value into an object with the member
// wrapper, so the texts may also have only the value of this member, or one text for each item of a list. The time is
// linear in the sizes of the texts and the value.
func repetitionOf(texts []string, structured []byte) repetition {
	values := []json.RawMessage{structured}
	if value := wrapped(structured); value != nil {
		values = append(values, value)
	}
	for _, value := range values {
		if at := slices.IndexFunc(texts, newComparison(value).isText); at >= 0 || areItems(texts, value) {
			return repetition{true, at, value}
		}
	}
	return repetition{}
}

// wrapped returns the value of an object with the member wrapper alone, or nil for another value. Like areItems, it
// reads the value piece by piece, because the members of an object can need many times as much memory as their text.
func wrapped(structured []byte) (value json.RawMessage) {
	d := json.NewDecoder(bytes.NewReader(structured))
	begin, _ := d.Token()
	if name, err := d.Token(); begin != json.Delim('{') || err != nil || name != wrapper || d.Decode(&value) != nil || d.More() {
		return nil
	}
	return value
}

// areItems reports whether a value is a list of as many items as there are texts, each of which is one text. No texts
// are not the items of an empty list, because they say nothing about it.
func areItems(texts []string, value json.RawMessage) bool {
	d := json.NewDecoder(bytes.NewReader(value))
	if begin, err := d.Token(); err != nil || begin != json.Delim('[') || len(texts) == 0 {
		return false
	}
	for _, text := range texts {
		var item json.RawMessage
		if !d.More() || d.Decode(&item) != nil || !newComparison(item).isText(text) {
			return false
		}
	}
	return !d.More()
}

// comparison compares texts with one value of JSON.
type comparison struct {
	// first is the first byte of the value, or 0 if there is no value.
	first byte
	// text is the value if it is a string, without the white space around it. isString is true for a string.
	text     string
	isString bool
	// normal is the normal form of the value, which normalize returns. isSmall is true for a canonical form.
	normal    []byte
	normalize func([]byte) ([]byte, error)
	isSmall   bool
}

func newComparison(value json.RawMessage) *comparison {
	value = bytes.TrimSpace(value)
	c := &comparison{normalize: compact}
	if len(value) == 0 {
		return c
	}
	c.first = value[0]
	if c.isString = json.Unmarshal(value, &c.text) == nil && c.first == '"'; c.isString {
		c.text = strings.TrimSpace(c.text)
	}
	if c.isSmall = len(value) <= maxCompared; c.isSmall {
		c.normalize = func(data []byte) ([]byte, error) { return canonical.JSON(json.RawMessage(data)) }
	}
	c.normal, _ = c.normalize(value) // nil, which equals no text, if it is not valid
	return c
}

// isText reports whether a text is the value: the text of a string, or the JSON of any value.
func (c *comparison) isText(text string) bool {
	text = strings.TrimSpace(text)
	switch {
	case c.isString && text == c.text:
		return true
	case c.normal == nil, text == "", text[0] != c.first, c.isSmall && len(text) > 2*maxCompared:
		return false
	}
	normal, err := c.normalize([]byte(text))
	return err == nil && bytes.Equal(normal, c.normal)
}

// compact returns JSON without white space between its parts.
func compact(data []byte) ([]byte, error) {
	var out bytes.Buffer
	err := json.Compact(&out, data)
	return out.Bytes(), err
}
