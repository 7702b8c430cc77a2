package redact

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

const (
	// MaxPathBytes is the maximum length of a path, in bytes.
	MaxPathBytes = 128
	// MaxSegments is the maximum number of segments of a path.
	MaxSegments = 16
)

// jsonPath is a path to values of JSON: the part of JSONPath (RFC 9535) that has names and wildcards.
type jsonPath struct {
	text     string
	segments []segment
	// named is the number of segments up to the last one that has a name, or 0 if all are wildcards.
	named int
}

// segment selects some children of a value.
type segment struct {
	// name is the name of a member, composed. wildcard selects all members and items.
	name     string
	wildcard bool
	// deep selects among all descendants, not only the children.
	deep bool
}

// parsePath parses a path such as $.customer.iban, $..password or $.items[*]['e-mail'].
func parsePath(text string) (jsonPath, error) {
	p := jsonPath{text: text}
	fail := func(format string, args ...any) (jsonPath, error) {
		return jsonPath{}, fmt.Errorf(format+": write a path such as $.customer.iban, $..password or $.items[*].email", args...)
	}
	if len(text) > MaxPathBytes {
		return fail("must have at most %d bytes", MaxPathBytes)
	}
	rest, ok := strings.CutPrefix(text, "$")
	if !ok {
		return fail("must begin with $")
	}
	for rest != "" {
		s := segment{}
		switch {
		case strings.HasPrefix(rest, ".."):
			s.deep, rest = true, rest[2:]
		case rest[0] == '.':
			rest = rest[1:]
		case rest[0] != '[':
			return fail("must have . or [ before %.40q", rest)
		}
		var err error
		if strings.HasPrefix(rest, "[") {
			rest, err = s.bracket(rest)
		} else {
			rest, err = s.dotted(rest)
		}
		if err != nil {
			return fail("%s", err)
		}
		s.name = composed(s.name)
		p.segments = append(p.segments, s)
		if !s.wildcard {
			p.named = len(p.segments)
		}
	}
	if n := len(p.segments); n == 0 || n > MaxSegments {
		return fail("must have 1 to %d names or wildcards after $", MaxSegments)
	}
	return p, nil
}

// dotted reads a name, or a wildcard, after a dot. It returns the rest of the path.
func (s *segment) dotted(text string) (rest string, err error) {
	end := strings.IndexAny(text, ".[")
	if end < 0 {
		end = len(text)
	}
	s.name, rest = text[:end], text[end:]
	switch {
	case s.name == "*":
		s.name, s.wildcard = "", true
	case s.name == "":
		return "", errors.New("must have a name after each dot")
	case strings.ContainsAny(s.name, `]'"*? ()@`):
		return "", fmt.Errorf("must have the name %.40q in brackets, as ['%.40s']", s.name, s.name)
	}
	return rest, nil
}

// bracket reads a quoted name, or a wildcard, in brackets. It returns the rest of the path.
func (s *segment) bracket(text string) (rest string, err error) {
	if rest, ok := strings.CutPrefix(text, "[*]"); ok {
		s.wildcard = true
		return rest, nil
	}
	if len(text) > 1 && (text[1] == '\'' || text[1] == '"') {
		if end := strings.IndexByte(text[2:], text[1]); end >= 0 && strings.HasPrefix(text[2+end+1:], "]") {
			s.name = text[2 : 2+end]
			return text[2+end+2:], nil
		}
	}
	return "", errors.New("must have only [*] or a quoted name such as ['e-mail'] in brackets: indexes, slices and filters are " +
		"not supported")
}

// composed returns a name with composed letters (Unicode NFC). An accented letter is one character or two, which look
// the same, so names are compared in this form.
func composed(name string) string { return norm.NFC.String(name) }

// matches reports whether the segment selects a child with this composed name. item is true if the child is an item of
// a list.
func (s *segment) matches(name string, item bool) bool { return s.wildcard || !item && s.name == name }

// childState returns the state of a path at a child of a value: bit i is set if the first i segments lead to the child.
func (p *jsonPath) childState(state uint32, name string, item bool) (next uint32) {
	for i := range p.segments {
		if state&(1<<i) == 0 {
			continue
		}
		if p.segments[i].deep {
			next |= 1 << i
		}
		if p.segments[i].matches(name, item) {
			next |= 1 << (i + 1)
		}
	}
	return next
}

// selects reports whether the path selects a value with this state.
func (p *jsonPath) selects(state uint32) bool { return state&(1<<len(p.segments)) != 0 }

// selectsAnyIn reports whether the path selects values within a value with this state whatever their names are: only
// wildcards follow.
func (p *jsonPath) selectsAnyIn(state uint32) bool { return state&(1<<len(p.segments)-1)>>p.named != 0 }
