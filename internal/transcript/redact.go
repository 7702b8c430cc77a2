package transcript

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// Redacted stands in the place of something that was said.
type Redacted struct {
	// Redacted is true.
	Redacted bool `json:"redacted"`
	// Bytes of what stood here: of a text its UTF-8, of anything else its JSON.
	Bytes int `json:"bytes"`
	// SHA256 of these bytes, in hexadecimal: who knows what was said can tell that it was that.
	SHA256 string `json:"sha256"`
}

// Redact returns the payload of an entry without what was said. What stays is what a fixed list names: the course of the
// Turn, that is names of objects, tools and models, numbers, times, hashes and words of enumerations, each as long as it
// looks like one. All else, what a later version adds included, becomes a Redacted. The payload must be there.
func Redact(e journal.Entry) (json.RawMessage, error) {
	out, err := redact(kept[e.Kind], e.Payload)
	if err != nil {
		return nil, fmt.Errorf("failed to redact entry %d (%q): %w", e.Seq, e.Kind, err)
	}
	return out, nil
}

// rule says what of a value stays; nil says that nothing does.
type rule interface{ isRule() }

// fields is the rule for an object: what each of its fields keeps. Fields that it does not name keep nothing.
type fields map[string]rule

// each is the rule for a list, whose items have the same one.
type each struct{ of rule }

// scalar is the rule for a value that stays as it is, if it looks as it should.
type scalar func(json.RawMessage) bool

func (fields) isRule() {}
func (each) isRule()   {}
func (scalar) isRule() {}

func redact(r rule, value json.RawMessage) (json.RawMessage, error) {
	if len(value) == 0 {
		return nil, nil
	}
	if text := string(value); text == "null" || text == `""` { // nothing was said
		return value, nil
	}
	switch r := r.(type) {
	case fields:
		var object map[string]json.RawMessage
		if json.Unmarshal(value, &object) == nil {
			return within(object, func(name string) rule { return r[name] })
		}
	case each:
		var list []json.RawMessage
		if json.Unmarshal(value, &list) == nil {
			return items(list, r.of)
		}
	case scalar:
		if r(value) {
			return value, nil
		}
	}
	return marker(value)
}

func within(object map[string]json.RawMessage, ruleOf func(string) rule) (json.RawMessage, error) {
	out := make(map[string]json.RawMessage, len(object))
	for name, value := range object {
		kept, err := redact(ruleOf(name), value)
		if err != nil {
			return nil, err
		}
		if !word.MatchString(name) { // no name that the engine gives
			name = "redacted"
		}
		out[name] = kept
	}
	return json.Marshal(out)
}

func items(list []json.RawMessage, of rule) (json.RawMessage, error) {
	out := make([]json.RawMessage, 0, len(list))
	for _, value := range list {
		kept, err := redact(of, value)
		if err != nil {
			return nil, err
		}
		out = append(out, kept)
	}
	return json.Marshal(out)
}

// marker is what stands for a value.
func marker(value json.RawMessage) (json.RawMessage, error) {
	said := []byte(value)
	var text string
	if json.Unmarshal(value, &text) == nil {
		said = []byte(text)
	}
	sum := sha256.Sum256(said)
	return json.Marshal(Redacted{Redacted: true, Bytes: len(said), SHA256: hex.EncodeToString(sum[:])})
}
