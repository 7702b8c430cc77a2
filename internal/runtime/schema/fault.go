package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

const (
	cannotBeUsed = "the schema cannot be used: "
	// hidden takes the place of a name that a schema defines.
	hidden = "*"
	// badPattern is the class of a pattern that does not compile, or is beyond a bound.
	badPattern = "a pattern is invalid or too large"
)

// Fault is the reason why a schema cannot be used. Its Error may quote the schema, and its Summary never does.
type Fault struct {
	// Class is the kind of the fault, in words that do not depend on the schema.
	Class string
	// Place is a JSON pointer to the faulty part, of at most 100 characters. It has only indexes and keywords of JSON
	// Schema: other names are replaced by *. It is empty if the place is not known, or is the whole schema.
	Place string
	err   error
}

// Error returns the reason with its details.
func (f *Fault) Error() string { return f.err.Error() }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.err }

// Summary returns the class and the place on one line.
func (f *Fault) Summary() string {
	if f.Place == "" {
		return cannotBeUsed + f.Class
	}
	return cannotBeUsed + f.Class + ", at " + f.Place
}

// ownFault returns the fault for an error that does not quote the schema.
func ownFault(err error) *Fault {
	return &Fault{Class: err.Error(), err: fmt.Errorf(cannotBeUsed+"%w", err)}
}

// libraryFault returns the fault for an error of the library.
func libraryFault(err error) *Fault {
	class, place := classify(err)
	return &Fault{Class: class, Place: place, err: fmt.Errorf(cannotBeUsed+"%w", err)}
}

// classify returns the class and the place of an error of the library.
func classify(err error) (class, place string) {
	if _, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return errLoad.Error(), ""
	}
	if e, ok := errors.AsType[*jsonschema.InvalidRegexError](err); ok {
		_, fragment, _ := strings.Cut(e.URL, "#")
		return badPattern, keywordsOf(fragment)
	}
	_, noPointer := errors.AsType[*jsonschema.JSONPointerNotFoundError](err)
	_, noAnchor := errors.AsType[*jsonschema.AnchorNotFoundError](err)
	if noPointer || noAnchor {
		return "a reference leads to no part of it", ""
	}
	class = "it is not a valid JSON Schema"
	e, _ := errors.AsType[*jsonschema.SchemaValidationError](err)
	if e == nil {
		return class, ""
	}
	failure, ok := errors.AsType[*jsonschema.ValidationError](e.Err)
	if !ok {
		return class, ""
	}
	var first leaf
	for l := range leaves(failure) { // in any order
		if at := keywordsOf(pointer(l.InstanceLocation)); first.ValidationError == nil || at < place {
			first, place = l, at
		}
	}
	if f, ok := first.ErrorKind.(*kind.Format); ok && f.Want == "regex" {
		class = badPattern
	}
	return class, place
}

// keywordsOf returns a JSON pointer into a schema in which each name that is not a keyword is hidden.
func keywordsOf(pointer string) string {
	tokens := strings.Split(pointer, "/")
	isName := false // after a keyword whose members have names of the schema
	for i, token := range tokens[1:] {
		known := !isName && slices.Contains(keywords, token)
		isIndex := token != "" && strings.Trim(token, "0123456789") == ""
		if isName || !known && !isIndex {
			tokens[i+1] = hidden
		}
		isName = known && slices.Contains(keywordsWithNames, token)
	}
	return short(strings.Join(tokens, "/"), maxPath)
}

// keywordsWithNames are the keywords whose members have names that the schema defines.
var keywordsWithNames = []string{
	"$defs", "$vocabulary", "definitions", "dependencies", "dependentRequired", "dependentSchemas", "patternProperties", "properties",
}

// keywords are the keywords of JSON Schema in all drafts.
var keywords = append([]string{
	"$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "$ref", "$schema",
	"additionalItems", "additionalProperties", "allOf", "anyOf", "const", "contains", "contentEncoding", "contentMediaType",
	"contentSchema", "default", "deprecated", "description", "else", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum",
	"format", "id", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems",
	"minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "prefixItems", "propertyNames", "readOnly",
	"required", "then", "title", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems", "writeOnly",
}, keywordsWithNames...)
