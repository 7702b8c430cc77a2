package evaluation

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/yamldoc"
)

// decode decodes JSON into a value. Its error names the path of the field, which begins with path, and what to do. Go's
// decoder would name Go's types, and not the keys of maps.
func decode(data []byte, into any, path string) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	if err := fits(value, reflect.TypeOf(into).Elem(), path); err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// rawMessage is the type of fields that are decoded later.
var rawMessage = reflect.TypeFor[json.RawMessage]()

// fits returns an error if a decoded value does not have the form of a type: texts, lists, maps and structs of these.
func fits(value any, t reflect.Type, path string) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if value == nil || t == rawMessage {
		return nil
	}
	have := reflect.TypeOf(value).Kind()
	want := t.Kind()
	if want == reflect.Struct {
		want = reflect.Map // of which the keys are the fields
	}
	if have != want {
		return fmt.Errorf("%s%s", prefix(path), yamldoc.WrongType(want.String(), have.String()))
	}
	switch value := value.(type) {
	case []any:
		for i, entry := range value {
			if err := fits(entry, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			entry := fieldOf(t, key)
			if entry == nil {
				return fmt.Errorf("%s: unknown field: use %s", join(path, key), strings.Join(fieldsOf(t), ", "))
			}
			if err := fits(value[key], entry, join(path, key)); err != nil {
				return err
			}
		}
	}
	return nil
}

// fieldOf returns the type of a field of a struct or of an entry of a map, or nil if a struct has no such field.
func fieldOf(t reflect.Type, name string) reflect.Type {
	if t.Kind() == reflect.Map {
		return t.Elem()
	}
	for f := range t.Fields() {
		if nameOf(f) == name {
			return f.Type
		}
	}
	return nil
}

// fieldsOf returns the names of the fields of a struct.
func fieldsOf(t reflect.Type) []string {
	names := make([]string, 0, t.NumField())
	for f := range t.Fields() {
		names = append(names, nameOf(f))
	}
	return names
}

func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// prefix returns the beginning of a message about the field of a path, which may be the whole file.
func prefix(path string) string {
	if path == "" {
		return ""
	}
	return path + ": "
}
