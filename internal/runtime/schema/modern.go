package schema

import (
	"bytes"
	"encoding/json"
	"regexp"
)

// olderDraft matches the URL of a draft of JSON Schema before 2020-12, and draft4 that of a draft in which
// exclusiveMinimum and exclusiveMaximum are Booleans.
var (
	olderDraft = regexp.MustCompile(`^https?://json-schema\.org/(draft-0[1-7]/schema|draft/2019-09/schema)#?$`)
	draft4     = regexp.MustCompile(`^https?://json-schema\.org/draft-0[1-4]/schema#?$`)
)

// olderForms are forms of older drafts that the draft 2020-12 does not allow: lists in items, and Booleans in
// exclusiveMinimum and exclusiveMaximum.
type olderForms struct{ tuples, bounds bool }

// Modern returns a schema without the older forms that Modernize replaces. It returns the source itself if the schema
// has none, or is not JSON.
func Modern(source json.RawMessage) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(source))
	d.UseNumber()
	var root any
	if d.Decode(&root) != nil || !Modernize(root) {
		return source
	}
	modern, err := json.Marshal(root)
	if err != nil {
		return source
	}
	return modern
}

// Modernize replaces the older forms of a decoded schema, and reports whether it had any. Anthropic and OpenAI refuse
// a request if a schema in it has such a form, also if its $schema allows it: github.com/vercel/ai/issues/2271 and
// github.com/Dokploy/mcp/issues/74.
func Modernize(value any) bool {
	root, ok := value.(map[string]any)
	if !ok || !(olderForms{tuples: true, bounds: true}).replace(root, 0) {
		return false
	}
	if url, ok := root["$schema"].(string); ok && olderDraft.MatchString(url) {
		delete(root, "$schema")
	}
	return true
}

// ModernizeFaults replaces the older forms that are faults in a decoded schema, because its $schema does not allow
// them. It reports whether it had any.
func ModernizeFaults(root map[string]any) bool {
	url, _ := root["$schema"].(string)
	return olderForms{tuples: !olderDraft.MatchString(url), bounds: !draft4.MatchString(url)}.replace(root, 0)
}

// replace replaces the forms in a schema, and reports whether it had any.
func (f olderForms) replace(keywords map[string]any, depth int) (changed bool) {
	if depth > maxDepth {
		return false
	}
	if tuple, ok := keywords["items"].([]any); ok && f.tuples {
		replaceTuple(keywords, tuple)
		changed = true
	}
	for _, bound := range [][2]string{{"exclusiveMinimum", "minimum"}, {"exclusiveMaximum", "maximum"}} {
		if exclusive, ok := keywords[bound[0]].(bool); ok && f.bounds {
			replaceBound(keywords, bound[0], bound[1], exclusive)
			changed = true
		}
	}
	for _, inner := range Subschemas(keywords) {
		changed = f.replace(inner, depth+1) || changed
	}
	return changed
}

// replaceTuple replaces a list in items. OpenAI refuses a list type without items:
// github.com/AnswerDotAI/fastcore/issues/798.
func replaceTuple(keywords map[string]any, tuple []any) {
	rest, has := keywords["additionalItems"]
	if !has {
		rest = map[string]any{}
	}
	delete(keywords, "additionalItems")
	keywords["items"] = rest
	if len(tuple) > 0 { // prefixItems must not be empty
		keywords["prefixItems"] = tuple
	}
}

// replaceBound replaces a Boolean in exclusiveMinimum or exclusiveMaximum, which is about the keyword inclusive.
func replaceBound(keywords map[string]any, exclusive, inclusive string, isExclusive bool) {
	delete(keywords, exclusive)
	if limit, has := keywords[inclusive]; isExclusive && has {
		keywords[exclusive] = limit
		delete(keywords, inclusive)
	}
}
