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
	// longString is the length of a string whose search takes turns with other namespaces, in bytes. It must not be
	// larger than the bound of package fairgate.
	longString = 16 << 10
	// maxEscape is the maximum length of an escape, in bytes: two halves of a surrogate pair, or four bytes of UTF-8.
	maxEscape = 16
	// maxSpace is the length of the text after a value in which its end is looked for, and maxOtherString the maximum
	// length of a string in single quotes, in bytes.
	maxSpace, maxOtherString = 64, 4 << 10
)

// jsonScan finds the objects and lists in a text, and the parts of them that the rules remove. It reads each byte a
// bounded number of times. It continues after invalid JSON, because a text may be cut off, have JSON within other text,
// or have JSON with comments, with NaN or with the quotes of another language.
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
	// pending are the edits in the outermost open value, and broken is true if this value is not JSON.
	pending []pendingEdit
	broken  bool
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
	// name is the name of the current member of an object, or the last item of a list if that is a string. quoted is
	// true if it has quotes.
	name   string
	quoted bool
	// broken is true after invalid JSON in the value. Objects and lists in the rest of the value may belong to it, or
	// may be values of their own.
	broken bool
}

// pendingEdit is an edit whose outermost value has not ended. If this value is not JSON, the patterns are searched for
// in the whole text, and only the edits of paths are kept.
type pendingEdit struct {
	edit
	ofPath bool
	found  Matches // of patterns
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
			s.commit(false)
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
		s.removeRest(s.stack[s.selected-1].from)
		return true
	}
	return s.at == len(s.text)
}

// removeRest removes the text from a selected value on, because the end of the value is not known.
func (s *jsonScan) removeRest(from int) {
	rest := span{from, len(s.text)}
	s.edits, s.at = append(s.edits, edit{rest, `"` + redacted + `"`}), len(s.text)
	s.addValue(rest)
}

// addValue notes a part of the text in which the patterns were searched for. It joins neighbors, because a text may
// have a value in every second byte. Nothing uses the parts of a text within a string.
func (s *jsonScan) addValue(v span) {
	if s.depth > 0 {
		return
	}
	if n := len(s.values); n > 0 {
		last := &s.values[n-1]
		if gap := v.from - last.to; gap >= 0 && gap <= maxSpace && strings.TrimSpace(s.text[last.to:v.from]) == "" {
			last.to = v.to
			return
		}
	}
	s.values = append(s.values, v)
}

// commit ends the outermost value. whole reports whether it is JSON; otherwise only the edits of paths are kept.
func (s *jsonScan) commit(whole bool) {
	for _, p := range s.pending {
		if !whole && !p.ofPath {
			continue
		}
		s.edits = append(s.edits, p.edit)
		s.found.add(p.found)
		if !whole {
			s.addValue(p.span)
		}
	}
	s.pending, s.broken = s.pending[:0], false
}

// initial returns the states of the paths at the root of a value. They are valid until the next call.
func (s *jsonScan) initial() []uint32 {
	s.next = s.next[:0]
	for range s.rules.paths {
		s.next = append(s.next, 1)
	}
	return s.next
}

// skipSpace skips white space, and line breaks and tabs that are escaped, as in a string of another language in single
// quotes.
func (s *jsonScan) skipSpace() {
	for s.at < len(s.text) {
		if strings.IndexByte(" \t\r\n", s.text[s.at]) >= 0 {
			s.at++
			continue
		}
		end := s.at
		for end < len(s.text) && s.text[end] == '\\' {
			end++
		}
		if end == s.at || end == len(s.text) || strings.IndexByte("ntr", s.text[end]) < 0 {
			return
		}
		s.top().broken, s.broken = true, true
		s.at = end + 1
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

// step reads the next token. It returns false if the scan cannot continue in the open values.
func (s *jsonScan) step() bool {
	v, c := s.top(), s.text[s.at]
	switch v.expects {
	case aNameOrEnd, aName:
		return s.readName()
	case aColon:
		if c != ':' { // not a member
			return s.recover(aName)
		}
		s.at++
		v.expects = aValue
	case aValue, aValueOrEnd:
		switch {
		case c == ']' && v.expects == aValueOrEnd:
			return s.closeValue()
		case c == '}' || c == ']':
			return s.closeBroken()
		case c == ',' || c == ':':
			return s.skip()
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
		case c == '}' || c == ']':
			return s.closeBroken()
		case v.object:
			return s.recover(aName)
		case c == ':' && v.quoted:
			return s.leaveList()
		case c == '"' && !s.isStringItem():
			return s.skip()
		default:
			return s.recover(aValue)
		}
		s.at++
	}
	return true
}

// readName reads the name of a member, or the end of an object. Names without quotes, and names in single quotes, are
// those of other languages.
func (s *jsonScan) readName() bool {
	v, c := s.top(), s.text[s.at]
	switch {
	case c == '}' && v.expects == aNameOrEnd:
		return s.closeValue()
	case c == '}' || c == ']':
		return s.closeBroken()
	case c == '"':
		end, whole := s.stringEnd()
		if !whole {
			return false
		}
		v.name, v.quoted = s.decodeString(s.text[s.at:end]), true
		s.replaceString(end, v.name)
		s.at, v.expects = end, aColon
		return true
	case c == '{' || c == '[':
		if !s.recover(aCommaOrEnd) {
			return false
		}
		v.name = ""
		return s.readValue()
	case c == '\\':
		return false
	}
	if end, ok := s.otherStringEnd(); ok && s.recover(aColon) {
		v.name, v.quoted = s.decodeString(s.text[s.at:end]), true
		s.at = end
		return true
	}
	end := s.wordEnd()
	if end == s.at {
		return s.skip()
	}
	v.name, v.quoted = s.text[s.at:end], false
	if !s.recover(aColon) {
		return false
	}
	s.at = end
	return true
}

// closeValue ends the innermost open value.
func (s *jsonScan) closeValue() bool {
	depth := len(s.stack)
	from := s.top().from
	s.at++
	if s.selected == depth {
		s.selected = 0
		s.pending = append(s.pending, pendingEdit{edit: edit{span{from, s.at}, `"` + redacted + `"`}, ofPath: true})
	}
	s.stack, s.states = s.stack[:depth-1], s.states[:(depth-1)*len(s.rules.paths)]
	if depth == 1 {
		whole := !s.broken
		s.commit(whole)
		if whole {
			s.addValue(span{from, s.at})
		}
	}
	return true
}

// readValue reads the beginning of an object or a list, or the whole of another value.
func (s *jsonScan) readValue() bool {
	states, path := s.childStates()
	v, c := s.top(), s.text[s.at]
	v.quoted = v.quoted && v.object
	if c == '{' || c == '[' {
		if len(s.stack) == maxNesting {
			return false
		}
		if path != "" && s.selected == 0 {
			s.selected = len(s.stack) + 1
			s.found[path]++
		}
		for i := range states {
			if v.broken { // it may be a value of its own
				states[i] |= 1
			}
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
			text := s.decodeString(s.text[from:end])
			s.replaceString(end, text)
			if !v.object {
				v.name, v.quoted = text, true
			}
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
	if !s.isDelimiter(end) || !json.Valid([]byte(literal)) {
		return s.readOther(selected, path)
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
	s.pending = append(s.pending, pendingEdit{edit: edit{span{from, to}, `"` + redacted + `"`}, ofPath: true})
	s.found[path]++
}

// replaceString replaces the string up to end if its text has matches.
func (s *jsonScan) replaceString(end int, text string) {
	if s.selected > 0 {
		return
	}
	inside := s.inside(text)
	if clean, found := s.removeMatches(s.rules, inside); clean != text {
		s.pending = append(s.pending, pendingEdit{edit{span{s.at, end}, encodeString(clean)}, inside != text, found})
	}
}

// replaceNumber replaces a number that has a match in its own form, or as an integer without an exponent.
func (s *jsonScan) replaceNumber(from, to int) {
	if s.selected > 0 {
		return
	}
	literal := s.text[from:to]
	clean, found := s.removeMatches(s.rules, literal)
	if clean == literal && len(literal) <= maxNumber && strings.ContainsAny(literal, ".eE") {
		n, err := decimal.NewFromString(literal)
		if err == nil && n.Exponent() <= maxExponent && n.Exponent() >= -maxExponent && n.IsInteger() {
			if plain := n.String(); plain != literal {
				if other, more := s.removeMatches(s.rules, plain); other != plain {
					clean, found = other, more
				}
			}
		}
	}
	if clean != literal {
		s.pending = append(s.pending, pendingEdit{edit{span{from, to}, encodeString(clean)}, false, found})
	}
}

// removeMatches returns a text without the matches of the patterns of rules, and the number of matches; nil if there
// are none.
func (s *jsonScan) removeMatches(rules *Rules, text string) (clean string, found Matches) {
	if len(text) >= longString {
		s.done() // search waits for turns of its own
		defer s.resume()
	}
	var edits []edit
	for _, m := range rules.search(s.ctx, text) {
		if found == nil {
			found = Matches{}
		}
		edits = append(edits, edit{m.span, rules.patterns[m.rule].replacement})
		found[rules.patterns[m.rule].name]++
	}
	return applyEdits(text, edits), found
}
