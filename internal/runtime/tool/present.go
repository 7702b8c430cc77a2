package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// The bounds for the description of a server's tool. Lengths are in characters, except maxSchema, which is in
// bytes.
const (
	maxDescription     = 1024
	maxSchema          = 64 << 10
	maxParameters      = 64
	maxParameterText   = 512
	maxValue           = 128
	maxValues          = 64
	furtherParameters  = "It has more parameters: see its schema."
	maxReferences      = 8
	objectType         = "object"
	anyParameterSchema = `{"properties":{},"type":"object"}`
)

// Unusable returns the reason why a server's tool cannot be offered to a model, or nil if it can. If the error
// is a *schema.Fault, it may quote the tool's schema, which is text from outside, but its Summary does not.
func Unusable(ctx context.Context, t Tool) error {
	_, err := presentable(ctx, t)
	return err
}

// presentable returns a tool in the form for a model, or the reason why this is impossible. No provider accepts a tool
// whose arguments are not an object, and one rejected tool would end the Turn. Texts of a server are from outside, so
// they are cleaned and shortened. A tool with neither a server nor a schema is Capstan's own and stays unchanged. Work
// on a large schema first waits until the namespace of ctx is next: see fairgate.AcquireProcessor.
func presentable(ctx context.Context, t Tool) (Tool, error) {
	if t.Source.Server == "" && len(t.Schema) == 0 {
		return t, nil
	}
	t.Description, t.UseWhen = first(t.Description, maxDescription), first(t.UseWhen, maxDescription)
	object, whole, err := usableSchema(ctx, t.Schema)
	if err != nil {
		return Tool{}, err
	}
	defer fairgate.AcquireProcessor(ctx, len(whole))()
	t.Schema, t.Shown = whole, shownSchema(whole)
	var complete bool
	t.Parameters, complete = parametersOf(object)
	if !complete {
		t.Description = strings.TrimSpace(t.Description + " " + furtherParameters)
	}
	return t, nil
}

// usableSchema does the same as wholeSchema, and repairs a schema that cannot be used. If this does not help, it
// returns the error of the schema as it was.
func usableSchema(ctx context.Context, source json.RawMessage) (map[string]json.RawMessage, json.RawMessage, error) {
	object, whole, err := checkedSchema(ctx, source)
	if err == nil || len(source) > maxSchema {
		return object, whole, err
	}
	release := fairgate.AcquireProcessor(ctx, len(source))
	repaired := repair(source)
	release()
	if repaired == nil {
		return nil, nil, err
	}
	object, whole, failure := checkedSchema(ctx, repaired)
	if failure != nil {
		return nil, nil, err
	}
	return object, whole, nil
}

// checkedSchema does the same as wholeSchema, and returns an error if the schema cannot be used.
func checkedSchema(ctx context.Context, source json.RawMessage) (map[string]json.RawMessage, json.RawMessage, error) {
	object, whole, err := wholeSchema(ctx, source)
	if err == nil {
		_, err = schema.Cached(ctx, whole)
	}
	return object, whole, err
}

// wholeSchema returns the top-level keywords of a schema as rootOf does, and the schema with all of them.
func wholeSchema(ctx context.Context, source json.RawMessage) (map[string]json.RawMessage, json.RawMessage, error) {
	defer fairgate.AcquireProcessor(ctx, len(source))()
	object, err := rootOf(source)
	if err != nil {
		return nil, nil, err
	}
	whole, err := json.Marshal(object)
	if err != nil {
		return nil, nil, errors.New("the schema cannot be written as JSON")
	}
	return object, whole, nil
}

// rootOf returns the top-level keywords of a schema. It adds a missing type or missing properties, and rejects a
// schema whose type is not object.
func rootOf(source json.RawMessage) (map[string]json.RawMessage, error) {
	if len(bytes.TrimSpace(source)) == 0 {
		source = json.RawMessage(anyParameterSchema)
	}
	if len(source) > maxSchema {
		return nil, fmt.Errorf("the schema has %d bytes, and the maximum is %d", len(source), maxSchema)
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

// parametersOf returns the parameters for the prompt: the required parameters first, each group sorted by name.
// complete is false if parameters are left out, because their names are not allowed or because there are too many.
func parametersOf(root map[string]json.RawMessage) (parameters []prompt.Parameter, complete bool) {
	var properties map[string]json.RawMessage
	var required []string
	_ = json.Unmarshal(root["properties"], &properties) // a schema without an object of properties has no parameters
	_ = json.Unmarshal(root["required"], &required)     // a schema without a list of names requires none
	complete = true
	for name, source := range properties {
		if !prompt.ParameterName(name) {
			complete = false
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
	return parameters, complete
}

// property holds the keywords of a parameter's schema that the prompt uses.
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

// parameterOf returns the description of a parameter for the prompt, without its name. The schema has the details
// that the prompt cannot express.
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

// kind returns the type of a parameter for the prompt. It follows alternatives (anyOf, oneOf) up to depth levels deep.
func (s property) kind(root map[string]json.RawMessage, depth int) string {
	var one string
	var several []string
	if json.Unmarshal(s.Type, &one) == nil {
		several = []string{one}
	} else {
		_ = json.Unmarshal(s.Type, &several) // any other form is ignored
	}
	for _, kind := range several {
		switch kind {
		case "string", "integer", "number", "boolean", "array", objectType:
			return kind
		}
	}
	if depth > 0 {
		for _, source := range slices.Concat(s.AnyOf, s.OneOf) {
			if choice := resolved(root, source); string(choice.Type) != `"null"` {
				return choice.kind(root, depth-1)
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

// resolved parses a schema. If the schema is a reference within the same document, resolved returns the target. A
// description or default next to the reference overrides the one in the target.
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

// at returns the value at a JSON pointer.
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

// first returns the beginning of a text. The text is cleaned as in a prompt, but not escaped.
func first(text string, most int) string {
	kept, _ := untrusted.Cap(strings.TrimSpace(untrusted.Neutral(text, "")), most)
	return kept
}
