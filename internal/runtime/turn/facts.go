package turn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// The limits for the output of context packs: the number of facts of all context packs together, and the lengths of the
// parts of a fact in characters.
const (
	maxFacts      = 100
	maxFactText   = 4_000
	maxFactID     = 128
	maxFactSource = 512
	// maxParsed is the maximum number of bytes of an output that are parsed.
	maxParsed = 4 << 20
)

// foundFact is a fact from a context pack.
type foundFact struct {
	ID     string `json:"id,omitempty"`
	Text   string `json:"text"`
	Source string `json:"source,omitempty"`
}

// factList is the form in which the journal keeps the output of a context pack.
type factList struct {
	Facts []foundFact `json:"facts"`
}

// factListOf converts an output to the JSON of a factList within the limits above. The output may be {"facts": [{"id",
// "text", "source"}]}, or a list of texts or facts. Any other output becomes one fact. The structured content of an
// output may be such a list beside a text about it.
func factListOf(output tool.Result) string {
	found, ok := factsIn(output.Data())
	if !ok {
		found, _ = factsIn(output.Whole())
	}
	list := factList{Facts: []foundFact{}}
	for _, f := range found {
		f.Text = clean(f.Text, maxFactText)
		if f.Text == "" || len(list.Facts) == maxFacts {
			continue
		}
		f.ID, f.Source = clean(f.ID, maxFactID), clean(f.Source, maxFactSource)
		list.Facts = append(list.Facts, f)
	}
	content, err := canonical.JSON(list)
	if err != nil { // cannot happen: texts can always be marshaled
		return `{"facts":[]}`
	}
	return string(content)
}

// factsIn returns the facts in a text. isList reports whether the text is a list of facts. Otherwise it is one fact.
func factsIn(text string) (facts []foundFact, isList bool) {
	output := bytes.TrimSpace([]byte(text[:min(len(text), maxParsed)]))
	list := listIn(output)
	if list == nil {
		return []foundFact{{Text: string(output)}}, false
	}
	// The items are decoded one by one, because together they may need many times as much memory as their text.
	items := json.NewDecoder(bytes.NewReader(list))
	_, _ = items.Token()                          // the bracket: the list is valid JSON
	for len(facts) < 2*maxFacts && items.More() { // some items may be blank
		var item json.RawMessage
		if items.Decode(&item) != nil {
			break // cannot happen: the list is valid JSON
		}
		facts = append(facts, factIn(item))
	}
	return facts, true
}

// listIn returns the JSON of the list in an output: the output itself, or its member "facts". It returns nil if there
// is no list, or if the output is not valid JSON.
func listIn(output []byte) []byte {
	isList := func(value []byte) bool { return len(value) > 0 && value[0] == '[' }
	if isList(output) && json.Valid(output) {
		return output
	}
	var object struct {
		Facts json.RawMessage `json:"facts"`
	}
	switch {
	case json.Unmarshal(output, &object) != nil:
		return nil
	case string(output) == "null":
		return []byte("[]")
	case isList(object.Facts):
		return object.Facts
	}
	return nil
}

// factIn converts one item of a list to a fact. The item may be a text, or an object with a text. Any other item
// becomes a text in its JSON form.
func factIn(item json.RawMessage) foundFact {
	var text string
	if json.Unmarshal(item, &text) == nil {
		return foundFact{Text: text}
	}
	var f foundFact
	if json.Unmarshal(item, &f) == nil && f.Text != "" {
		return f
	}
	return foundFact{Text: string(item)}
}

// factsOf returns the facts in the recorded output of a context pack. A fact without an ID gets one from the name of
// the tool.
func factsOf(content, tool string) []foundFact {
	var list factList
	if json.Unmarshal([]byte(content), &list) != nil {
		return nil // cannot happen: the engine has written this content itself
	}
	for i := range list.Facts {
		if list.Facts[i].ID == "" {
			list.Facts[i].ID = fmt.Sprintf("%s-%d", tool, i+1)
		}
	}
	return list.Facts
}

// withFacts adds the facts of context packs to those of the Turn. Each fact gets a unique ID.
func withFacts(own []turncontext.Fact, found []foundFact) []turncontext.Fact {
	if len(found) == 0 {
		return own
	}
	all := slices.Clone(own)
	taken := map[string]bool{}
	for _, f := range own {
		taken[f.ID] = true
	}
	for _, f := range found[:min(len(found), maxFacts)] {
		id := f.ID
		for n := 2; taken[id]; n++ {
			id = fmt.Sprintf("%s-%d", clean(f.ID, maxFactID-8), n)
		}
		taken[id] = true
		all = append(all, turncontext.Fact{ID: id, Text: f.Text, Source: f.Source})
	}
	return all
}
