package prepare

import (
	"reflect"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
)

// own returns a copy of an input that shares no memory with it, so that nothing can change a prompt once it is made, and
// how many bytes of its texts were no UTF-8. In the copy each of such bytes is U+FFFD: hashes, lengths and the
// journal, whose JSON knows no other bytes, speak of what the model gets.
func own(in Input) (Input, int) {
	replaced := ownAll(reflect.ValueOf(&in).Elem())
	return in, replaced
}

// ownAll does so in place, with all that a value refers to.
func ownAll(v reflect.Value) (replaced int) {
	switch v.Kind() { //nolint:exhaustive // because all others hold neither texts nor references
	case reflect.String:
		if replaced = fence.InvalidBytes(v.String()); replaced > 0 {
			v.SetString(strings.Map(func(r rune) rune { return r }, v.String()))
		}
	case reflect.Struct:
		for i := range v.NumField() { //nolint:modernize // because v.Fields allocates a description of each field
			if f := v.Field(i); f.CanSet() { // which those of other packages' own, as in a time, are not
				replaced += ownAll(f)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			c := reflect.New(v.Type().Elem())
			c.Elem().Set(v.Elem())
			v.Set(c)
			return ownAll(c.Elem())
		}
	case reflect.Slice:
		if v.IsNil() {
			return 0
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		v.Set(c)
		for i := range c.Len() {
			replaced += ownAll(c.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for entries := v.MapRange(); entries.Next(); {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(entries.Value())
			replaced += ownAll(value)
			c.SetMapIndex(entries.Key(), value)
		}
		v.Set(c)
	}
	return replaced
}
