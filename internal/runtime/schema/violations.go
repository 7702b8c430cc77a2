package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	maxPath    = 100
	maxMessage = 200
	// examined is how many times more characters of a text are examined than are shown, because white space is removed.
	// mostExamined is the number for a message.
	examined     = 4
	mostExamined = examined * maxMessage
)

// leaf is one violation as reported by the library.
type leaf struct {
	*jsonschema.ValidationError
	// types are the types that would fit, if a wrong type is the only problem. Otherwise types is nil.
	types []string
}

// leaves returns the violations of a failure. A failure within alternatives is one violation, because only one
// alternative must fit.
func leaves(e *jsonschema.ValidationError) iter.Seq[leaf] {
	return func(yield func(leaf) bool) { walk(e, yield) }
}

func walk(e *jsonschema.ValidationError, yield func(leaf) bool) bool {
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.AllOf, *kind.Reference:
		for _, c := range e.Causes {
			if !walk(c, yield) {
				return false
			}
		}
		return true
	case *kind.Type:
		return yield(leaf{e, k.Want})
	case *kind.AnyOf, *kind.OneOf:
		return yield(leaf{e, typesOf(e)})
	}
	return yield(leaf{ValidationError: e})
}

// typesOf returns the types that would fit at a location where no alternative fits. It returns nil if the type is
// not the only reason.
func typesOf(e *jsonschema.ValidationError) []string {
	var all []string
	for _, c := range e.Causes {
		for l := range leaves(c) {
			if l.types == nil || len(l.InstanceLocation) != len(e.InstanceLocation) {
				return nil
			}
			for _, t := range l.types {
				if !slices.Contains(all, t) {
					all = append(all, t)
				}
			}
		}
	}
	return all
}

// violationsOf returns the first violations of a failure by path, without duplicates. A failure may have thousands of
// violations whose messages are long before they are shortened, so only the messages of the first violations are made.
func violationsOf(failure *jsonschema.ValidationError) []Violation {
	type located struct {
		path string
		leaf leaf
	}
	var all []located
	for l := range leaves(failure) {
		all = append(all, located{pointer(l.InstanceLocation), l})
	}
	slices.SortStableFunc(all, func(a, b located) int { return strings.Compare(a.path, b.path) })
	d := describer{}
	var found []Violation
	for len(all) > 0 && len(found) < MaxViolations {
		path := all[0].path
		var messages []string
		for ; len(all) > 0 && all[0].path == path; all = all[1:] {
			messages = append(messages, d.message(all[0].leaf))
		}
		slices.Sort(messages)
		for _, m := range slices.Compact(messages) {
			found = append(found, Violation{Path: path, Message: short(m, maxMessage)})
		}
	}
	return sorted(found)
}

// describer makes the messages of the violations of one value. It has the messages that depend only on the schema, by
// the URL of the part and the keyword: the values that the schema allows may be long, and are encoded only once.
type describer map[[2]string]string

// once returns the message of a keyword of a leaf. It calls make for the first leaf of a part of the schema.
func (d describer) once(l leaf, keyword string, make func() string) string {
	key := [2]string{l.SchemaURL, keyword}
	text, known := d[key]
	if !known {
		text = begin(make())
		d[key] = text
	}
	return text
}

// message describes the problem without the value, because the value may be long and the model knows it.
func (d describer) message(l leaf) string { //nolint:gocyclo // because it is a table
	if l.types != nil {
		return "must be " + oneOf(l.types)
	}
	switch k := l.ErrorKind.(type) {
	case *kind.Required:
		return "must have " + quoted(k.Missing)
	case *kind.AdditionalProperties:
		return "must not have " + quoted(k.Properties)
	case *kind.DependentRequired:
		return fmt.Sprintf("must have %s, which %q requires", quoted(k.Missing), begin(k.Prop))
	case *kind.Dependency:
		return fmt.Sprintf("must have %s, which %q requires", quoted(k.Missing), begin(k.Prop))
	case *kind.Enum:
		return d.once(l, "enum", func() string { return "must be one of " + values(k.Want) })
	case *kind.Const:
		return d.once(l, "const", func() string { return "must be " + values([]any{k.Want}) })
	case *kind.Minimum:
		return "must be at least " + number(k.Want)
	case *kind.Maximum:
		return "must be at most " + number(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be more than " + number(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + number(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + number(k.Want)
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters, but has %d", k.Want, k.Got)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters, but has %d", k.Want, k.Got)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items, but has %d", k.Want, k.Got)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items, but has %d", k.Want, k.Got)
	case *kind.MinProperties:
		return fmt.Sprintf("must have at least %d properties, but has %d", k.Want, k.Got)
	case *kind.MaxProperties:
		return fmt.Sprintf("must have at most %d properties, but has %d", k.Want, k.Got)
	case *kind.Pattern:
		return "must match the pattern " + begin(k.Want)
	case *kind.UniqueItems:
		return fmt.Sprintf("has equal items at %d and %d", k.Duplicates[0], k.Duplicates[1])
	case *kind.PropertyNames:
		return fmt.Sprintf("must not have a property named %q", begin(k.Property))
	case *kind.AnyOf:
		return "fits none of the alternatives: " + d.alternatives(l.ValidationError)
	case *kind.OneOf:
		if len(k.Subschemas) > 0 {
			return "must fit exactly one of the alternatives, but fits several"
		}
		return "fits none of the alternatives: " + d.alternatives(l.ValidationError)
	case *kind.FalseSchema:
		return "is not allowed"
	}
	return fmt.Sprintf("does not fit %q", strings.Join(l.ErrorKind.KeywordPath(), "/"))
}

// alternatives returns the first problem of each alternative, for at most three alternatives.
func (d describer) alternatives(e *jsonschema.ValidationError) string {
	var all []string
	for _, c := range e.Causes[:min(3, len(e.Causes))] {
		for l := range leaves(c) {
			all = append(all, begin(Violation{pointer(l.InstanceLocation[len(e.InstanceLocation):]), d.message(l)}.String()))
			break
		}
	}
	return strings.Join(all, "; or ")
}

func oneOf(words []string) string {
	words = slices.Clone(words)
	for i, w := range words {
		if article := "a "; w != "null" {
			if strings.ContainsAny(w[:1], "aeio") {
				article = "an "
			}
			words[i] = article + w
		}
	}
	return strings.Join(words, " or ")
}

func quoted(names []string) string {
	const most = 5
	names = slices.Sorted(slices.Values(names))
	more := len(names) - most
	names = names[:min(most, len(names))]
	for i, n := range names {
		names[i] = fmt.Sprintf("%q", line(n, maxPath))
	}
	text := strings.Join(names, ", ")
	if more > 0 {
		return fmt.Sprintf("%s and %d more", text, more)
	}
	return text
}

// values returns the first values that a schema allows, as far as a message shows them.
func values(all []any) string {
	var text strings.Builder
	for i, v := range all[:min(20, len(all))] {
		data, err := json.Marshal(v)
		if err != nil {
			return "the values of the schema"
		}
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(begin(string(data)))
		if text.Len() > utf8.UTFMax*mostExamined {
			break
		}
	}
	return text.String()
}

func number(r *big.Rat) string {
	if r.IsInt() {
		return short(r.Num().String(), maxNumber)
	}
	f, _ := r.Float64()
	return fmt.Sprint(f)
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// pointer converts a path to a JSON pointer.
func pointer(path []string) string {
	var b strings.Builder
	for _, p := range path {
		b.WriteByte('/')
		b.WriteString(escaper.Replace(begin(p)))
		if b.Len() > 4*maxPath {
			break
		}
	}
	return short(b.String(), maxPath)
}

// begin returns the part of a text that a message can show.
func begin(text string) string {
	text, _ = untrusted.Cap(text, mostExamined)
	return text
}

// short returns the first characters of a text, on one line. Invisible characters are escaped and not removed, because
// the schema may require or forbid them, and the model must see that.
func short(text string, most int) string {
	text, _ = untrusted.Cap(text, examined*most)
	return line(untrusted.Escape(text), most)
}

// line does the same as short, but does not escape, for a text that is quoted afterwards: quoting escapes, too.
func line(text string, most int) string {
	text, _ = untrusted.Cap(text, examined*most)
	text, out := untrusted.Cap(strings.Join(strings.Fields(text), " "), most-1)
	if out > 0 {
		text += "…"
	}
	return text
}

// sorted returns the first violations by path, without duplicates.
func sorted(all []Violation) []Violation {
	slices.SortFunc(all, func(a, b Violation) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Message, b.Message))
	})
	all = slices.Compact(all)
	return all[:min(len(all), MaxViolations)]
}
