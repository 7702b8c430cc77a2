package schema

import (
	"errors"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

// maxEffort is the maximum number of schemas that may apply to a value and all its parts together, plus the number of
// comparisons with allowed values. It corresponds to less than a second.
const maxEffort = 1_000_000

// errEffort is the violation of a value whose validation takes too long.
var errEffort = errors.New("is too large or nested too deep to be validated against a schema with so many alternatives")

// affordable reports whether a value can be validated in a bounded time. If a schema refers back to itself in several
// ways for the same property, each level of a value multiplies the work. If the references are for different
// properties, the work depends on the value. This function therefore counts the work before the validation, which takes
// much longer than the counting.
func affordable(s *jsonschema.Schema, value any) bool {
	e := effort{left: maxEffort}
	e.value(s, value)
	return e.left > 0
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

// text subtracts the cost of searching a text for a pattern.
func (e *effort) text(searched jsonschema.Regexp, text string) {
	if p, ok := searched.(*pattern.Pattern); ok {
		e.left -= 1 + len(text)*(p.Size+1)/patternSteps
	}
}
