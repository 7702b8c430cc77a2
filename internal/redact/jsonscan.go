package redact

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// maxNesting bounds the depth of values. Deeper values are searched as text.
	maxNesting = 512
	// maxNumber is the maximum length, in bytes, of a number that is also searched in its plain form. maxExponent is
	// the maximum exponent of such a number.
	maxNumber, maxExponent = 64, 40
	// longString is the length of a string whose search takes turns with other namespaces, in bytes. It must not be
	// larger than the bound of package fairgate.
	longString = 16 << 10
	// maxEscape is the maximum length of an escape, in bytes: two halves of a surrogate pair, or four bytes of UTF-8.
	maxEscape = 16
)

// jsonScan finds the objects and lists in a text, and the parts of them that the rules remove. It never reads a byte
// twice. It continues after invalid JSON, because a text may be cut off, or have JSON within other text.
type jsonScan struct {
	ctx context.Context //nolint:containedctx // because the scan is one call
	// rules are the rules of this text. all are the rules of the text that contains it.
	rules, all *Rules
	text       string
	found      Matches
	at         int
	// stack are the open values, outermost first. states are the states of the paths for each open value.
	stack  []openValue
	states []uint32
	// next are the states of the newest child.
	next   []uint32
	edits  []edit
	values []span
	// selected is the depth of the outermost open value that a path selects, or 0.
	selected int
	// depth is the number of strings that contain the text.
	depth int
	// done ends the turn of the namespace at the processors, which began at the offset turnStart.
	done      func()
	turnStart int
}

// openValue is an object or a list that has not ended.
type openValue struct {
	from   int
	object bool
	// expects is the next expected token.
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

// run returns the edits, and the positions of the complete objects and lists that are not within another one.
func (s *jsonScan) run() ([]edit, []span) {
	s.resume()
	defer func() { s.done() }()
	for {
		if s.at-s.turnStart >= chunk {
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
			if !s.readEscaped() && s.handleBroken() {
				return s.edits, s.values
			}
			s.stack, s.states = s.stack[:0], s.states[:0]
		}
	}
}

// resume waits for the turn of the namespace at the processors. Small texts need not wait.
func (s *jsonScan) resume() {
	s.turnStart, s.done = s.at, fairgate.AcquireProcessor(s.ctx, min(len(s.text)-s.at, chunk))
}

// handleBroken handles invalid JSON in a value, or the end of the text within a value. It reports whether the scan
// ends. If a path selects the value, the rest of the text is removed, because the end of the value is not known.
func (s *jsonScan) handleBroken() bool {
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

// step reads the next token. It returns false if the text is not JSON at this position.
func (s *jsonScan) step() bool {
	v, c := s.top(), s.text[s.at]
	switch v.expects {
	case aNameOrEnd, aName:
		if c == '}' && v.expects == aNameOrEnd {
			return s.closeValue()
		}
		if c != '"' {
			return false
		}
		end, whole := s.stringEnd()
		if !whole {
			return false
		}
		v.name = decodeString(s.text[s.at:end])
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
			return s.closeValue()
		}
		v.expects = aCommaOrEnd
		return s.readValue()
	case aCommaOrEnd:
		switch {
		case c == ',' && v.object:
			v.expects = aName
		case c == ',':
			v.expects = aValue
		case c == '}' && v.object, c == ']' && !v.object:
			return s.closeValue()
		default:
			return false
		}
		s.at++
	}
	return true
}

// closeValue ends the innermost open value.
func (s *jsonScan) closeValue() bool {
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

// readValue reads the beginning of an object or a list, or the whole of another value.
func (s *jsonScan) readValue() bool {
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
			s.replaceString(end, decodeString(s.text[from:end]))
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

// childStates returns the states of the paths for the next child of the innermost open value. path is the first path
// that selects the child, or empty. The states are valid until the next call.
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
		s.next = append(s.next, p.childState(parent[i], v.name, !v.object))
		if path == "" && p.selects(s.next[i]) {
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
	if clean := s.removeMatches(s.rules, s.inside(text)); clean != text {
		s.edits = append(s.edits, edit{span{s.at, end}, encodeString(clean)})
	}
}

// inside returns the text of a string without the values that paths select in JSON within it.
func (s *jsonScan) inside(text string) string { return applyEdits(text, s.pathEdits(text)) }

// pathEdits returns the edits that remove the values that paths select in JSON within a string, in the order of their
// positions. It looks through as many strings within strings as the search for patterns looks through escapes.
func (s *jsonScan) pathEdits(text string) []edit {
	if s.depth == rounds || len(s.rules.paths) == 0 || !strings.ContainsAny(text, "{[") {
		return nil
	}
	if len(text) >= longString {
		s.done() // the scan takes turns itself
		defer s.resume()
	}
	inner := jsonScan{ctx: s.ctx, rules: &Rules{paths: s.rules.paths}, all: s.all, text: text, found: s.found, depth: s.depth + 1}
	edits, _ := inner.run()
	return edits
}

// readEscaped reads JSON that is escaped, as in a quoted string of a log: {\"password\":\"secret\"}. It must be called
// at the position of a mistake, and returns false if there is no escape. It reads up to the quote that ends the string,
// also over line breaks and over escapes that JSON does not have, as in output for a terminal.
func (s *jsonScan) readEscaped() bool {
	if s.selected > 0 || s.at == len(s.text) || s.text[s.at] != '\\' || s.depth == rounds {
		return false
	}
	from := s.at
	for i := range slices.Backward(s.stack) {
		if strings.IndexByte(s.text[s.stack[i].from:from], '"') >= 0 {
			break
		}
		from = s.stack[i].from
	}
	to := s.at
	for to < len(s.text) && s.text[to] != '"' {
		if s.text[to] == '\\' {
			to++
		}
		to++
	}
	to = min(to, len(s.text))
	plain, offsets := unescapeString(s.text[from:to])
	for _, e := range s.pathEdits(plain) {
		source := span{from + offsets[e.from], from + offsets[e.to]}
		with := e.with
		if with[0] == '"' { // not text with escapes, which an inner scan has searched
			with = encodeString(s.removeMatches(s.all, decodeString(with)))
		}
		literal := encodeString(with)
		s.edits = append(s.edits, edit{source, literal[1 : len(literal)-1]})
		s.values = append(s.values, source) // the patterns were searched for
	}
	s.at = max(s.at+1, to-unquotedBeginning(s.text[s.at:to]))
	return true
}

// unquotedBeginning returns the length of the beginning of a JSON value that a text ends with, before the first quote
// of the value: {"a":1} after a text with escapes.
func unquotedBeginning(text string) int {
	length := 0
	for i := len(text) - 1; i >= 0 && strings.IndexByte(" \t\r\n{[+-.,0123456789Eaeflnrstu", text[i]) >= 0; i-- {
		if text[i] == '{' || text[i] == '[' {
			length = len(text) - i
		}
	}
	return length
}

// replaceNumber replaces a number that has a match in its own form, or as an integer without an exponent.
func (s *jsonScan) replaceNumber(from, to int) {
	if s.selected > 0 {
		return
	}
	literal := s.text[from:to]
	clean := s.removeMatches(s.rules, literal)
	if clean == literal && len(literal) <= maxNumber && strings.ContainsAny(literal, ".eE") {
		n, err := decimal.NewFromString(literal)
		if err == nil && n.Exponent() <= maxExponent && n.Exponent() >= -maxExponent && n.IsInteger() {
			if plain := n.String(); plain != literal {
				if other := s.removeMatches(s.rules, plain); other != plain {
					clean = other
				}
			}
		}
	}
	if clean != literal {
		s.edits = append(s.edits, edit{span{from, to}, encodeString(clean)})
	}
}

// removeMatches returns a text without the matches of the patterns of rules.
func (s *jsonScan) removeMatches(rules *Rules, text string) string {
	if len(text) >= longString {
		s.done() // search waits for turns of its own
		defer s.resume()
	}
	var edits []edit
	for _, m := range rules.search(s.ctx, text) {
		edits = append(edits, edit{m.span, rules.patterns[m.rule].replacement})
		s.found[rules.patterns[m.rule].name]++
	}
	return applyEdits(text, edits)
}

// decodeString returns the text of a string of JSON. It also accepts line breaks and unknown escapes in the string.
func decodeString(literal string) string {
	inner := literal[1 : len(literal)-1]
	if strings.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var text string
	if json.Unmarshal([]byte(literal), &text) != nil {
		text, _ = unescapeString(inner)
	}
	return text
}

// unescapeString removes one level of escapes from the content of a quoted string of JSON, a shell or a log. Unknown
// escapes stay. offsets has the offset in the content of each byte of the text and of its end.
func unescapeString(content string) (text string, offsets []int) {
	out := make([]byte, 0, len(content))
	offsets = make([]int, 0, len(content)+1)
	for at := 0; at < len(content); {
		r, size := rune(0), 0
		if content[at] == '\\' {
			r, size = escapedCharacter(content[at:])
		}
		before := len(out)
		if size == 0 {
			out, size = append(out, content[at]), 1
		} else {
			out = utf8.AppendRune(out, r)
		}
		for range len(out) - before {
			offsets = append(offsets, at)
		}
		at += size
	}
	return string(out), append(offsets, len(content))
}

// escapedCharacter returns the character of the escape at the beginning of a text, and the length of the escape, or 0
// if JSON, JavaScript and shells do not have the escape.
func escapedCharacter(text string) (r rune, size int) {
	if len(text) < 2 {
		return 0, 0
	}
	if i := strings.IndexByte("bfnrt", text[1]); i >= 0 {
		return rune("\b\f\n\r\t"[i]), 2
	}
	if text[1] == '$' || text[1] == '`' {
		return rune(text[1]), 2
	}
	return backslash([]byte(text[:min(len(text), maxEscape)]))
}

// encodeString returns a text as a string of JSON.
func encodeString(text string) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(text) != nil {
		return `"` + redacted + `"` // cannot happen, because every text can be encoded
	}
	return strings.TrimSuffix(out.String(), "\n")
}
