package schema

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ordered is a JSON object whose members are in their order. The methods that only read accept nil.
type ordered struct {
	members []member
	// size is the number of bytes of the object in its source.
	size int
}

type member struct {
	name  string
	value any
}

// index returns the index of a member, or -1.
func (o *ordered) index(name string) int {
	if o == nil {
		return -1
	}
	return slices.IndexFunc(o.members, func(m member) bool { return m.name == name })
}

// get returns the value of a member, or nil.
func (o *ordered) get(name string) any {
	if i := o.index(name); i >= 0 {
		return o.members[i].value
	}
	return nil
}

// with returns a schema with the keywords of o and of other. Keywords of other replace those of o, except that it has
// the properties of both, and requires those that either requires.
func (o *ordered) with(other *ordered) *ordered {
	out := &ordered{members: slices.Clone(o.members)}
	for _, m := range other.members {
		i := out.index(m.name)
		if i < 0 {
			out.members = append(out.members, m)
			continue
		}
		before, _ := out.members[i].value.(*ordered)
		after, isObject := m.value.(*ordered)
		names, isList := out.members[i].value.([]any)
		more, _ := m.value.([]any)
		switch {
		case m.name == "properties" && before != nil && isObject:
			out.members[i].value = before.with(after)
		case m.name == "required" && isList:
			out.members[i].value = append(slices.Clone(names), slices.DeleteFunc(slices.Clone(more), func(name any) bool {
				return slices.Contains(names, name)
			})...)
		default:
			out.members[i].value = m.value
		}
	}
	return out
}

// at returns the object that a reference within the schema refers to, or nil.
func (o *ordered) at(reference string) *ordered {
	pointer, local := strings.CutPrefix(reference, "#")
	pointer, err := url.PathUnescape(pointer)
	if !local || err != nil || pointer != "" && pointer[0] != '/' {
		return nil
	}
	var v any = o
	for _, name := range strings.Split(pointer, "/")[1:] {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		switch inner := v.(type) {
		case *ordered:
			v = inner.get(name)
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(inner) {
				return nil
			}
			v = inner[i]
		default:
			return nil
		}
	}
	found, _ := v.(*ordered)
	return found
}

// decodeOrdered decodes the next value. Objects are of type *ordered.
func decodeOrdered(d *json.Decoder) (any, error) {
	token, err := d.Token()
	begin := d.InputOffset()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		o := &ordered{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := decodeOrdered(d)
			if err != nil {
				return nil, err
			}
			text, _ := name.(string)
			o.members = append(o.members, member{text, value})
		}
		_, err = d.Token()
		o.size = int(d.InputOffset() - begin)
		return o, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			value, err := decodeOrdered(d)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err = d.Token()
		return list, err
	}
	return token, nil
}

// appendOrdered appends a value as JSON.
func appendOrdered(to []byte, v any) []byte {
	switch v := v.(type) {
	case *ordered:
		to = append(to, '{')
		for i, m := range v.members {
			if i > 0 {
				to = append(to, ',')
			}
			to = append(appendOrdered(to, m.name), ':')
			to = appendOrdered(to, m.value)
		}
		return append(to, '}')
	case []any:
		to = append(to, '[')
		for i, inner := range v {
			if i > 0 {
				to = append(to, ',')
			}
			to = appendOrdered(to, inner)
		}
		return append(to, ']')
	}
	scalar, _ := json.Marshal(v) // a scalar that was decoded can be encoded
	return append(to, scalar...)
}
