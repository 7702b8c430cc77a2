package tool

import (
	"bytes"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/pattern"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

// maxRepairDepth is the depth down to which repair looks for faults. A deeper schema cannot be used.
const maxRepairDepth = 64

// repair removes from the schema of a server's tool what makes it unusable and is not needed, because the server checks
// its arguments itself. It returns nil if it finds nothing to remove. Common libraries write such schemas:
//
//   - a pattern that Go's regular expressions do not support. zod 4 describes e-mail addresses by a pattern with a
//     look-ahead. Providers of models refuse such patterns, too.
//   - null as the value of a keyword, such as required, from encoders that write fields without a value.
//   - exclusiveMinimum and exclusiveMaximum as Booleans, and items as lists, as in older drafts of JSON Schema, without
//     a $schema that says so.
//   - the type "any" of draft 3.
func repair(source json.RawMessage) json.RawMessage {
	decoder := json.NewDecoder(bytes.NewReader(source))
	decoder.UseNumber()
	var root map[string]any
	if decoder.Decode(&root) != nil || len(schema.Ambiguities(source)) > 0 {
		return nil
	}
	modernized := schema.ModernizeFaults(root)
	if !repairSchema(root, 0) && !modernized {
		return nil
	}
	var repaired bytes.Buffer
	e := json.NewEncoder(&repaired)
	e.SetEscapeHTML(false)
	if e.Encode(root) != nil {
		return nil
	}
	return repaired.Bytes()
}

// repairSchema removes what makes a schema unusable, and reports whether there was anything.
func repairSchema(keywords map[string]any, depth int) (changed bool) {
	if depth > maxRepairDepth {
		return false
	}
	drop := func(keyword string) {
		delete(keywords, keyword)
		changed = true
	}
	for keyword, v := range keywords {
		if v == nil && keyword != "const" && keyword != "default" {
			drop(keyword)
		}
	}
	if keywords["type"] == "any" {
		drop("type")
	}
	if !supported(keywords["pattern"]) {
		drop("pattern")
	}
	if byPattern, ok := keywords["patternProperties"].(map[string]any); ok {
		for expression := range byPattern {
			if !supported(expression) {
				delete(byPattern, expression)
				drop("additionalProperties") // this and the next would refuse the properties of the pattern
				drop("unevaluatedProperties")
			}
		}
	}
	for keyword, inner := range schema.Subschemas(keywords) {
		if repairSchema(inner, depth+1) {
			loosen(keywords, keyword)
			changed = true
		}
	}
	return changed
}

// loosen removes or replaces a keyword whose schema was repaired, if values could now violate the keyword that did not
// violate it before: a repaired schema accepts more values.
func loosen(keywords map[string]any, keyword string) {
	switch keyword {
	case "not":
		delete(keywords, "not")
	case "if":
		delete(keywords, "if") // without it, then and else have no effect
	case "oneOf": // a value may now fit several of the schemas
		if _, has := keywords["anyOf"]; !has {
			keywords["anyOf"] = keywords["oneOf"]
		}
		delete(keywords, "oneOf")
	}
}

// supported reports whether a pattern can be checked. It returns true for a value that is no text.
func supported(expression any) bool {
	text, ok := expression.(string)
	if !ok {
		return true
	}
	_, err := pattern.Compile(text)
	return err == nil
}
