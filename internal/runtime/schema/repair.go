package schema

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	neturl "net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/canonical"
)

// Repair repairs the arguments of a call that changes nothing. It does the same as RepairKeeping, except that it also
// removes unknown properties where the schema allows none, and adds defaults to objects with unknown properties, too.
//
// Long work first waits until the namespace of ctx is next: see fairgate.AcquireProcessor.
func (s *Schema) Repair(ctx context.Context, value json.RawMessage) (json.RawMessage, []string) {
	return s.repair(ctx, value, false)
}

// RepairKeeping makes unambiguous repairs to a value that does not fit, in one pass, and removes nothing. It converts a
// text to a number or boolean where the schema requires that type, and adds the schema's default for a missing
// property. It keeps unknown properties. It adds no default to an object with an unknown property, because that
// property may be a misspelling of one that makes the call harmless, such as a dry run.
//
// RepairKeeping returns the value as canonical JSON, and the changes, sorted by path. Beyond MaxViolations changes, one
// more line says how many are not listed. RepairKeeping returns nil if there is nothing to repair. The repaired value
// may still not fit. Like Repair, it may first wait for other namespaces.
func (s *Schema) RepairKeeping(ctx context.Context, value json.RawMessage) (json.RawMessage, []string) {
	return s.repair(ctx, value, true)
}

func (s *Schema) repair(ctx context.Context, value json.RawMessage, keep bool) (json.RawMessage, []string) {
	defer fairgate.AcquireProcessor(ctx, s.work(value))()
	if len(Ambiguities(value)) > 0 {
		return nil, nil
	}
	failure, err := s.check(value)
	if err != nil || failure == nil {
		return nil, nil
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return nil, nil
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(s.Source))
	if err != nil {
		return nil, nil
	}
	r := repair{instance: instance, document: document, keep: keep}
	for l := range leaves(failure) {
		r.apply(l)
	}
	if len(r.changes) == 0 {
		return nil, nil
	}
	repaired, err := canonical.JSON(r.instance)
	if err != nil {
		return nil, nil
	}
	slices.Sort(r.changes)
	return repaired, bounded(r.changes)
}

func bounded(changes []string) []string {
	if more := len(changes) - MaxViolations; more > 0 {
		return append(changes[:MaxViolations:MaxViolations], fmt.Sprintf("and %d more", more))
	}
	return changes
}

// repair is the state of a repair.
type repair struct {
	instance, document any
	changes            []string
	// keep is true if unknown properties are kept, and nothing is added to objects that have unknown properties.
	keep bool
}

// apply makes the repair for a violation, if there is an unambiguous one.
func (r *repair) apply(l leaf) {
	place := l.InstanceLocation
	switch k := l.ErrorKind.(type) {
	case *kind.Type, *kind.AnyOf, *kind.OneOf:
		r.change(place, func(v any) (any, string) {
			text, ok := v.(string)
			if !ok {
				return nil, ""
			}
			return literal(text, l.types)
		})
	case *kind.Required:
		r.change(place, func(v any) (any, string) { return r.complete(l, v, k.Missing) })
	case *kind.AdditionalProperties:
		if r.keep {
			return
		}
		r.change(place, func(v any) (any, string) {
			object, ok := v.(map[string]any)
			if !ok {
				return nil, ""
			}
			for _, name := range k.Properties {
				delete(object, name)
			}
			return object, "removed " + quoted(k.Properties)
		})
	}
}

// literal converts a text to the number or boolean that it represents.
func literal(text string, types []string) (any, string) {
	switch {
	case slices.Contains(types, "integer") && integer.MatchString(text) && len(text) <= maxNumber,
		slices.Contains(types, "number") && numeral.MatchString(text) && moderate(json.Number(text)):
		return json.Number(text), "converted the text to the number " + text
	case slices.Contains(types, "boolean") && (text == "true" || text == "false"):
		return text == "true", "converted the text to " + text
	}
	return nil, ""
}

// The formats of numbers in JSON.
var (
	integer = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	numeral = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
)

// complete adds the defaults of missing properties.
func (r *repair) complete(l leaf, v any, missing []string) (any, string) {
	object, ok := v.(map[string]any)
	if !ok {
		return nil, ""
	}
	known := r.propertiesAt(l.SchemaURL)
	if r.keep && !allKnown(object, known) {
		return nil, ""
	}
	var added []string
	for _, name := range missing {
		property, _ := known[name].(map[string]any)
		if value, ok := property["default"]; ok {
			object[name] = value
			added = append(added, name)
		}
	}
	if len(added) == 0 {
		return nil, ""
	}
	return object, "added the default of " + quoted(added)
}

// allKnown reports whether all properties of an object are known to a schema.
func allKnown(object, properties map[string]any) bool {
	for name := range object {
		if _, ok := properties[name]; !ok {
			return false
		}
	}
	return true
}

// propertiesAt returns the properties of the schema at a URL within the document, or nil if it has none.
func (r *repair) propertiesAt(url string) map[string]any {
	fragment, own := strings.CutPrefix(url, location+"#")
	at, err := neturl.PathUnescape(fragment)
	if err != nil || !own {
		return nil // in another document, such as a meta-schema
	}
	v := r.document
	for _, key := range append(tokens(at), "properties") {
		switch inner := v.(type) {
		case map[string]any:
			v = inner[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(inner) {
				return nil
			}
			v = inner[i]
		default:
			return nil
		}
	}
	properties, _ := v.(map[string]any)
	return properties
}

// tokens returns the parts of a JSON pointer.
func tokens(pointer string) []string {
	if pointer == "" {
		return nil
	}
	all := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, t := range all {
		all[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(t)
	}
	return all
}

// change replaces the value at a location by the result of do. It does nothing if do returns no description of a
// change.
func (r *repair) change(place []string, do func(any) (any, string)) {
	var done string
	r.instance, done = replaced(r.instance, place, do)
	if done != "" {
		r.changes = append(r.changes, Violation{pointer(place), short(done, maxMessage)}.String())
	}
}

func replaced(v any, place []string, do func(any) (any, string)) (any, string) {
	if len(place) == 0 {
		if made, done := do(v); done != "" {
			return made, done
		}
		return v, ""
	}
	var done string
	switch inner := v.(type) {
	case map[string]any:
		if old, ok := inner[place[0]]; ok {
			inner[place[0]], done = replaced(old, place[1:], do)
		}
	case []any:
		if i, err := strconv.Atoi(place[0]); err == nil && i >= 0 && i < len(inner) {
			inner[i], done = replaced(inner[i], place[1:], do)
		}
	}
	return v, done
}
