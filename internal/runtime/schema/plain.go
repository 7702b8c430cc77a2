package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	// maxDepth is the maximum depth of nesting in a value.
	maxDepth = 64
	// maxNumber is the maximum length of a number, in characters.
	maxNumber = 100
)

// Ambiguities returns the reasons why parsers may read a JSON text differently, or nil if all parsers read it alike.
// Parsers differ in their handling of duplicate keys in an object, of numbers beyond a 64-bit float, and of deep
// nesting. Ambiguities also returns a reason for a text that is not JSON or is longer than MaxValue.
func Ambiguities(value json.RawMessage) []Violation {
	switch {
	case len(value) > MaxValue:
		return []Violation{{Message: fmt.Sprintf("has %d bytes, and the maximum is %d", len(value), MaxValue)}}
	case !json.Valid(value):
		return []Violation{{Message: "is not JSON"}}
	}
	return ambiguities(value)
}

// ambiguities checks a text that is valid JSON.
func ambiguities(value json.RawMessage) []Violation {
	var s scan
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	for len(s.found) < MaxViolations {
		token, err := d.Token()
		if err != nil || !s.take(token) {
			break
		}
	}
	return sorted(s.found)
}

// scan is the state of a walk through the tokens of a JSON text.
type scan struct {
	open  []*level
	found []Violation
}

// level is an open object or list. A list has nil keys.
type level struct {
	keys  map[string]struct{}
	at    string // key or index of the current or next value
	index int
	inKey bool // the next token of the object is a key
}

// take processes a token. It returns false if the rest of the text need not be read.
func (s *scan) take(token json.Token) bool {
	if d, ok := token.(json.Delim); ok && (d == '}' || d == ']') {
		s.open = s.open[:len(s.open)-1]
		return true
	}
	if key, ok := token.(string); ok && s.key(key) {
		return true
	}
	s.begin()
	switch token := token.(type) {
	case json.Delim:
		if len(s.open) == maxDepth {
			s.add("is nested deeper than %d levels", maxDepth)
			return false
		}
		inner := &level{}
		if token == '{' {
			inner.keys, inner.inKey = map[string]struct{}{}, true
		}
		s.open = append(s.open, inner)
	case json.Number:
		if !moderate(token) {
			s.add("is a number that is too large, too small or too long")
		}
	}
	return true
}

// key processes a token as the key of an object. It returns false if no key is expected.
func (s *scan) key(key string) bool {
	if len(s.open) == 0 {
		return false
	}
	top := s.open[len(s.open)-1]
	if top.keys == nil || !top.inKey {
		return false
	}
	top.at, top.inKey = key, false
	if _, twice := top.keys[key]; twice {
		s.add("appears twice in its object")
	}
	top.keys[key] = struct{}{}
	return true
}

// begin updates the location for a value that begins.
func (s *scan) begin() {
	if len(s.open) == 0 {
		return
	}
	top := s.open[len(s.open)-1]
	if top.keys != nil {
		top.inKey = true
		return
	}
	top.at = strconv.Itoa(top.index)
	top.index++
}

func (s *scan) add(format string, args ...any) {
	path := make([]string, 0, len(s.open))
	for _, l := range s.open {
		path = append(path, l.at)
	}
	s.found = append(s.found, Violation{Path: pointer(path), Message: fmt.Sprintf(format, args...)})
}

// moderate reports whether a 64-bit float can approximate a number.
func moderate(n json.Number) bool {
	if len(n) > maxNumber {
		return false
	}
	f, err := n.Float64()
	if err != nil || math.IsInf(f, 0) {
		return false
	}
	return f != 0 || strings.Trim(mantissa(n), "-0.") == ""
}

// mantissa returns a number without its exponent.
func mantissa(n json.Number) string {
	digits, _, _ := strings.Cut(strings.ToLower(n.String()), "e")
	return digits
}
