package schema

import (
	"errors"
	"reflect"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

const (
	// maxFailures is the maximum memory of the failures that one validation collects, in bytes. The library collects
	// all failures of a value, also those of alternatives, before it returns: up to one for each schema that applies.
	maxFailures = 8 << 20
	// fewSteps is the effort up to which failures are not counted, because they cannot take much more than maxFailures.
	// The failure of one step takes about 1 KiB at most: a path has up to 64 names.
	fewSteps = maxFailures >> 10
	// The approximate memory of a failure, of each name in its path, and of each name that it lists, in bytes.
	bytesOfFailure, bytesOfName, bytesOfListed = 200, 16, 32
)

// errFailures is the violation of a value that has too many violations.
var errFailures = errors.New("does not fit the schema in so many places that they cannot be listed")

// failures counts the memory of the failures of one validation.
type failures struct{ bytes int }

// observe makes all parts of a schema report their failures. The schema must not be used for another validation.
func (f *failures) observe(root *jsonschema.Schema) {
	for _, s := range reachable(root) {
		inner := *s
		clearKeywords(s)
		s.Extensions = []jsonschema.SchemaExt{&observed{&inner, f}}
	}
}

// clearKeywords removes the keywords of a schema, so that it accepts each value. References to it still find it.
func clearKeywords(s *jsonschema.Schema) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		switch v.Type().Field(i).Name {
		case "DraftVersion", "Location", "ID", "Anchor", "RecursiveAnchor", "DynamicAnchor":
		default:
			if field := v.Field(i); field.CanSet() {
				field.SetZero()
			}
		}
	}
}

// observed is a keyword that applies a schema, and counts its failures.
type observed struct {
	schema *jsonschema.Schema
	all    *failures
}

// Validate validates a value against the schema. It panics with errFailures if the failures take too much memory.
func (o *observed) Validate(ctx *jsonschema.ValidatorContext, value any) {
	before := o.all.bytes
	err := ctx.Validate(o.schema, value, nil)
	if err == nil {
		o.all.bytes = before // the library has dropped the failures of alternatives
		return
	}
	if failure, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		o.all.bytes += bytesOf(failure)
	}
	if o.all.bytes > maxFailures {
		panic(errFailures)
	}
	ctx.AddErr(err)
}

// bytesOf returns the approximate memory of a failure without its causes.
func bytesOf(e *jsonschema.ValidationError) int {
	listed := 0
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		listed = len(k.Missing)
	case *kind.DependentRequired:
		listed = len(k.Missing)
	case *kind.Dependency:
		listed = len(k.Missing)
	case *kind.AdditionalProperties:
		listed = len(k.Properties)
	}
	return bytesOfFailure + len(e.InstanceLocation)*bytesOfName + listed*bytesOfListed
}
