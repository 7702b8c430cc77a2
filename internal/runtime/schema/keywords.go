package schema

import (
	"iter"
	"slices"
)

// The keywords whose values are a schema, a list of schemas, or an object of schemas. The value of items may be a
// schema or a list.
var (
	oneSchema = []string{
		"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
		"unevaluatedItems", "unevaluatedProperties",
	}
	listOfSchemas    = []string{"allOf", "anyOf", "items", "oneOf", "prefixItems"}
	objectsOfSchemas = []string{"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)

// Subschemas returns the schemas directly within a decoded schema, each with the keyword that it belongs to. The caller
// may change the schema meanwhile.
func Subschemas(keywords map[string]any) iter.Seq2[string, map[string]any] {
	return func(yield func(string, map[string]any) bool) {
		visit := func(keyword string, value any) bool {
			inner, ok := value.(map[string]any)
			return !ok || yield(keyword, inner)
		}
		for _, keyword := range oneSchema {
			if !visit(keyword, keywords[keyword]) {
				return
			}
		}
		for _, keyword := range listOfSchemas {
			list, _ := keywords[keyword].([]any)
			if slices.ContainsFunc(list, func(inner any) bool { return !visit(keyword, inner) }) {
				return
			}
		}
		for _, keyword := range objectsOfSchemas {
			object, _ := keywords[keyword].(map[string]any)
			for _, inner := range object {
				if !visit(keyword, inner) {
					return
				}
			}
		}
	}
}
