package lenient

import (
	"bytes"
	"encoding/json"
)

// maxItems bounds a List. It is more than servers send in one event.
const maxItems = 1 << 10

// List is a list that keeps only the first 1024 elements. An element may need far more memory than its text.
type List[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *List[T]) UnmarshalJSON(data []byte) (err error) {
	*l, err = First[T](data, maxItems)
	return err
}

// First returns at most the first `most` elements of a JSON list, or nil for null. It does not read the rest of the
// list. It fails if data is not a list, or if one of the first elements cannot be decoded.
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

// Members returns at most the first `most` members of a JSON object, or nil for any other value.
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
