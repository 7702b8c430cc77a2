package redact

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// maxNesting bounds the depth of values. Deeper values are searched as text.
	maxNesting = 512
	// maxNumber is the maximum length, in bytes, of a number that is also searched in its plain form. maxExponent is
	// the maximum exponent of such a number.
	maxNumber, maxExponent = 64, 40
	// longString is the length, in bytes, from which the search of a string waits again until the namespace is next.
	longString = fairgate.Large
	// maxEscape is the maximum length of an escape, in bytes: two halves of a surrogate pair, or four bytes of UTF-8.
	maxEscape = 16
	// maxSpace is the length of the text after a value in which its end is looked for, in bytes.
	maxSpace = 64
)

// jsonScan finds the objects and lists in a text, and the parts of them that the rules remove. It continues after
// invalid JSON, because a text may be cut off, or have JSON within other text. It then knows no positions of paths
// anymore: see memberNames.
type jsonScan struct {
	ctx context.Context //nolint:containedctx // because the scan is one call
	// rules are the rules of this text. all are the rules of the text that contains it.
	rules, all *Rules
	text       string
	found      Matches
	// sum counts the replacements in the outermost text. The scan stops when there are too many.
	sum *replacements
	at  int
	// stack are the open values, outermost first. states are the states of the paths for each open value.
	stack  []openValue
	states []uint32
	// next are the states of the newest child.
	next   []uint32
	edits  []edit
	values []span
	// root is the number of edits before the outermost open value. isNew is true until a token of this value was read.
	// nameAt is the offset of the newest name.
	root, nameAt int
	isNew        bool
	// broken is true if the text has invalid JSON, and mistake is the offset from which members are then searched for
	// by their names: see noteMistake. cut is true if the text ends within a value. known are the parts of the text in
	// which the positions of paths are known.
	broken, cut bool
	mistake     int
	known       []span
	// selected is the depth of the outermost open value that a path selects, or 0.
	selected int
	// depth is the number of strings that contain the text. escaped is true if the text is a part of a text whose
	// escapes were removed.
	depth   int
	escaped bool
	// unreadable is the offset up to which the text has no escapes.
	unreadable int
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
	// name is the composed name of the current member, and nameAt its offset.
	name   string
	nameAt int
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

// run returns the edits, and the parts of the text in which the patterns were searched for.
func (s *jsonScan) run() ([]edit, []span) {
	s.scan()
	s.edits = ordered(s.edits)
	if s.broken && !s.escaped {
		more := s.rules.names.edits(s.ctx, s.text, s.mistake, merged(s.known), s.edits, s.found, s.sum)
		for _, e := range more {
			s.values = append(s.values, e.span)
		}
		s.edits = ordered(append(s.edits, more...))
	}
	return s.edits, merged(s.values)
}

// scan reads the text once.
func (s *jsonScan) scan() {
	s.resume()
	defer func() { s.done() }()
	for !s.sum.tooMany() {
		if s.at-s.turnStart >= chunk {
			s.done()
			s.resume()
		}
		if len(s.stack) == 0 {
			next := strings.IndexAny(s.text[s.at:], "{[")
			if next < 0 {
				return
			}
			s.at += next
			s.root, s.isNew = len(s.edits), true
			s.open(s.initial())
			continue
		}
		s.skipSpace()
		if s.at == len(s.text) || !s.step() {
			for _, e := range s.edits[s.root:] {
				s.addValue(e.span)
			}
			at := s.at
			escaped, whole := false, false
			if !s.removeBroken() {
				escaped, whole = s.readEscaped()
			}
			if !whole {
				s.noteMistake(at, escaped)
			}
			s.root = len(s.edits)
			s.stack, s.states = s.stack[:0], s.states[:0]
			continue
		}
		s.isNew = false
	}
}

// noteMistake notes invalid JSON at an offset. escaped reports whether it was read as escaped JSON. Otherwise, a text
// in brackets, such as [see below], is no mistake, and neither is a name in braces, such as {id}. Another text in
// braces is one, because it may be an object of another language, or begin with a comment.
func (s *jsonScan) noteMistake(at int, escaped bool) {
	if at == len(s.text) {
		s.cut = true
		return
	}
	root := s.stack[0]
	if s.broken || s.isNew && !escaped && (!root.object || isPlaceholder(s.text[root.from:])) {
		return
	}
	// Members without quotes are found after a brace or a comma, which is at or after one of these offsets. If the
	// mistake follows a value, its end may be wrong, so the search includes the value.
	nameAt := s.nameAt
	if s.top().expects == aCommaOrEnd {
		nameAt = s.top().nameAt
	}
	s.broken, s.mistake = true, max(nameAt, s.top().from)
}

// resume waits until the namespace is next and a processor is free for it. Small texts need not wait.
func (s *jsonScan) resume() {
	s.turnStart, s.done = s.at, fairgate.AcquireProcessor(s.ctx, min(len(s.text)-s.at, chunk))
}

// removeBroken removes values that are selected and whose end is not known, because the text has invalid JSON at the
// position, or ends there. It reports whether there are such values.
//
//   - A selected value is removed with the rest of the text.
//   - A value in which a path selects values whatever their names are, as $.cards[*] does within cards, is removed up
//     to its last bracket. If it is the outermost value, as with $[*], the rest of the text is removed.
func (s *jsonScan) removeBroken() bool {
	if s.selected > 0 {
		s.removeRest(s.stack[s.selected-1].from)
		return true
	}
	depth, path := s.wildcardValue()
	if depth == 0 || s.at == len(s.text) || depth == 1 && s.isNew {
		return false
	}
	s.found[path]++
	if depth == 1 {
		s.removeRest(s.at)
		return true
	}
	from := s.stack[depth-1].from
	s.at = max(s.at, bracketEnd(s.text, from))
	value := span{from, s.at}
	s.remove(value)
	s.addValue(value)
	return true
}

// wildcardValue returns the depth of the outermost open value in which a path selects values whatever their names are,
// and the path. The depth is 0 if there is no such value.
func (s *jsonScan) wildcardValue() (depth int, path string) {
	n := len(s.rules.paths)
	for i := range s.stack {
		for j := range s.rules.paths {
			if p := &s.rules.paths[j]; p.selectsAnyIn(s.states[i*n+j]) {
				return i + 1, p.text
			}
		}
	}
	return 0, ""
}

// removeRest removes the text from a selected value on.
func (s *jsonScan) removeRest(from int) {
	rest := span{from, len(s.text)}
	s.remove(rest)
	s.at = len(s.text)
	s.addValue(rest)
}

// addValue notes a part of the text in which the patterns were searched for.
func (s *jsonScan) addValue(v span) { s.values = s.join(s.values, v) }

// join appends a part of the text. It joins neighbors, because a text may have a value in every second byte.
func (s *jsonScan) join(all []span, v span) []span {
	if n := len(all); n > 0 {
		last := &all[n-1]
		if gap := v.from - last.to; gap >= 0 && gap <= maxSpace && strings.TrimSpace(s.text[last.to:v.from]) == "" {
			last.to = v.to
			return all
		}
	}
	return append(all, v)
}

// initial returns the states of the paths at the root of a value. They are valid until the next call.
func (s *jsonScan) initial() []uint32 {
	s.next = s.next[:0]
	for range s.rules.paths {
		s.next = append(s.next, 1)
	}
	return s.next
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
		s.nameAt, v.nameAt = s.at, s.at
		name := s.decodeString(s.text[s.at:end])
		v.name = composed(name)
		s.replaceString(end, name)
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
		depth := len(s.stack)
		if !s.readValue() {
			return false // a mistake at a value does not follow one: see noteMistake
		}
		s.stack[depth-1].expects = aCommaOrEnd // not v, because the stack may have moved
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
	s.stack, s.states = s.stack[:depth-1], s.states[:(depth-1)*len(s.rules.paths)]
	if s.selected == depth {
		s.selected = 0
		if !s.isValueEnd(s.at) { // the bracket may be in a string with escapes of another language
			s.at = max(s.at, bracketEnd(s.text, from))
		}
		s.remove(span{from, s.at})
	}
	if depth == 1 {
		s.addValue(span{from, s.at})
		// After a mistake, only a value at the beginning of a line is certainly not a part of a broken value.
		if !s.broken || from == 0 || s.text[from-1] == '\n' {
			s.known = s.join(s.known, span{from, s.at})
		}
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
		case selected && whole && !s.isStringEnd(end) && s.top().object && s.rules.names.has(s.top().name):
			s.at = end
			return false // memberNames finds the end of the value
		case selected:
			s.replace(from, end, path)
		case whole:
			s.replaceString(end, s.decodeString(s.text[from:end]))
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
	if !json.Valid([]byte(literal)) || !s.isValueEnd(end) {
		return false
	}
	switch {
	case literal == "null":
	case selected:
		s.replace(from, end, path)
	case literal != "true" && literal != "false":
		s.replaceNumber(from, end)
	}
	s.at = end
	return true
}

// isValueEnd reports whether a value ends at an offset.
func (s *jsonScan) isValueEnd(at int) bool {
	rest := strings.TrimLeft(s.text[at:min(len(s.text), at+maxSpace)], " \t\r\n")
	closer := byte(']')
	if s.top().object {
		closer = '}'
	}
	return rest == "" || rest[0] == ',' || rest[0] == closer
}

// isStringEnd reports whether a selected string ends at an offset. A quote after two backslashes may not end it, if the
// JSON is in a string of another language. So a comma is not enough: the next member must follow it.
func (s *jsonScan) isStringEnd(at int) bool {
	if !s.isValueEnd(at) || !s.top().object || !strings.HasSuffix(s.text[:at-1], `\\`) {
		return s.isValueEnd(at)
	}
	at = skipSpace(s.text, at, len(s.text))
	return at == len(s.text) || s.text[at] != ',' || beginsJSONName(s.text, at+1) || endsValue(s.text, at)
}

// beginsJSONName reports whether a string of JSON and a colon follow at an offset.
func beginsJSONName(text string, at int) bool {
	at = skipSpace(text, at, len(text))
	if at == len(text) || text[at] != '"' {
		return false
	}
	end, whole := jsonStringEnd(text, at)
	end = skipSpace(text, end, len(text))
	return whole && end < len(text) && text[end] == ':'
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
func (s *jsonScan) stringEnd() (end int, whole bool) { return jsonStringEnd(s.text, s.at) }

// jsonStringEnd is stringEnd for the string that begins at an offset of a text.
func jsonStringEnd(text string, at int) (end int, whole bool) {
	for i := at + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1, true
		}
	}
	return len(text), false
}

// replace replaces a value that a path selects.
func (s *jsonScan) replace(from, to int, path string) {
	s.remove(span{from, to})
	s.found[path]++
}

// remove replaces a value.
func (s *jsonScan) remove(v span) {
	s.edits = append(s.edits, edit{v, `"` + redacted + `"`})
	s.sum.add(1)
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
	more := s.sum.more
	all := rules.search(s.ctx, text, s.sum)
	s.turnStart -= s.sum.more - more // so the turn ends sooner
	for _, m := range all {
		edits = append(edits, edit{m.span, rules.patterns[m.rule].replacement})
		s.found[rules.patterns[m.rule].name]++
	}
	return applyEdits(text, edits)
}
