package tool

import (
	"encoding/json"
	"strings"
)

// Items returns the result whose data is a JSON list, which must be valid and without white space around its parts. Its
// content has the items one after another: a text as it is, any other item as JSON on one line.
func Items(list json.RawMessage) Result {
	items := itemsOf(string(list))
	texts := make([]string, 0, len(items))
	for _, i := range items {
		texts = append(texts, i.text)
	}
	return Result{Content: strings.Join(texts, "\n"), Structured: string(list), ContentIsItems: true}
}

// item is an item of a list.
type item struct {
	text string
	// isText is true for a text, and false for other JSON.
	isText bool
}

// itemsOf returns the items of a JSON list.
func itemsOf(list string) []item {
	var values []json.RawMessage
	_ = json.Unmarshal([]byte(list), &values) // the list is valid
	items := make([]item, 0, len(values))
	for _, v := range values {
		i := item{text: string(v)}
		if v[0] == '"' {
			i.isText = json.Unmarshal(v, &i.text) == nil
		}
		items = append(items, i)
	}
	return items
}

// withItems returns the result with another content, which was made of the items of the list Structured. An item of the
// new list has as many lines of the content as before. If the content has another number of lines, or if an item is not
// JSON any more, the result has no list.
func (r Result) withItems(content string) Result {
	items := itemsOf(r.Structured)
	r.Content, r.Structured, r.ContentIsItems = content, "", false
	lines := strings.Split(content, "\n")
	list := make([]json.RawMessage, 0, len(items))
	for _, i := range items {
		n := strings.Count(i.text, "\n") + 1
		if n > len(lines) {
			return r
		}
		value := []byte(strings.Join(lines[:n], "\n"))
		if lines = lines[n:]; i.isText {
			value, _ = json.Marshal(string(value)) // a text can always be marshaled
		} else if !json.Valid(value) {
			return r
		}
		list = append(list, value)
	}
	structured, err := json.Marshal(list)
	if err != nil || len(lines) > 0 {
		return r
	}
	r.Structured, r.ContentIsItems = string(structured), true
	return r
}
