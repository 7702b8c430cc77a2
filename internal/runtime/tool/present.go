package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// The bounds of what a model is told of a server's tool. Lengths are in characters, but for the schema's, which is in bytes.
const (
	maxDescription     = 1024
	maxSchema          = 64 << 10
	maxParameters      = 64
	maxParameterText   = 512
	maxValue           = 128
	maxValues          = 64
	furtherParameters  = "It has further parameters: see its schema."
	maxReferences      = 8
	objectType         = "object"
	anyParameterSchema = `{"properties":{},"type":"object"}`
)

// Unusable says why no model can be told of a tool of a server, nil if one can. The error quotes the tool's schema, which is
// text from outside.
func Unusable(t Tool) error {
	_, err := presentable(t)
	return err
}

// presentable makes a tool fit to be told to a model, or says why this cannot be: no provider takes a tool whose arguments
// are not an object, and one that it does not take would end the Turn. What a server wrote is text from outside: it is cleaned
// and cut to a length. A tool without a schema is Capstan's own.
func presentable(t Tool) (Tool, error) {
	if t.Source.Server == "" && len(t.Schema) == 0 {
		return t, nil
	}
	t.Description, t.UseWhen = first(t.Description, maxDescription), first(t.UseWhen, maxDescription)
	object, err := rootOf(t.Schema)
	if err != nil {
		return Tool{}, err
	}
	whole, err := json.Marshal(object)
	if err != nil {
		return Tool{}, fmt.Errorf("the schema cannot be written: %w", err)
	}
	if _, err := schema.Cached(whole); err != nil {
		return Tool{}, err
	}
	t.Schema, t.Shown = whole, shownSchema(whole)
	var all bool
	t.Parameters, all = parametersOf(object)
	if !all {
		t.Description = strings.TrimSpace(t.Description + " " + furtherParameters)
	}
	return t, nil
}

// rootOf is the schema of an object, by its keywords. Where it does not say that it is that of an object, it does so now.
func rootOf(source json.RawMessage) (map[string]json.RawMessage, error) {
	if len(bytes.TrimSpace(source)) == 0 {
		source = json.RawMessage(anyParameterSchema)
	}
	if len(source) > maxSchema {
		return nil, fmt.Errorf("the schema has %d bytes, and %d is the most", len(source), maxSchema)
	}
	if !utf8.Valid(source) {
		return nil, errors.New("the schema is not UTF-8")
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(source, &object) != nil || object == nil {
		return nil, errors.New("the schema is not a JSON object")
	}
	var kind string
	switch has, ok := object["type"]; {
	case !ok:
		object["type"] = json.RawMessage(`"object"`)
	case json.Unmarshal(has, &kind) != nil || kind != objectType:
		return nil, errors.New(`the type of the schema is not "object"`)
	}
	if _, ok := object["properties"]; !ok {
		object["properties"] = json.RawMessage(`{}`)
	}
	return object, nil
}

// parametersOf is what the prompt says of the parameters: those that are required first, then by name. all is false where
// there are some of which it says nothing, because their names would not do or there are too many.
func parametersOf(root map[string]json.RawMessage) (parameters []prompt.Parameter, all bool) {
	var properties map[string]json.RawMessage
	var required []string
	_ = json.Unmarshal(root["properties"], &properties) // what is no object has no parameters
	_ = json.Unmarshal(root["required"], &required)     // nor does it require any
	all = true
	for name, source := range properties {
		if !prompt.ParameterName(name) {
			all = false
			continue
		}
		p := parameterOf(root, source)
		p.Name, p.Required = name, slices.Contains(required, name)
		parameters = append(parameters, p)
	}
	slices.SortFunc(parameters, func(a, b prompt.Parameter) int {
		if a.Required != b.Required {
			if a.Required {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	if len(parameters) > maxParameters {
		return parameters[:maxParameters], false
	}
	return parameters, all
}

// property is what is read of the schema of a parameter.
type property struct {
	Ref         string            `json:"$ref"`
	Type        json.RawMessage   `json:"type"`
	Description any               `json:"description"`
	Enum        []json.RawMessage `json:"enum"`
	Const       json.RawMessage   `json:"const"`
	Default     json.RawMessage   `json:"default"`
	AnyOf       []json.RawMessage `json:"anyOf"`
	OneOf       []json.RawMessage `json:"oneOf"`
	Properties  json.RawMessage   `json:"properties"`
	Items       json.RawMessage   `json:"items"`
}

// parameterOf is what the prompt says of a parameter, but for its name. What it cannot say is in the schema.
func parameterOf(root map[string]json.RawMessage, source json.RawMessage) prompt.Parameter {
	s := resolved(root, source)
	p := prompt.Parameter{Type: s.kind(root, maxReferences)}
	if text, ok := s.Description.(string); ok {
		p.Description = first(text, maxParameterText)
	}
	if d := bytes.TrimSpace(s.Default); len(d) > 0 && utf8.RuneCount(d) <= maxValue && string(d) != "null" {
		p.Default = d
	}
	if len(s.Const) > 0 {
		s.Enum = []json.RawMessage{s.Const}
	}
	texts := true
	for _, v := range s.Enum {
		var text string
		if json.Unmarshal(v, &text) != nil {
			texts, text = false, string(v)
		}
		if string(v) == "null" || utf8.RuneCountInString(text) > maxValue || len(p.Enum) == maxValues {
			continue
		}
		p.Enum = append(p.Enum, first(text, maxValue))
	}
	if p.Type == "string" && texts && len(p.Enum) > 0 {
		p.Type = "enum"
	}
	return p
}

// kind is the type of a parameter, in the words of a prompt.
func (s property) kind(root map[string]json.RawMessage, most int) string {
	var one string
	var several []string
	if json.Unmarshal(s.Type, &one) == nil {
		several = []string{one}
	} else {
		_ = json.Unmarshal(s.Type, &several) // what is neither says nothing
	}
	for _, kind := range several {
		switch kind {
		case "string", "integer", "number", "boolean", "array", objectType:
			return kind
		}
	}
	if most > 0 {
		for _, source := range slices.Concat(s.AnyOf, s.OneOf) {
			if choice := resolved(root, source); string(choice.Type) != `"null"` {
				return choice.kind(root, most-1)
			}
		}
	}
	switch {
	case len(s.Properties) > 0:
		return objectType
	case len(s.Items) > 0:
		return "array"
	}
	return "string"
}

// resolved is a schema, where it is only a reference that to which it refers within the same document. What it says beside
// the reference goes before.
func resolved(root map[string]json.RawMessage, source json.RawMessage) property {
	var s property
	if json.Unmarshal(source, &s) != nil {
		return property{}
	}
	for range maxReferences {
		path, ok := strings.CutPrefix(s.Ref, "#/")
		if !ok {
			break
		}
		target, ok := at(root, strings.Split(path, "/"))
		var next property
		if !ok || json.Unmarshal(target, &next) != nil {
			break
		}
		if s.Description != nil {
			next.Description = s.Description
		}
		if len(s.Default) > 0 {
			next.Default = s.Default
		}
		s = next
	}
	return s
}

// at is the place of a JSON pointer.
func at(object map[string]json.RawMessage, path []string) (json.RawMessage, bool) {
	here, ok := object[strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])]
	if !ok || len(path) == 1 {
		return here, ok
	}
	var within map[string]json.RawMessage
	if json.Unmarshal(here, &within) != nil {
		return nil, false
	}
	return at(within, path[1:])
}

// first is the beginning of a text, cleaned as a prompt does but for what is escaped there.
func first(text string, most int) string {
	kept, _ := fence.Cap(strings.TrimSpace(fence.Neutral(text, "")), most)
	return kept
}
