package schema

import (
	"errors"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxEffort is how many schemas a value and its parts may be held against, together: less than a second.
const maxEffort = 1_000_000

// errEffort is the violation of a value that asks for too much.
var errEffort = errors.New("is too large or nested too deep to be held against a schema with so many alternatives")

// affordable says whether a value can be held against a schema in a bounded time. A schema that leads back to itself by several
// ways for one and the same property makes each level of a value multiply the work; where the ways are of different
// properties, the value decides. So the work is counted before it is done, which takes a small part of the time.
func affordable(s *jsonschema.Schema, value any) bool {
	e := effort{left: maxEffort}
	e.value(s, value)
	return e.left > 0
}

// effort is what is left of it.
type effort struct{ left int }

// value takes what it costs to hold a value against a schema. Where it is not certain that a schema applies it is taken
// to, but for a property that has been seen to by its name.
func (e *effort) value(s *jsonschema.Schema, v any) {
	if s == nil || e.left <= 0 {
		return
	}
	e.left--
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

// text takes what it costs to look for a pattern in a text.
func (e *effort) text(pattern jsonschema.Regexp, text string) {
	if p, ok := pattern.(*boundedPattern); ok {
		e.left -= 1 + len(text)*(p.size+1)/patternSteps
	}
}
