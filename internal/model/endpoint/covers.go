package endpoint

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// membersOf returns the members of an object in JSON, with each value in one form for all formattings of it. It returns
// nil for any other text. Within the values, objects with another order of members stay different.
func membersOf(text string) map[string]string {
	var raw map[string]json.RawMessage
	if !opensObject(text) || json.Unmarshal([]byte(text), &raw) != nil {
		return nil
	}
	members := make(map[string]string, len(raw))
	for name, value := range raw {
		members[name] = uniform(value)
	}
	return members
}

// uniform returns a text that is the same for all formattings of a value in JSON. It is not JSON itself.
func uniform(value []byte) string {
	var out []byte
	tokens := json.NewDecoder(bytes.NewReader(value))
	tokens.UseNumber()
	for {
		token, err := tokens.Token()
		if err != nil {
			return string(out) // the end, because the value is valid
		}
		switch t := token.(type) {
		case json.Delim:
			out = append(out, t.String()...)
		case json.Number:
			out = append(out, uniformNumber(t.String())...)
		case string:
			out = strconv.AppendQuote(out, t)
		case bool:
			out = strconv.AppendBool(out, t)
		default:
			out = append(out, "null"...)
		}
		out = append(out, ' ')
	}
}

// uniformNumber returns the same text for all formattings of a number. Integers without a fraction and an exponent stay
// exact.
func uniformNumber(number string) string {
	if !strings.ContainsAny(number, ".eE") {
		return number
	}
	const exact = 1 << 53 // below this, a float64 has all integers
	f, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil:
		return number
	case f == math.Trunc(f) && math.Abs(f) < exact:
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// covers reports whether an object has all members of another object. So equal objects cover each other. An object of
// nil covers nothing, and nothing covers it.
func covers(object, other map[string]string) bool {
	if object == nil || other == nil || len(other) > len(object) {
		return false
	}
	for name, value := range other {
		if has, ok := object[name]; !ok || has != value {
			return false
		}
	}
	return true
}

// isSame reports whether two texts are the same, or two formattings of one object. The second text is read only if the
// first one is an object.
func isSame(a, b string) bool {
	if a == b {
		return true
	}
	first := membersOf(a)
	if first == nil {
		return false
	}
	second := membersOf(b)
	return covers(first, second) && covers(second, first)
}
