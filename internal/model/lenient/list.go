package lenient

import (
	"bytes"
	"encoding/json"
)

// maxItems bounds a List. It is more than servers send in one event.
const maxItems = 1 << 10

// List is a list of which only the first 1024 elements are kept. An element may need far more memory than its text.
type List[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *List[T]) UnmarshalJSON(data []byte) (err error) {
	*l, err = First[T](data, maxItems)
	return err
}

// First returns the first elements of a list, at most so many, and nil for null. The rest is not read. The error is
// that of a value that is no list, or of an element.
func First[T any](data []byte, most int) ([]T, error) {
	if !bytes.HasPrefix(data, []byte("[")) {
		var none []T
		return none, json.Unmarshal(data, &none)
	}
	list := []T{}
	d := json.NewDecoder(bytes.NewReader(data))
	_, err := d.Token()
	for err == nil && len(list) < most && d.More() {
		var item T
		if err = d.Decode(&item); err == nil {
			list = append(list, item)
		}
	}
	return list, err
}

// Members returns the first members of an object, at most so many, and nil for any other value.
func Members(data []byte, most int) map[string]json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil
	}
	members := map[string]json.RawMessage{}
	for len(members) < most && d.More() {
		name, err := d.Token()
		key, isText := name.(string)
		var value json.RawMessage
		if err != nil || !isText || d.Decode(&value) != nil {
			return nil
		}
		members[key] = value
	}
	return members
}
