package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// maxWork is how many schemas one value may have to be held against.
const maxWork = 10_000

// work counts the schemas that one value is held against, those of its parts not included. Alternatives of alternatives
// multiply: a schema of a few lines can ask for more than anybody has time for.
func work(s *jsonschema.Schema) int { return counter{}.count(s) }

// counter knows what was counted, and has 0 for what is being counted: a reference back to it is refused when a value is checked.
type counter map[*jsonschema.Schema]int

func (c counter) count(s *jsonschema.Schema) int {
	if s == nil {
		return 0
	}
	if n, ok := c[s]; ok {
		return n
	}
	c[s] = 0
	n := 1
	for _, inner := range inPlace(s) {
		n = min(n+c.count(inner), maxWork+1)
	}
	c[s] = n
	most := n
	for _, part := range parts(s) {
		most = max(most, c.count(part))
	}
	if most > maxWork { // also where only a part of the value is held against so many
		c[s] = most
	}
	return c[s]
}

// inPlace are the schemas that the value itself is held against, too.
func inPlace(s *jsonschema.Schema) []*jsonschema.Schema {
	all := []*jsonschema.Schema{s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else}
	if s.DynamicRef != nil {
		all = append(all, s.DynamicRef.Ref)
	}
	all = append(append(append(all, s.AllOf...), s.AnyOf...), s.OneOf...)
	for _, d := range s.DependentSchemas {
		all = append(all, d)
	}
	for _, d := range s.Dependencies {
		if d, ok := d.(*jsonschema.Schema); ok {
			all = append(all, d)
		}
	}
	return all
}

// parts are the schemas that parts of the value are held against.
func parts(s *jsonschema.Schema) []*jsonschema.Schema {
	all := []*jsonschema.Schema{s.PropertyNames, s.UnevaluatedProperties, s.UnevaluatedItems, s.Contains, s.Items2020, s.ContentSchema}
	for _, p := range s.Properties {
		all = append(all, p)
	}
	for _, p := range s.PatternProperties {
		all = append(all, p)
	}
	all = append(all, s.PrefixItems...)
	for _, either := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch either := either.(type) {
		case *jsonschema.Schema:
			all = append(all, either)
		case []*jsonschema.Schema:
			all = append(all, either...)
		}
	}
	return all
}
