package redact

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// maxNesting bounds the depth of values. Deeper values are searched as text.
	maxNesting = 512
	// maxNumber is the longest number that is also searched for in its plain form, in bytes, and maxExponent is its
	// largest exponent.
	maxNumber, maxExponent = 64, 40
	// longString is the length of a string whose search takes turns with other namespaces, in bytes. It must not be
	// larger than the bound of package fairgate.
	longString = 16 << 10
)

// jsonScan finds the objects and lists in a text, and what the rules remove from them. It never reads a byte twice, and
// continues after any mistake: a text may be cut off, or have JSON within other text.
type jsonScan struct {
	ctx   context.Context //nolint:containedctx // because the scan is one call
	rules *Rules
	text  string
	found Matches
	at    int
	// stack are the open values, outermost first. states are the states of the paths for each of them.
	stack  []openValue
	states []uint32
	// next are the states of the newest child.
	next   []uint32
	edits  []edit
	values []span
	// selected is the depth of the outermost open value that a path selects, or 0.
	selected int
	// done ends the turn of the namespace, which began at the offset since.
	done  func()
	since int
}

// openValue is an object or a list that has not ended.
type openValue struct {
	from   int
	object bool
	// expects is what comes next.
	expects expectation
	// name is the name of the current member.
	name string
}

type expectation int

const (
	aNameOrEnd expectation = iota // after {
	aName                         // after a comma in an object
	aColon
	aValue      // after a colon, or after a comma in a list
	aValueOrEnd // after [
	aCommaOrEnd
)

// run returns the edits, and the positions of the complete objects and lists that are in no other one.
func (s *jsonScan) run() ([]edit, []span) {
	s.resume()
	defer func() { s.done() }()
	for {
		if s.at-s.since >= chunk {
			s.done()
			s.resume()
		}
		if len(s.stack) == 0 {
			next := strings.IndexAny(s.text[s.at:], "{[")
			if next < 0 {
				return s.edits, s.values
			}
			s.at += next
			s.open(s.initial())
			continue
		}
		s.skipSpace()
		if s.at == len(s.text) || !s.step() {
			if s.broken() {
				return s.edits, s.values
			}
			s.stack, s.states = s.stack[:0], s.states[:0]
		}
	}
}

// resume waits until it is the turn of the namespace to continue the scan, in a large text.
func (s *jsonScan) resume() {
	s.since, s.done = s.at, fairgate.AcquireProcessor(s.ctx, min(len(s.text)-s.at, chunk))
}

// broken handles a mistake in a value, or the end of the text within it. It reports whether the scan ends. If a path
// selects the value, nothing of it may be left, and its end is not known.
func (s *jsonScan) broken() bool {
	if s.selected > 0 {
		s.edits = append(s.edits, edit{span{s.stack[s.selected-1].from, len(s.text)}, `"` + redacted + `"`})
		return true
	}
	return s.at == len(s.text)
}

// initial returns the states of the paths at the root of a value.
func (s *jsonScan) initial() []uint32 {
	states := make([]uint32, len(s.rules.paths))
	for i := range states {
		states[i] = 1
	}
	return states
}

func (s *jsonScan) skipSpace() {
	for s.at < len(s.text) && strings.IndexByte(" \t\r\n", s.text[s.at]) >= 0 {
		s.at++
	}
}

// open opens the object or list at the position.
func (s *jsonScan) open(states []uint32) {
	v := openValue{from: s.at, object: s.text[s.at] == '{', expects: aValueOrEnd}
	if v.object {
		v.expects = aNameOrEnd
	}
	s.stack, s.states = append(s.stack, v), append(s.states, states...)
	s.at++
}

// top returns the innermost open value.
func (s *jsonScan) top() *openValue { return &s.stack[len(s.stack)-1] }

// step reads the next token. It returns false if the text is no JSON here.
func (s *jsonScan) step() bool {
	v, c := s.top(), s.text[s.at]
	switch v.expects {
	case aNameOrEnd, aName:
		if c == '}' && v.expects == aNameOrEnd {
			return s.close()
		}
		if c != '"' {
			return false
		}
		end, whole := s.stringEnd()
		if !whole {
			return false
		}
		v.name = decoded(s.text[s.at:end])
		s.replaceString(end, v.name)
		s.at, v.expects = end, aColon
	case aColon:
		if c != ':' {
			return false
		}
		s.at++
		v.expects = aValue
	case aValue, aValueOrEnd:
		if c == ']' && v.expects == aValueOrEnd {
			return s.close()
		}
		v.expects = aCommaOrEnd
		return s.value()
	case aCommaOrEnd:
		switch {
		case c == ',' && v.object:
			v.expects = aName
		case c == ',':
			v.expects = aValue
		case c == '}' && v.object, c == ']' && !v.object:
			return s.close()
		default:
			return false
		}
		s.at++
	}
	return true
}

// close ends the innermost open value.
func (s *jsonScan) close() bool {
	depth := len(s.stack)
	from := s.top().from
	s.at++
	if s.selected == depth {
		s.selected = 0
		s.edits = append(s.edits, edit{span{from, s.at}, `"` + redacted + `"`})
	}
	s.stack, s.states = s.stack[:depth-1], s.states[:(depth-1)*len(s.rules.paths)]
	if depth == 1 {
		s.values = append(s.values, span{from, s.at})
	}
	return true
}

// value reads the beginning of a value, or a whole one that is no object and no list.
func (s *jsonScan) value() bool {
	states, path := s.childStates()
	c := s.text[s.at]
	if c == '{' || c == '[' {
		if len(s.stack) == maxNesting {
			return false
		}
		if path != "" && s.selected == 0 {
			s.selected = len(s.stack) + 1
			s.found[path]++
		}
		s.open(states)
		return true
	}
	from := s.at
	selected := path != "" && s.selected == 0
	if c == '"' {
		end, whole := s.stringEnd()
		switch {
		case selected:
			s.replace(from, end, path)
		case whole:
			s.replaceString(end, decoded(s.text[from:end]))
		default:
			return false
		}
		s.at = end
		return true
	}
	end := from
	for end < len(s.text) && strings.IndexByte("+-.0123456789Eaeflnrstu", s.text[end]) >= 0 {
		end++
	}
	literal := s.text[from:end]
	switch {
	case literal == "null" || !json.Valid([]byte(literal)):
		s.at = end
		return literal == "null"
	case selected:
		s.replace(from, end, path)
	case literal != "true" && literal != "false":
		s.replaceNumber(from, end)
	}
	s.at = end
	return true
}

// childStates returns the states of the paths for the next child of the innermost open value, and the first path that
// selects it, or an empty text. The states are valid until the next call.
func (s *jsonScan) childStates() (states []uint32, path string) {
	n := len(s.rules.paths)
	if n == 0 {
		return nil, ""
	}
	v := s.top()
	parent := s.states[len(s.states)-n:]
	s.next = s.next[:0] // one buffer for all values, because a text may have a million of them
	for i := range s.rules.paths {
		p := &s.rules.paths[i]
		s.next = append(s.next, p.child(parent[i], v.name, !v.object))
		if path == "" && p.selected(s.next[i]) {
			path = p.text
		}
	}
	return s.next, path
}

// stringEnd returns the end of the string at the position. whole is false if the text ends before the string.
func (s *jsonScan) stringEnd() (end int, whole bool) {
	for i := s.at + 1; i < len(s.text); i++ {
		switch s.text[i] {
		case '\\':
			i++
		case '"':
			return i + 1, true
		}
	}
	return len(s.text), false
}

// replace replaces a value that a path selects.
func (s *jsonScan) replace(from, to int, path string) {
	s.edits = append(s.edits, edit{span{from, to}, `"` + redacted + `"`})
	s.found[path]++
}

// replaceString replaces the string up to end if its text has matches.
func (s *jsonScan) replaceString(end int, text string) {
	if s.selected > 0 {
		return
	}
	if clean := s.patterns(text); clean != text {
		s.edits = append(s.edits, edit{span{s.at, end}, encoded(clean)})
	}
}

// replaceNumber replaces a number that has a match in its own form, or as an integer without an exponent.
func (s *jsonScan) replaceNumber(from, to int) {
	if s.selected > 0 {
		return
	}
	literal := s.text[from:to]
	clean := s.patterns(literal)
	if clean == literal && len(literal) <= maxNumber && strings.ContainsAny(literal, ".eE") {
		n, err := decimal.NewFromString(literal)
		if err == nil && n.Exponent() <= maxExponent && n.Exponent() >= -maxExponent && n.IsInteger() {
			if plain := n.String(); plain != literal {
				if other := s.patterns(plain); other != plain {
					clean = other
				}
			}
		}
	}
	if clean != literal {
		s.edits = append(s.edits, edit{span{from, to}, encoded(clean)})
	}
}

// patterns returns a text without the matches of the patterns.
func (s *jsonScan) patterns(text string) string {
	if len(text) >= longString {
		s.done() // the search takes turns itself
		defer s.resume()
	}
	var edits []edit
	for _, m := range s.rules.search(s.ctx, text) {
		edits = append(edits, edit{m.span, s.rules.patterns[m.rule].replacement})
		s.found[s.rules.patterns[m.rule].name]++
	}
	return applyEdits(text, edits)
}

// decoded returns the text of a string of JSON.
func decoded(literal string) string {
	inner := literal[1 : len(literal)-1]
	if strings.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var text string
	if json.Unmarshal([]byte(literal), &text) != nil {
		return inner
	}
	return text
}

// encoded returns a text as a string of JSON.
func encoded(text string) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(text) != nil {
		return `"` + redacted + `"` // cannot happen: it is a text
	}
	return strings.TrimSuffix(out.String(), "\n")
}
