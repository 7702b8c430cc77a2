package turn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// The bounds of what context packs give: how many facts all of them together, and the length of a fact's parts in characters.
const (
	maxFacts      = 100
	maxFactText   = 4_000
	maxFactID     = 128
	maxFactSource = 512
	// maxPacked is how much of an output is looked at, in bytes.
	maxPacked = 4 << 20
)

// packedFact is a fact as a context pack gives it.
type packedFact struct {
	ID     string `json:"id,omitempty"`
	Text   string `json:"text"`
	Source string `json:"source,omitempty"`
}

// factPack is the form in which the journal keeps what a context pack gave.
type factPack struct {
	Facts []packedFact `json:"facts"`
}

// packedContent brings an output into that form, within bounds: {"facts": [{"id", "text", "source"}]}, a list of texts or of
// facts, or anything else, which is one fact.
func packedContent(output string) string {
	pack := factPack{Facts: []packedFact{}}
	for _, f := range factsIn([]byte(output[:min(len(output), maxPacked)])) {
		f.Text = clean(f.Text, maxFactText)
		if f.Text == "" || len(pack.Facts) == maxFacts {
			continue
		}
		f.ID, f.Source = clean(f.ID, maxFactID), clean(f.Source, maxFactSource)
		pack.Facts = append(pack.Facts, f)
	}
	content, err := canonical.JSON(pack)
	if err != nil { // of texts it never does
		return `{"facts":[]}`
	}
	return string(content)
}

func factsIn(output []byte) []packedFact {
	output = bytes.TrimSpace(output)
	var items []json.RawMessage
	var object struct {
		Facts []json.RawMessage `json:"facts"`
	}
	if json.Unmarshal(output, &items) != nil {
		if json.Unmarshal(output, &object) != nil || object.Facts == nil {
			return []packedFact{{Text: string(output)}}
		}
		items = object.Facts
	}
	all := make([]packedFact, 0, min(len(items), maxFacts))
	for _, item := range items[:min(len(items), 2*maxFacts)] { // some may be blank
		all = append(all, factIn(item))
	}
	return all
}

// factIn is one fact of a list: a text, an object that has one, or whatever else it may be as it stands.
func factIn(item json.RawMessage) packedFact {
	var text string
	if json.Unmarshal(item, &text) == nil {
		return packedFact{Text: text}
	}
	var f packedFact
	if json.Unmarshal(item, &f) == nil && f.Text != "" {
		return f
	}
	return packedFact{Text: string(item)}
}

// unpacked are the facts that the journal has of a context pack. Those without an id have one of the tool's name.
func unpacked(content, tool string) []packedFact {
	var pack factPack
	if json.Unmarshal([]byte(content), &pack) != nil {
		return nil // nobody but this version has written it
	}
	for i := range pack.Facts {
		if pack.Facts[i].ID == "" {
			pack.Facts[i].ID = fmt.Sprintf("%s-%d", tool, i+1)
		}
	}
	return pack.Facts
}

// withFacts adds facts to those of the Turn, each with an id of its own.
func withFacts(own []turncontext.Fact, packed []packedFact) []turncontext.Fact {
	if len(packed) == 0 {
		return own
	}
	all := slices.Clone(own)
	taken := map[string]bool{}
	for _, f := range own {
		taken[f.ID] = true
	}
	for _, f := range packed[:min(len(packed), maxFacts)] {
		id := f.ID
		for n := 2; taken[id]; n++ {
			id = fmt.Sprintf("%s-%d", clean(f.ID, maxFactID-8), n)
		}
		taken[id] = true
		all = append(all, turncontext.Fact{ID: id, Text: f.Text, Source: f.Source})
	}
	return all
}
