package prepare

import (
	"reflect"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// deepCopy returns a copy that shares no memory with the input, so that nothing can change a finished prompt. It also
// returns the number of bytes that were not UTF-8. Each such byte becomes U+FFFD in the copy: JSON cannot represent
// it, so hashes, lengths and the journal would otherwise differ from the text that the model receives.
func deepCopy(in Input) (Input, int) {
	replaced := deepCopyValue(reflect.ValueOf(&in).Elem())
	return in, replaced
}

// deepCopyValue makes such a copy in place: it replaces everything that a value refers to by a copy. It returns the
// number of replaced bytes.
func deepCopyValue(v reflect.Value) (replaced int) {
	switch v.Kind() { //nolint:exhaustive // because all other kinds hold neither texts nor references
	case reflect.String:
		if replaced = untrusted.InvalidBytes(v.String()); replaced > 0 {
			v.SetString(strings.Map(func(r rune) rune { return r }, v.String()))
		}
	case reflect.Struct:
		for i := range v.NumField() { //nolint:modernize // because v.Fields allocates a description of each field
			if f := v.Field(i); f.CanSet() { // private fields of other packages, as in time.Time, cannot be set
				replaced += deepCopyValue(f)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			c := reflect.New(v.Type().Elem())
			c.Elem().Set(v.Elem())
			v.Set(c)
			return deepCopyValue(c.Elem())
		}
	case reflect.Slice:
		if v.IsNil() {
			return 0
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		v.Set(c)
		for i := range c.Len() {
			replaced += deepCopyValue(c.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for entries := v.MapRange(); entries.Next(); {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(entries.Value())
			replaced += deepCopyValue(value)
			c.SetMapIndex(entries.Key(), value)
		}
		v.Set(c)
	}
	return replaced
}
