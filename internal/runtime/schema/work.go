package schema

import (
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// maxWork is the maximum number of schemas that may apply to one value, without the schemas for its parts.
	maxWork = 10_000
	// maxChain is the maximum length of a chain of nested or referenced schemas for one value.
	maxChain = 512
	// maxSchemas is the maximum number of objects and booleans in a document. Each of them may be a schema, which takes
	// about 1 KiB of memory. The more schemas a document has, the longer each takes to compile.
	maxSchemas = 5000
)

// The reasons why a schema is rejected before any value is validated.
var (
	errCyclic       = errors.New("it refers to itself for the same value in an endless circle")
	errAlternatives = errors.New("it has too many alternatives for one value")
	errSchemas      = errors.New("it has too many parts")
	errDynamic      = errors.New("it has dynamic references whose target depends on the path to them")
)

// countSchemas returns the number of schemas within a compiled schema. It returns an error if the time of a validation
// would not be bounded.
func countSchemas(root *jsonschema.Schema, document any) (int, error) {
	all := reachable(root)
	if ambiguous(all, document) {
		return 0, errDynamic
	}
	c := counter{}
	for _, s := range all {
		if _, err := c.count(s); err != nil {
			return 0, err
		}
	}
	return len(all), nil
}

// tooLarge reports whether a document may have too many schemas. It is called before the document is compiled.
func tooLarge(document any) bool {
	n := 0
	for v := range valuesIn(document) {
		switch v.(type) {
		case map[string]any, bool:
			n++
		}
		if n > maxSchemas {
			return true
		}
	}
	return false
}

// valuesIn returns an iterator over a value and all values in it.
func valuesIn(v any) iter.Seq[any] {
	return func(yield func(any) bool) {
		for open := []any{v}; len(open) > 0; {
			v := open[len(open)-1]
			if open = open[:len(open)-1]; !yield(v) {
				return
			}
			switch v := v.(type) {
			case map[string]any:
				open = slices.AppendSeq(open, maps.Values(v))
			case []any:
				open = append(open, v...)
			}
		}
	}
}

// reachable returns a schema and all schemas that it leads to.
func reachable(root *jsonschema.Schema) []*jsonschema.Schema {
	all, known := []*jsonschema.Schema{root}, map[*jsonschema.Schema]bool{root: true, nil: true}
	for i := 0; i < len(all); i++ {
		for _, next := range append(inPlace(all[i]), parts(all[i])...) {
			if !known[next] {
				known[next] = true
				all = append(all, next)
			}
		}
	}
	return all
}

// ambiguous reports whether the target of a dynamic reference may depend on the path to it. The schemas that apply
// to a value could then not be determined from the document alone. A single anchor in the document leaves no
// choice, and neither do the meta-schemas alone.
func ambiguous(all []*jsonschema.Schema, document any) bool {
	switch dynamicAnchors(document) {
	case 0:
		return false
	case 1:
		for _, s := range all {
			if strings.HasPrefix(s.Location, "https://json-schema.org/") || strings.HasPrefix(s.Location, "http://json-schema.org/") {
				return true
			}
		}
		return false
	}
	return true
}

// dynamicAnchors returns the number of dynamic anchors by the drafts of 2020 and 2019. An anchor by the draft of
// 2019 that is not at the top counts twice, because its target depends on the path to it.
func dynamicAnchors(document any) int {
	n := 0
	if object, ok := document.(map[string]any); ok && object["$recursiveAnchor"] == true {
		n-- // counted twice below
	}
	for v := range valuesIn(document) {
		object, ok := v.(map[string]any)
		if !ok {
			continue
		}
		if _, ok := object["$dynamicAnchor"].(string); ok {
			n++
		}
		if object["$recursiveAnchor"] == true {
			n += 2
		}
	}
	return n
}

// counter counts the schemas that apply to one value, without the schemas for its parts. Nested alternatives multiply,
// so a schema of a few lines can require too much time.
type counter map[*jsonschema.Schema]*counted

// counted is a count. Its done field is false until the count is complete.
type counted struct {
	schemas, chain int
	done           bool
}

func (c counter) count(s *jsonschema.Schema) (*counted, error) {
	if n, ok := c[s]; ok {
		if !n.done {
			return nil, errCyclic
		}
		return n, nil
	}
	n := &counted{schemas: 1}
	c[s] = n
	for _, inner := range inPlace(s) {
		if inner == nil {
			continue
		}
		its, err := c.count(inner)
		if err != nil {
			return nil, err
		}
		n.schemas, n.chain = n.schemas+its.schemas, max(n.chain, its.chain+1)
		if n.schemas > maxWork || n.chain > maxChain {
			return nil, errAlternatives
		}
	}
	n.done = true
	return n, nil
}

// inPlace returns the schemas that also apply to the same value.
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

// parts returns the schemas that apply to parts of the value.
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
