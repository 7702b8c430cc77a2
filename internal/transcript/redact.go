package transcript

import (
	"crypto/hmac"
	"crypto/rand"
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
	// HMACSHA256 of these bytes, in hexadecimal, with a key that its Redactor alone has: what is equal within one export can
	// be told, and nothing can be guessed from it.
	HMACSHA256 string `json:"hmacSHA256"`
}

// Redactor takes out of the entries of one journal what was said, for one export. What stays is what a fixed list names: the
// course of the Turn, that is names of objects, tools and models, numbers, times and words of enumerations, each as long as it
// looks like one. All else, what a later version adds included, becomes a Redacted.
//
// What a model wrote does not stay, be it short: the name of a tool does if the engine has offered or called a tool of that
// name, and the id of a call becomes its place, "call 1.2" for the second that step 1 asks for. Both are learned from the
// entries: they are to be handed over in order, and where the first ones are left out, more is redacted. It is not safe for
// concurrent use.
type Redactor struct {
	key []byte
	// tools are the names that the engine vouches for.
	tools map[string]bool
	// step of the object at hand, and the places of the calls that each step asks for.
	step   int
	places map[place]string
	// before is how many calls were made before the model was asked.
	before int
}

// place is where the id of a call means something: endpoints use an id again in another step.
type place struct {
	step int
	id   string
}

// NewRedactor returns a Redactor with a key of its own.
func NewRedactor() *Redactor {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return &Redactor{key: key, tools: map[string]bool{}, places: map[place]string{}}
}

// Redact returns an entry without what was said, and without the artifact that its payload was read from, whose name is a
// hash of it. The payload must be there.
func (r *Redactor) Redact(e journal.Entry) (journal.Entry, error) {
	r.learn(e)
	payload, err := r.redact(kept[e.Kind], e.Payload)
	if err != nil {
		return journal.Entry{}, fmt.Errorf("failed to redact entry %d (%q): %w", e.Seq, e.Kind, err)
	}
	e.Payload, e.Artifact, e.Artifacts = payload, "", nil
	return e, nil
}

// learn notes what an entry says of tools and calls. What cannot be read is not noted, and hence redacted.
func (r *Redactor) learn(e journal.Entry) {
	var said struct {
		Step  int                     `json:"step"`
		ID    string                  `json:"callID"`
		Name  string                  `json:"name"`
		Tools []struct{ Name string } `json:"tools"`
		Reply struct {
			ToolCalls []struct{ ID string } `json:"toolCalls"`
		} `json:"reply"`
	}
	if json.Unmarshal(e.Payload, &said) != nil {
		return
	}
	switch e.Kind { //nolint:exhaustive // because the others have neither
	case journal.Prepared, journal.ToolsExposed:
		for _, t := range said.Tools {
			r.tools[t.Name] = true
		}
	case journal.ModelReplied:
		for i, c := range said.Reply.ToolCalls {
			if at := (place{said.Step, c.ID}); r.places[at] == "" {
				r.places[at] = fmt.Sprintf("call %d.%d", said.Step, i+1)
			}
		}
	case journal.ToolIntended:
		r.tools[said.Name] = true
		if at := (place{0, said.ID}); said.Step == 0 && r.places[at] == "" { // before the model was asked: no reply names it
			r.before++
			r.places[at] = fmt.Sprintf("call 0.%d", r.before)
		}
	}
}

// rule says what of a value stays; nil says that nothing does.
type rule interface{ isRule() }

// fields is the rule for an object: what each of its fields keeps. Fields that it does not name keep nothing.
type fields map[string]rule

// each is the rule for a list, whose items have the same one.
type each struct{ of rule }

// scalar is the rule for a value that stays as it is, if it looks as it should.
type scalar func(json.RawMessage) bool

// toolName is the rule for the name of a tool that a model may have made up.
type toolName struct{}

// callID is the rule for the id of a call, which the model or its endpoint wrote.
type callID struct{}

func (fields) isRule()   {}
func (each) isRule()     {}
func (scalar) isRule()   {}
func (toolName) isRule() {}
func (callID) isRule()   {}

func (r *Redactor) redact(by rule, value json.RawMessage) (json.RawMessage, error) {
	if len(value) == 0 {
		return nil, nil
	}
	if text := string(value); text == "null" || text == `""` { // nothing was said
		return value, nil
	}
	switch by := by.(type) {
	case fields:
		var object map[string]json.RawMessage
		if json.Unmarshal(value, &object) == nil {
			return r.within(object, by)
		}
	case each:
		var list []json.RawMessage
		if json.Unmarshal(value, &list) == nil {
			return r.items(list, by.of)
		}
	case scalar:
		if by(value) {
			return value, nil
		}
	case toolName:
		var text string
		if json.Unmarshal(value, &text) == nil && r.tools[text] && name.MatchString(text) {
			return value, nil
		}
	case callID:
		var id string
		if json.Unmarshal(value, &id) == nil && r.places[place{r.step, id}] != "" {
			return json.Marshal(r.places[place{r.step, id}])
		}
	}
	return r.marker(value)
}

func (r *Redactor) within(object map[string]json.RawMessage, by fields) (json.RawMessage, error) {
	out := make(map[string]json.RawMessage, len(object))
	if step, ok := object["step"]; ok {
		defer func(outer int) { r.step = outer }(r.step)
		if json.Unmarshal(step, &r.step) != nil {
			r.step = 0
		}
	}
	for name, value := range object {
		kept, err := r.redact(by[name], value)
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

func (r *Redactor) items(list []json.RawMessage, of rule) (json.RawMessage, error) {
	out := make([]json.RawMessage, 0, len(list))
	for _, value := range list {
		kept, err := r.redact(of, value)
		if err != nil {
			return nil, err
		}
		out = append(out, kept)
	}
	return json.Marshal(out)
}

// marker is what stands for a value.
func (r *Redactor) marker(value json.RawMessage) (json.RawMessage, error) {
	said := []byte(value)
	var text string
	if json.Unmarshal(value, &text) == nil {
		said = []byte(text)
	}
	mac := hmac.New(sha256.New, r.key)
	mac.Write(said)
	return json.Marshal(Redacted{Redacted: true, Bytes: len(said), HMACSHA256: hex.EncodeToString(mac.Sum(nil))})
}
