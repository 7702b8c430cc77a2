package endpoint

import "strings"

// jsonSpace is the white space of JSON.
const jsonSpace = " \t\r\n"

// progress follows a JSON value that arrives in pieces, and knows whether all of it has arrived. It looks at each byte
// once and keeps none, because a reply may have a million pieces. It does not check the JSON.
type progress struct {
	// depth is the number of open objects and lists.
	depth int
	// inText is true within a text, and escaped after a backslash in it.
	inText, escaped bool
	// last is the last byte outside white space and the insides of texts, or 0 if none has arrived.
	last byte
}

// add adds the next piece.
func (p *progress) add(piece string) {
	for i := range len(piece) {
		b := piece[i]
		switch {
		case p.escaped:
			p.escaped = false
			continue
		case p.inText:
			p.escaped, p.inText = b == '\\', b != '"'
			continue
		}
		switch b {
		case ' ', '\t', '\r', '\n':
			continue
		case '"':
			p.inText = true
		case '{', '[':
			p.depth++
		case '}', ']':
			p.depth--
		}
		p.last = b
	}
}

// hasBegun reports whether anything but white space has arrived.
func (p *progress) hasBegun() bool { return p.last != 0 }

// isOpen reports whether an object, a list or a text has begun and not ended.
func (p *progress) isOpen() bool { return p.inText || p.depth > 0 }

// isWhole reports whether a value has arrived to its end.
func (p *progress) isWhole() bool { return p.hasBegun() && !p.isOpen() }

// accepts reports whether a text may be the next piece: an object begins only where a value is due.
func (p *progress) accepts(piece string) bool {
	return p.inText || !opensObject(piece) || strings.IndexByte(":,[", p.last) >= 0
}

// opensObject reports whether a text is the beginning of an object.
func opensObject(text string) bool { return strings.HasPrefix(strings.TrimLeft(text, jsonSpace), "{") }
