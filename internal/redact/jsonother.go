package redact

import (
	"slices"
	"strings"
)

// recover notes invalid JSON in the innermost open value, which then expects a token. It returns false if a path
// selects the value.
func (s *jsonScan) recover(expects expectation) bool {
	if s.selected > 0 {
		return false
	}
	v := s.top()
	v.expects, v.broken, s.broken = expects, true, true
	return true
}

// skip notes an invalid character, and skips it.
func (s *jsonScan) skip() bool {
	v := s.top()
	expects := aValue
	if v.object {
		expects = aName
	}
	if !s.recover(expects) {
		return false
	}
	s.at++
	return true
}

// isStringItem reports whether the quote at the position begins a string, although no comma is before it.
func (s *jsonScan) isStringItem() bool {
	end, whole := s.stringEnd()
	return whole && s.isDelimiter(end)
}

// leaveList handles a colon after a string in a list. The string is the name of a member of an object around the list,
// if there is any, because the list has not ended, or its bracket is in a comment.
func (s *jsonScan) leaveList() bool {
	name := s.top().name
	for i := range slices.Backward(s.stack) {
		if !s.stack[i].object {
			continue
		}
		if !s.recover(aValue) {
			return false
		}
		s.stack, s.states = s.stack[:i+1], s.states[:(i+1)*len(s.rules.paths)]
		o := s.top()
		o.name, o.quoted, o.expects, o.broken = name, true, aValue, true
		s.at++
		return true
	}
	return s.skip()
}

// closeBroken handles the end of an object in a list, or of a list in an object, or an end after a comma. If the value
// that ends is open, it is closed with all values in it.
func (s *jsonScan) closeBroken() bool {
	isObject := s.text[s.at] == '}'
	for i := range slices.Backward(s.stack) {
		if s.stack[i].object != isObject {
			continue
		}
		if s.selected > i+1 || !s.recover(aCommaOrEnd) && s.selected != i+1 {
			return false
		}
		n := len(s.rules.paths)
		s.stack, s.states, s.broken = s.stack[:i+1], s.states[:(i+1)*n], true
		return s.closeValue()
	}
	return s.skip()
}

// readOther reads a value that is not JSON: a string in single quotes, or a word such as NaN, True or $USER. If a path
// selects the value, but its end is not clear, the rest of the text is removed.
func (s *jsonScan) readOther(selected bool, path string) bool {
	v, from := s.top(), s.at
	end, ok := s.otherStringEnd()
	if !ok {
		end = s.wordEnd()
		ok = end > from && s.isDelimiter(end)
	}
	isValue := v.object || ok && isConstant(s.text[from:end]) // otherwise a list is probably a text in brackets
	switch {
	case !selected || !isValue:
	case ok:
		s.replace(from, end, path)
	case v.quoted:
		s.found[path]++
		s.commit(false)
		s.removeRest(from)
		return true
	default: // a text that looks like an object of another language
		if line := strings.IndexAny(s.text[from:], ",}]\r\n"); line >= 0 {
			end = from + line
		} else {
			end = len(s.text)
		}
		s.replace(from, end, path)
	}
	if s.selected > 0 && !ok || !selected && s.text[from] == '\\' {
		return false
	}
	v.broken, s.broken = true, true
	s.at = max(end, from+1)
	return true
}

// isConstant reports whether a word is a value in a list of another language.
func isConstant(word string) bool {
	switch word {
	case "NaN", "Infinity", "-Infinity", "True", "False", "None", "undefined":
		return true
	}
	return word[0] == '\''
}

// isDelimiter reports whether a value or a name may end at an offset.
func (s *jsonScan) isDelimiter(at int) bool {
	rest := strings.TrimLeft(s.text[at:min(len(s.text), at+maxSpace)], " \t\r\n")
	return rest == "" || strings.IndexByte(",:}]\\", rest[0]) >= 0
}

// wordEnd returns the end of a word without quotes at the position.
func (s *jsonScan) wordEnd() int {
	end := s.at
	for end < len(s.text) && strings.IndexByte(" \t\r\n{}[],:\"'\\", s.text[end]) < 0 {
		end++
	}
	return end
}

// otherStringEnd returns the end of the string in single quotes at the position. ok is false if there is none: an
// apostrophe in a text is no quote.
func (s *jsonScan) otherStringEnd() (end int, ok bool) {
	if s.text[s.at] != '\'' {
		return 0, false
	}
	for i := s.at + 1; i < min(len(s.text), s.at+maxOtherString); i++ {
		switch s.text[i] {
		case '\n':
			return 0, false
		case '\\':
			i++
		case '\'':
			return i + 1, s.isDelimiter(i + 1)
		}
	}
	return 0, false
}
