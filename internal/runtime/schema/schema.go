// Package schema checks JSON against a JSON Schema (2020-12) that came from outside: it follows no reference to another
// document, and what it says of a value is bounded.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// MaxSource bounds a schema, in bytes.
	MaxSource = 1 << 20
	// MaxValue bounds a value that is checked, in bytes.
	MaxValue = 1 << 20
	// MaxViolations is how many violations are told of one value.
	MaxViolations = 10
)

// location names the document of a schema. No reference leads out of it.
const location = "capstan:///schema.json"

// What a part of a schema, and a character of a pattern, take of memory once they are compiled, in bytes.
const (
	bytesOfSchema  = 1 << 10
	bytesOfPattern = 100
)

// Schema is a compiled JSON Schema. It is safe for concurrent use.
type Schema struct {
	// Source is the schema as it was given.
	Source   json.RawMessage
	compiled *jsonschema.Schema
	// size is about how many bytes of memory it takes.
	size int
}

// Violation is a place at which a value does not fit.
type Violation struct {
	// Path of the place, as a JSON pointer of at most 100 characters; empty for the whole value.
	Path string
	// Message says what is wrong there, in at most 200 characters.
	Message string
}

// String is the violation on one line.
func (v Violation) String() string {
	if v.Path == "" {
		return v.Message
	}
	return v.Path + ": " + v.Message
}

// Compile returns a schema, or an error that says what is wrong with it: it is no JSON, longer than MaxSource, deeper than
// 64 levels, refers to another document, is no JSON Schema, or takes too long to check anything against: it refers to itself for
// the same value, has too many parts or alternatives, or patterns that are too large or too many.
func Compile(source json.RawMessage) (*Schema, error) {
	if len(source) > MaxSource {
		return nil, fmt.Errorf("the schema cannot be used: it has %d bytes, and %d is the most", len(source), MaxSource)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
	if err != nil {
		return nil, fmt.Errorf("the schema is not JSON: %w", err)
	}
	if wrong := ambiguities(source); len(wrong) > 0 {
		return nil, fmt.Errorf("the schema cannot be used: %s", wrong[0])
	}
	if tooLarge(document) {
		return nil, fmt.Errorf("the schema cannot be used: %w", errSchemas)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nowhere{})
	regexps := patterns{known: map[string]*boundedPattern{}}
	c.UseRegexpEngine(regexps.compile)
	if err := c.AddResource(location, document); err != nil {
		return nil, fmt.Errorf("the schema cannot be used: %w", err)
	}
	compiled, err := c.Compile(location)
	if err != nil {
		return nil, fmt.Errorf("the schema cannot be used: %w", err)
	}
	schemas, err := reviewed(compiled, document)
	if err != nil {
		return nil, fmt.Errorf("the schema cannot be used: %w", err)
	}
	return &Schema{Source: source, compiled: compiled, size: len(source) + schemas*bytesOfSchema + regexps.close()*bytesOfPattern}, nil
}

// Validate returns where a value does not fit, by path and at most MaxViolations; none if it fits. A value that is no JSON, or that
// not all would read alike, fits nowhere: one longer than MaxValue or deeper than 64 levels, with a key twice in one
// object, or with a number that is out of the range of a 64-bit float or longer than 100 characters. Nor does one that would take
// too long to check, as a deep one does against a schema that leads back to itself by several ways at once.
func (s *Schema) Validate(value json.RawMessage) []Violation {
	if wrong := Plain(value); len(wrong) > 0 {
		return wrong
	}
	failure, err := s.check(value)
	switch {
	case err != nil:
		return []Violation{{Message: err.Error()}}
	case failure == nil:
		return nil
	}
	var all []Violation
	for leaf := range leaves(failure) {
		all = append(all, violation(leaf))
	}
	return sorted(all)
}

// check holds a value against the schema. The error is that of a value or of a schema that cannot be worked with.
func (s *Schema) check(value json.RawMessage) (failure *jsonschema.ValidationError, err error) {
	defer func() {
		if recover() != nil { // a schema from outside must not end a run, whatever it does to the library
			failure, err = nil, errors.New("the value cannot be held against the schema")
		}
	}()
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return nil, errors.New("is not JSON")
	}
	return s.against(instance)
}

func (s *Schema) against(instance any) (*jsonschema.ValidationError, error) {
	if !affordable(s.compiled, instance) {
		return nil, errEffort
	}
	err := s.compiled.Validate(instance)
	if err == nil {
		return nil, nil //nolint:nilnil // because no failure and no error is a value that fits
	}
	if failure, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return failure, nil
	}
	return nil, err
}

// nowhere loads nothing.
type nowhere struct{}

// Load refuses.
func (nowhere) Load(url string) (any, error) {
	return nil, errors.New("references to other documents are not followed: " + strings.TrimPrefix(url, "capstan:///"))
}
