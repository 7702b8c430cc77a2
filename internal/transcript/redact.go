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

// Redacted replaces a redacted value.
type Redacted struct {
	// Redacted is always true.
	Redacted bool `json:"redacted"`
	// Bytes is the size of a text in UTF-8, or the size of any other value in JSON.
	Bytes int `json:"bytes"`
	// HMACSHA256 is a hash of these bytes in hexadecimal, with a key that only the Redactor knows. Equal values of
	// one export have equal hashes, but the hash does not reveal the value.
	HMACSHA256 string `json:"hmacSHA256"`
}

// Redactor redacts the content of the entries of one journal, for one export. It keeps only the values of a fixed list
// of fields, such as names of objects, tools and models, numbers, times and words of enumerations, and each only if it
// has the expected form. Every other value becomes a Redacted, even in fields that a later version adds.
//
// The names of users have no form. The API server checks them with the policies of config/policy, or they come from the
// user of the command line. So each name on one line is kept. Without the policy for requesters, the creator of a Turn
// chooses the name of its requester, which may then be any line of text.
//
// It keeps no texts of a model, not even short ones:
//
//  1. A tool name is kept only if the engine has offered or called a tool of that name.
//  2. The ID of a call is replaced by its position, such as "call 1.2" for the second call of step 1.
//
// The Redactor learns both from the entries, so they must be passed in order. If the first entries are missing, it
// redacts more. A Redactor is not safe for concurrent use.
type Redactor struct {
	key []byte
	// tools has the names of tools that the engine has offered or called.
	tools map[string]bool
	// step is the step of the current object. places has the replacements of the IDs of calls.
	step   int
	places map[place]string
	// before is the number of calls that were made before the first request to the model.
	before int
}

// place identifies a call. The step is part of it, because endpoints may reuse an ID in another step.
type place struct {
	step int
	id   string
}

// NewRedactor returns a Redactor with a new key.
func NewRedactor() *Redactor {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // rand.Read never returns an error
	return &Redactor{key: key, tools: map[string]bool{}, places: map[place]string{}}
}

// Redact returns a redacted entry. It also removes the reference to the artifact of the payload, because this is a hash
// of the content. The payload must be filled.
func (r *Redactor) Redact(e journal.Entry) (journal.Entry, error) {
	r.learn(e)
	payload, err := r.redact(kept[e.Kind], e.Payload)
	if err != nil {
		return journal.Entry{}, fmt.Errorf("failed to redact entry %d (%q): %w", e.Seq, e.Kind, err)
	}
	e.Payload, e.Artifact, e.Artifacts = payload, "", nil
	return e, nil
}

// learn records the tools and calls of an entry. It ignores an unreadable entry, whose values are then redacted.
func (r *Redactor) learn(e journal.Entry) {
	var payload struct {
		Step  int                     `json:"step"`
		ID    string                  `json:"callID"`
		Name  string                  `json:"name"`
		Tools []struct{ Name string } `json:"tools"`
		Reply struct {
			ToolCalls []struct{ ID string } `json:"toolCalls"`
		} `json:"reply"`
	}
	if json.Unmarshal(e.Payload, &payload) != nil {
		return
	}
	switch e.Kind { //nolint:exhaustive // because the other kinds have neither tools nor new calls
	case journal.Prepared, journal.ToolsExposed:
		for _, t := range payload.Tools {
			r.tools[t.Name] = true
		}
	case journal.ModelReplied:
		for i, c := range payload.Reply.ToolCalls {
			if at := (place{payload.Step, c.ID}); r.places[at] == "" {
				r.places[at] = fmt.Sprintf("call %d.%d", payload.Step, i+1)
			}
		}
	case journal.ToolIntended:
		r.tools[payload.Name] = true
		// A call of step 0 was made before the first request to the model, so no reply contains it.
		if at := (place{0, payload.ID}); payload.Step == 0 && r.places[at] == "" {
			r.before++
			r.places[at] = fmt.Sprintf("call 0.%d", r.before)
		}
	}
}

// rule says which part of a value is kept. A nil rule keeps nothing.
type rule interface{ isRule() }

// fields is the rule for an object: one rule for each field. Other fields are redacted.
type fields map[string]rule

// each is the rule for a list: one rule for all items.
type each struct{ of rule }

// scalar is the rule for a value that is kept unchanged if the function returns true.
type scalar func(json.RawMessage) bool

// toolName is the rule for the name of a tool, which a model may have invented.
type toolName struct{}

// callID is the rule for the ID of a call, which the model or its endpoint has chosen.
type callID struct{}

func (fields) isRule()   {}
func (each) isRule()     {}
func (scalar) isRule()   {}
func (toolName) isRule() {}
func (callID) isRule()   {}

// redact returns a value with everything redacted that the rule does not keep.
func (r *Redactor) redact(by rule, value json.RawMessage) (json.RawMessage, error) {
	if len(value) == 0 {
		return nil, nil
	}
	if text := string(value); text == "null" || text == `""` { // no content
		return value, nil
	}
	switch by := by.(type) {
	case fields:
		var object map[string]json.RawMessage
		if json.Unmarshal(value, &object) == nil {
			return r.redactObject(object, by)
		}
	case each:
		var list []json.RawMessage
		if json.Unmarshal(value, &list) == nil {
			return r.redactList(list, by.of)
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

func (r *Redactor) redactObject(object map[string]json.RawMessage, by fields) (json.RawMessage, error) {
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
		if !word.MatchString(name) { // not a name that the engine uses
			name = "redacted"
		}
		out[name] = kept
	}
	return json.Marshal(out)
}

func (r *Redactor) redactList(list []json.RawMessage, of rule) (json.RawMessage, error) {
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

// marker returns the Redacted for a value.
func (r *Redactor) marker(value json.RawMessage) (json.RawMessage, error) {
	payload := []byte(value)
	var text string
	if json.Unmarshal(value, &text) == nil {
		payload = []byte(text)
	}
	mac := hmac.New(sha256.New, r.key)
	mac.Write(payload)
	return json.Marshal(Redacted{Redacted: true, Bytes: len(payload), HMACSHA256: hex.EncodeToString(mac.Sum(nil))})
}
