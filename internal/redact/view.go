package redact

import (
	"bytes"
	"html"
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxDepth bounds how many escapes within escapes are undone: JSON in a text in JSON, sent in a URL, and those that a secret
	// itself seems to have.
	maxDepth = 5
	// chunk is how much of a text is viewed at once, in bytes, and reach how much longer than a form its escapes may be, in
	// times: of what follows upon a chunk, so much is viewed with it.
	chunk = 64 << 10
	reach = 40
	// maxEntity bounds the entities of HTML that are undone, in bytes.
	maxEntity = 10
)

// view is a text without white space, as it reads once its escapes are undone so many times.
type view struct {
	text []byte
	// from and to are where in the text each byte comes from, if the view is placed: that takes longer than all else.
	from, to []int32
	placed   bool
}

// views are made one after the other.
type views struct{ now, next view }

// scan finds the secrets in a text, chunk by chunk: the places of a view take more room than its text. They are noted only for
// chunks that hold something.
func (r *Redactor) scan(text string) []span {
	longest := 0
	for i := range r.forms {
		longest = max(longest, len(r.forms[i].text))
	}
	var hidden []span
	var vs views
	overlap := reach * longest
	size := max(chunk, 4*overlap)
	for start := 0; ; start += size - overlap {
		end := min(start+size, len(text))
		if part := text[start:end]; r.suspects(&vs, part) {
			before := len(hidden)
			for v := range vs.of(part, true) {
				for i := range r.forms {
					hidden = r.forms[i].whole(v, hidden)
				}
			}
			for i := range hidden[before:] {
				hidden[before+i].from += start
				hidden[before+i].to += start
			}
		}
		if end == len(text) {
			return hidden
		}
	}
}

// suspects says whether a text may hold a secret.
func (r *Redactor) suspects(vs *views, text string) bool {
	for v := range vs.of(text, false) {
		for i := range r.forms {
			if bytes.Contains(v.text, r.forms[i].pivot) {
				return true
			}
		}
	}
	return false
}

// of yields a text with its escapes undone no times, once and so on. A view is good until the next.
func (vs *views) of(text string, placed bool) iter.Seq[*view] {
	return func(yield func(*view) bool) {
		vs.now.placed, vs.next.placed = placed, placed
		vs.now.pack(text)
		for range maxDepth {
			if !yield(&vs.now) || !vs.now.unescape(&vs.next) {
				return
			}
			vs.now, vs.next = vs.next, vs.now
		}
		yield(&vs.now)
	}
}

// pack makes of a view a text without white space.
func (v *view) pack(text string) {
	v.text, v.from, v.to = v.text[:0], v.from[:0], v.to[:0]
	begin := 0
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r > ' ' && r < utf8.RuneSelf {
			i++
			continue
		}
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(text[i:])
		}
		if unicode.IsSpace(r) {
			v.keep(text, begin, i)
			begin = i + size
		}
		i += size
	}
	v.keep(text, begin, len(text))
}

// keep adds a part of a text as it is.
func (v *view) keep(text string, from, to int) {
	v.text = append(v.text, text[from:to]...)
	for i := from; v.placed && i < to; i++ {
		v.from, v.to = append(v.from, int32(i)), append(v.to, int32(i+1)) //nolint:gosec // because a chunk is no longer than an answer
	}
}

// source is the place in the text of a part of the view.
func (v *view) source(from, to int) span { return span{int(v.from[from]), int(v.to[to-1])} }

// together says whether a part of the view has no white space in the text: a short secret with white space in it may be two
// words.
func (v *view) together(from, to int) bool {
	for i := from + 1; i < to; i++ {
		if v.from[i] > v.to[i-1] {
			return false
		}
	}
	return true
}

// unescape makes of another view what this one reads once its escapes are undone, and says whether it has any.
func (v *view) unescape(into *view) bool {
	into.text, into.from, into.to = into.text[:0], into.from[:0], into.to[:0]
	begin := 0
	for i := 0; i < len(v.text); {
		if c := v.text[i]; c != '\\' && c != '%' && c != '&' {
			i++
			continue
		}
		r, size := escape(v.text[i:])
		if size == 0 {
			i++
			continue
		}
		into.take(v, begin, i)
		if !unicode.IsSpace(r) {
			before := len(into.text)
			into.text = utf8.AppendRune(into.text, r)
			for range into.text[before:] {
				if v.placed {
					into.from, into.to = append(into.from, v.from[i]), append(into.to, v.to[i+size-1])
				}
			}
		}
		i += size
		begin = i
	}
	if begin == 0 {
		return false
	}
	into.take(v, begin, len(v.text))
	return true
}

// take adds a part of another view as it is.
func (v *view) take(of *view, from, to int) {
	v.text = append(v.text, of.text[from:to]...)
	if v.placed {
		v.from, v.to = append(v.from, of.from[from:to]...), append(v.to, of.to[from:to]...)
	}
}

// escape is the character that a text begins with as an escape of so many bytes; 0 for none.
func escape(text []byte) (r rune, size int) {
	switch text[0] {
	case '\\':
		return backslash(text)
	case '%':
		return hexadecimal(text, 1, 2)
	case '&':
		return entity(text)
	}
	return 0, 0
}

// backslash is an escape of JSON, JavaScript and the like.
func backslash(text []byte) (r rune, size int) {
	if len(text) < 2 {
		return 0, 0
	}
	switch c := text[1]; c {
	case '"', '\'', '\\', '/':
		return rune(c), 2
	case 'b', 'f', 'n', 'r', 't':
		return ' ', 2 // or the like, which no view has
	case 'u':
		return hexadecimal(text, 2, 4)
	case 'x':
		return hexadecimal(text, 2, 2)
	}
	return 0, 0
}

// hexadecimal is an escape of so many digits after what begins it.
func hexadecimal(text []byte, begin, digits int) (r rune, size int) {
	if len(text) < begin+digits {
		return 0, 0
	}
	for _, c := range text[begin : begin+digits] {
		digit := strings.IndexByte("0123456789abcdef", c|0x20)
		if digit < 0 || c < '0' {
			return 0, 0
		}
		r = r<<4 | rune(digit) //nolint:gosec // because it is below 16
	}
	return r, begin + digits
}

// entity is an escape of HTML.
func entity(text []byte) (r rune, size int) {
	end := bytes.IndexByte(text[:min(len(text), maxEntity)], ';') + 1
	if end == 0 {
		return 0, 0
	}
	written := string(text[:end])
	reading := html.UnescapeString(written)
	if r, n := utf8.DecodeRuneInString(reading); n == len(reading) && reading != written {
		return r, end
	}
	return 0, 0
}
