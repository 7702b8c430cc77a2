package schema

import (
	"errors"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

const (
	// maxEffort is the maximum effort of validating a value, in steps. One step is a schema that may apply to the value
	// or to one of its parts, a comparison with an allowed value, or other work that takes about as long. The maximum
	// corresponds to less than a second.
	maxEffort = 1_000_000
	// quickSteps is the effort up to which the check of a short value does not wait for the turn of its namespace. It
	// takes about as long as decoding fairgate.Large bytes, and the arguments of most calls need less than a tenth.
	quickSteps = 300
	// namesPerStep is the number of names that cost one step. The library looks at all names that an object has, and
	// that its schema requires.
	namesPerStep = 8
	// bytesPerStep is the number of bytes of a text that cost one step, because the library copies the text for each
	// schema. If the schema has a format, formatBytesPerStep bytes cost one step.
	bytesPerStep, formatBytesPerStep = 512, 128
	// regexPerStep is the number of characters of a pattern that a step compiles, for a value that must be a pattern.
	regexPerStep = 8
	// fewItems is the maximum length of a list whose items the library compares pair by pair to find equal ones.
	fewItems = 20
)

// errEffort is the violation of a value whose validation takes too long.
var errEffort = errors.New("is too large or nested too deep to be validated against a schema with so many alternatives")

// effortOf returns the work of validating a value, at most most + 1. If a schema refers back to itself in several ways
// for the same property, each level of a value multiplies the work. If the references are for different properties, the
// work depends on the value. This function therefore counts the work before the validation, which takes much longer
// than the counting.
func effortOf(s *jsonschema.Schema, value any, most int) int {
	e := effort{left: most + 1}
	e.value(s, value)
	return most + 1 - max(e.left, 0)
}

// effort is the remaining effort.
type effort struct{ left int }

// value subtracts the cost of validating a value against a schema. It counts each schema that may apply. It does not
// count the schemas for additional and unevaluated properties for a property that a name or a pattern covers.
func (e *effort) value(s *jsonschema.Schema, v any) {
	if s == nil || e.left <= 0 {
		return
	}
	e.left--
	if s.Const != nil {
		e.compare(*s.Const)
	}
	if s.Enum != nil {
		for _, allowed := range s.Enum.Values {
			e.compare(allowed)
		}
	}
	for _, inner := range inPlace(s) {
		e.value(inner, v)
	}
	switch v := v.(type) {
	case map[string]any:
		e.object(s, v)
	case []any:
		e.list(s, v)
	case string:
		e.text(s.Pattern, v)
		e.string(s, v)
	}
}

// compare subtracts the cost of comparing a value with an allowed one. A comparison of two numbers, which may have any
// number of digits, takes about as long as the validation against a simple schema.
func (e *effort) compare(allowed any) {
	if e.left--; e.left <= 0 {
		return
	}
	switch allowed := allowed.(type) {
	case map[string]any:
		for _, v := range allowed {
			e.compare(v)
		}
	case []any:
		for _, v := range allowed {
			e.compare(v)
		}
	}
}

func (e *effort) object(s *jsonschema.Schema, object map[string]any) {
	names := len(object) + len(s.Required)
	for _, required := range s.DependentRequired {
		names += 1 + len(required)
	}
	for _, either := range s.Dependencies {
		required, _ := either.([]string)
		names += 1 + len(required)
	}
	if e.left -= names / namesPerStep; e.left <= 0 {
		return
	}
	additional, _ := s.AdditionalProperties.(*jsonschema.Schema)
	for name, v := range object {
		e.value(s.PropertyNames, name)
		own, known := s.Properties[name]
		e.value(own, v)
		for pattern, p := range s.PatternProperties {
			e.text(pattern, name)
			if e.left > 0 && pattern.MatchString(name) {
				known = true
				e.value(p, v)
			}
		}
		if !known {
			e.value(additional, v)
			e.value(s.UnevaluatedProperties, v)
		}
	}
}

func (e *effort) list(s *jsonschema.Schema, list []any) {
	if s.UniqueItems {
		e.unique(list)
	}
	first := s.PrefixItems
	rest := s.Items2020
	switch items := s.Items.(type) {
	case *jsonschema.Schema:
		rest = items
	case []*jsonschema.Schema:
		first = items
		rest, _ = s.AdditionalItems.(*jsonschema.Schema)
	}
	for i, v := range list {
		if i < len(first) {
			e.value(first[i], v)
		} else {
			e.value(rest, v)
			e.value(s.UnevaluatedItems, v)
		}
		e.value(s.Contains, v)
	}
}

// unique subtracts the cost of looking for equal items in a list. A short list is compared pair by pair.
func (e *effort) unique(list []any) {
	times := 1
	if len(list) <= fewItems {
		times = len(list)
	}
	for v := range valuesIn(list) {
		steps := 1
		if text, ok := v.(string); ok {
			steps += len(text) / bytesPerStep
		}
		if e.left -= steps * times; e.left <= 0 {
			return
		}
	}
}

// string subtracts the cost of copying a text, and of checking its format.
func (e *effort) string(s *jsonschema.Schema, text string) {
	e.left -= len(text) / bytesPerStep
	switch {
	case s.Format == nil:
	case s.Format.Name != "regex":
		e.left -= len(text) / formatBytesPerStep
	case len(text) <= pattern.MaxBytes: // a longer text is rejected before it is compiled
		e.left -= pattern.Work(text) / regexPerStep
	}
}

// text subtracts the cost of searching a text for a pattern.
func (e *effort) text(searched jsonschema.Regexp, text string) {
	if p, ok := searched.(*pattern.Pattern); ok {
		e.left -= 1 + len(text)*(p.Size+1)/patternSteps
	}
}
