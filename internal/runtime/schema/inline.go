package schema

import (
	"bytes"
	"encoding/json"
	"slices"
)

// maxInlined is the maximum number of bytes that Inline copies in place of references. Definitions that refer to each
// other several times can grow exponentially.
const maxInlined = 64 << 10

// Inline returns a schema for endpoints that read only a part of JSON Schema. It has no definitions: each reference is
// replaced by the part of the schema that it refers to. Its lists of required properties name only properties that it
// declares. The order of properties stays the same, because models write their values in this order. Inline returns the
// source itself if nothing needs to change, or if the source is not a JSON object.
//
// A part that contains itself, or that no longer fits into maxInlined bytes, has only its type and its description.
// Keywords beside a reference replace those of its part. So the result may accept other values than the source, and a
// value must still be checked against the source.
func Inline(source json.RawMessage) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(source))
	d.UseNumber()
	root, err := decodeOrdered(d)
	object, ok := root.(*ordered)
	if err != nil || !ok {
		return source
	}
	in := inliner{root: object, left: maxInlined, open: []*ordered{object}}
	inlined := in.schema(object)
	if !in.changed {
		return source
	}
	return appendOrdered(nil, inlined)
}

// inliner replaces the references of one schema.
type inliner struct {
	root *ordered
	// left is the number of bytes that may still be copied.
	left int
	// open are the parts of the schema that the current part is in.
	open    []*ordered
	changed bool
}

// value returns a value that may be a schema, such as false, in its inlined form.
func (in *inliner) value(v any) any {
	if s, ok := v.(*ordered); ok {
		return in.schema(s)
	}
	return v
}

// schema returns a schema in its inlined form.
func (in *inliner) schema(s *ordered) *ordered {
	out := &ordered{}
	reference, refers := "", false
	for _, m := range s.members {
		switch m.name {
		case "$ref":
			reference, _ = m.value.(string)
			refers = true
		case "$defs", "definitions":
			in.changed = true
		default:
			out.members = append(out.members, member{m.name, in.keyword(m.name, m.value)})
		}
	}
	if refers {
		in.changed = true
		out = in.target(reference).with(out)
	}
	in.declareRequired(out)
	return out
}

// keyword returns the value of a keyword with its schemas in their inlined form.
func (in *inliner) keyword(name string, value any) any {
	switch v := value.(type) {
	case *ordered:
		if slices.Contains(objectsOfSchemas, name) {
			out := &ordered{}
			for _, m := range v.members {
				out.members = append(out.members, member{m.name, in.value(m.value)})
			}
			return out
		}
		if slices.Contains(oneSchema, name) {
			return in.schema(v)
		}
	case []any:
		if slices.Contains(listOfSchemas, name) {
			out := make([]any, 0, len(v))
			for _, inner := range v {
				out = append(out, in.value(inner))
			}
			return out
		}
	}
	return value
}

// target returns the part of the schema that a reference refers to, in its inlined form. It returns an empty schema if
// there is no such part.
func (in *inliner) target(reference string) *ordered {
	t := in.root.at(reference)
	switch {
	case t == nil:
		return &ordered{}
	case slices.Contains(in.open, t), in.left < t.size:
		return in.outline(t)
	}
	in.left -= t.size
	in.open = append(in.open, t)
	out := in.schema(t)
	in.open = in.open[:len(in.open)-1]
	return out
}

// outline returns the type and the description of a part of the schema. A list has items, because endpoints require
// them.
func (in *inliner) outline(part *ordered) *ordered {
	out := &ordered{}
	for _, m := range part.members {
		text, _ := m.value.(string)
		switch {
		case m.name == "type":
			out.members = append(out.members, m)
			if text == "array" {
				out.members = append(out.members, member{"items", &ordered{}})
			}
		case m.name == "description" && len(text) <= in.left:
			in.left -= len(text)
			out.members = append(out.members, m)
		}
	}
	return out
}

// declareRequired removes the names from required that are not properties.
func (in *inliner) declareRequired(s *ordered) {
	i := s.index("required")
	if i < 0 {
		return
	}
	names, ok := s.members[i].value.([]any)
	if !ok {
		return
	}
	properties, _ := s.get("properties").(*ordered)
	declared := slices.DeleteFunc(slices.Clone(names), func(name any) bool {
		text, ok := name.(string)
		return ok && properties.index(text) < 0
	})
	switch {
	case len(declared) == len(names):
		return
	case len(declared) == 0:
		s.members = slices.Delete(s.members, i, i+1)
	default:
		s.members[i].value = declared
	}
	in.changed = true
}
