// Package schema validates JSON against a JSON Schema (2020-12) from outside. It follows no reference to another
// document, and the length of its messages is bounded.
package schema

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

const (
	// MaxSource is the maximum size of a schema, in bytes.
	MaxSource = 1 << 20
	// MaxValue is the maximum size of a value, in bytes.
	MaxValue = 1 << 20
	// MaxViolations is the maximum number of reported violations of one value.
	MaxViolations = 10
)

// location is the URL of the schema's document. No reference may lead out of this document.
const location = "capstan:///schema.json"

// bytesOfSchema is the memory that a compiled part of a schema takes, in bytes.
const bytesOfSchema = 1 << 10

// Schema is a compiled JSON Schema. It is safe for concurrent use.
type Schema struct {
	// Source is the original schema.
	Source   json.RawMessage
	compiled *jsonschema.Schema
	// size is the approximate memory use, in bytes.
	size int
}

// Violation is a location at which a value does not fit its schema.
type Violation struct {
	// Path is a JSON pointer to the location, of at most 100 characters. It is empty for the whole value.
	Path string
	// Message describes the problem, in at most 200 characters.
	Message string
}

// String returns the violation on one line.
func (v Violation) String() string {
	if v.Path == "" {
		return v.Message
	}
	return v.Path + ": " + v.Message
}

// Compile compiles a schema. It returns a *Fault for a source that is not JSON, is longer than MaxSource or deeper than
// 64 levels, refers to another document, or is not a JSON Schema. It also returns a *Fault if validation could take too
// long, because the schema refers to itself for the same value, has too many parts or alternatives, or has too many or
// too large patterns.
func Compile(source json.RawMessage) (*Schema, error) {
	if len(source) > MaxSource {
		return nil, ownFault(fmt.Errorf("it has %d bytes, and the maximum is %d", len(source), MaxSource))
	}
	compiled, size, err := compileSource(source)
	if err != nil {
		return nil, err
	}
	return &Schema{Source: source, compiled: compiled, size: size}, nil
}

// compileSource compiles a schema, and returns its approximate memory use in bytes.
func compileSource(source json.RawMessage) (*jsonschema.Schema, int, error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
	if err != nil {
		return nil, 0, &Fault{Class: "it is not JSON", err: fmt.Errorf("the schema is not JSON: %w", err)}
	}
	if found := ambiguities(source); len(found) > 0 {
		return nil, 0, &Fault{
			Class: "a part of it " + found[0].Message, Place: keywordsOf(found[0].Path), err: errors.New(cannotBeUsed + found[0].String()),
		}
	}
	if tooLarge(document) {
		return nil, 0, ownFault(errSchemas)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	regexps := patterns{known: map[string]*pattern.Pattern{}}
	c.UseRegexpEngine(regexps.compile)
	if err := c.AddResource(location, document); err != nil {
		return nil, 0, libraryFault(err)
	}
	compiled, err := c.Compile(location)
	if err != nil {
		return nil, 0, libraryFault(err)
	}
	schemas, err := countSchemas(compiled, document)
	if err != nil {
		return nil, 0, ownFault(err)
	}
	return compiled, len(source) + schemas*bytesOfSchema + regexps.close(), nil
}

// Validate returns the violations of a value, sorted by path and at most MaxViolations. It returns none if the
// value fits. These values never fit:
//
//   - a value that is not JSON, is longer than MaxValue or deeper than 64 levels.
//   - a value that parsers may read differently: a key is twice in one object, or a number is out of the range of a
//     64-bit float or longer than 100 characters.
//   - a value whose validation would take too long, such as a deep value for a schema that refers back to itself in
//     several ways.
//   - a value with so many violations that they would take more than 8 MiB of memory.
//
// Long work first waits until the namespace of ctx is next: see fairgate.AcquireProcessor.
func (s *Schema) Validate(ctx context.Context, value json.RawMessage) []Violation {
	defer fairgate.AcquireProcessor(ctx, s.work(value))()
	if found := Ambiguities(value); len(found) > 0 {
		return found
	}
	failure, err := s.check(value)
	switch {
	case err != nil:
		return []Violation{{Message: err.Error()}}
	case failure == nil:
		return nil
	}
	return violationsOf(failure)
}

// work returns the work of checking a value, as the number of bytes whose decoding takes about as long. A short value
// may need much work: a schema of 64 KiB can have thousands of alternatives.
func (s *Schema) work(value json.RawMessage) int {
	if len(value) >= fairgate.Large {
		return len(value)
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err == nil && effortOf(s.compiled, instance, quickSteps) > quickSteps {
		return fairgate.Large
	}
	return len(value)
}

// check validates a value. The error means that the value or the schema cannot be processed.
func (s *Schema) check(value json.RawMessage) (failure *jsonschema.ValidationError, err error) {
	defer func() {
		switch recover() { // a schema from outside must not end a run, even if the library panics
		case nil:
		case errFailures:
			failure, err = nil, errFailures
		default:
			failure, err = nil, errors.New("the value cannot be validated against the schema")
		}
	}()
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return nil, errors.New("is not JSON")
	}
	return s.validate(instance)
}

// validate validates a parsed value, unless that would take too long.
func (s *Schema) validate(instance any) (*jsonschema.ValidationError, error) {
	effort := effortOf(s.compiled, instance, maxEffort)
	if effort > maxEffort {
		return nil, errEffort
	}
	compiled := s.compiled
	if effort > fewSteps {
		own, _, err := compileSource(s.Source) // only this validation uses it, so it can count the failures
		if err != nil {
			return nil, err
		}
		(&failures{}).observe(own)
		compiled = own
	}
	err := compiled.Validate(instance)
	if err == nil {
		return nil, nil //nolint:nilnil // because no failure and no error is a value that fits
	}
	if failure, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return failure, nil
	}
	return nil, err
}

// errLoad is the error of a schema that refers to another document.
var errLoad = errors.New("references to other documents are not followed")

// noLoader is a loader that loads nothing.
type noLoader struct{}

// Load returns an error for every URL.
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%w: %s", errLoad, strings.TrimPrefix(url, "capstan:///"))
}
