package redact

import (
	"bytes"
	"html"
	"iter"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxDepth bounds how many escapes within escapes are undone: JSON in a text in JSON, sent in a URL, and those that a secret
	// itself seems to have.
	maxDepth = 5
	// chunk is how much of a text is viewed at once, in bytes that are visible, and reach how much longer than a form its escapes
	// may be, in times: of what follows upon a chunk, so much is viewed with it.
	chunk = 64 << 10
	reach = 40
	// maxEntity bounds the entities of HTML that are undone, in bytes. None has a longer name.
	maxEntity = 34
)

// view is a text without white space and without what no reader sees, as it reads once its escapes are undone so many times.
// Characters are folded: a letter of another width or style, or with marks on it, is the letter.
type view struct {
	text []byte
	// low is the text with its ASCII letters in lower case: each byte stands at the same place.
	low []byte
	// from and to are where in the text each byte comes from, if the view is placed: that takes longer than all else.
	from, to []int32
	placed   bool
}

// views are made one after the other.
type views struct{ now, next view }

// scan finds the secrets in a text, chunk by chunk: the places of a view take more room than its text. They are noted only for
// chunks that hold something.
func (r *Redactor) scan(text string) []span {
	var hidden []span
	var vs views
	overlap := reach * r.longest
	size := max(chunk, 4*overlap)
	for start := 0; ; {
		next := start + visible(text[start:], size-overlap)
		end := next + visible(text[next:], overlap)
		if part := text[start:end]; r.suspects(&vs, part) {
			before := len(hidden)
			for v := range vs.of(part, true) {
				for _, i := range r.candidates(v) {
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
		start = next
	}
}

// suspects says whether a text may hold a secret.
func (r *Redactor) suspects(vs *views, text string) bool {
	for v := range vs.of(text, false) {
		if len(r.candidates(v)) > 0 {
			return true
		}
	}
	return false
}

// visible returns how long the beginning of a text is that has so many visible bytes, and all the invisible ones behind them.
func visible(text string, bytes int) int {
	if len(text) <= bytes {
		return len(text)
	}
	for i := 0; i < len(text); {
		size := 1
		if c := text[i]; c >= utf8.RuneSelf || c <= ' ' || c == delete7 {
			var r rune
			r, size = utf8.DecodeRuneInString(text[i:])
			if unicode.IsSpace(r) || isIgnorable(r) {
				i += size
				continue
			}
		}
		if bytes -= size; bytes < 0 {
			return i
		}
		i += size
	}
	return len(text)
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

// pack makes of a view a text without what is not visible.
func (v *view) pack(text string) {
	v.text, v.from, v.to = v.text[:0], v.from[:0], v.to[:0]
	begin := 0
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r > ' ' && r < delete7 {
			i++
			continue
		}
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(text[i:])
		}
		folded, plain := fold(r)
		if plain {
			i += size
			continue
		}
		v.keep(text, begin, i)
		v.put(r, folded, i, i+size)
		i += size
		begin = i
	}
	v.keep(text, begin, len(text))
	v.low = lower(v.low, v.text)
}

// keep adds a part of a text as it is.
func (v *view) keep(text string, from, to int) {
	v.text = append(v.text, text[from:to]...)
	for i := from; v.placed && i < to; i++ {
		v.from, v.to = append(v.from, int32(i)), append(v.to, int32(i+1)) //nolint:gosec // because no text is as long as 2 GiB
	}
}

// put adds the folded form of a character at a place of the text. White space parts what is around it; anything else that leaves
// nothing does not, and belongs to the byte before it.
func (v *view) put(r rune, folded string, from, to int) {
	v.text = append(v.text, folded...)
	if !v.placed {
		return
	}
	for range len(folded) {
		v.from, v.to = append(v.from, int32(from)), append(v.to, int32(to)) //nolint:gosec // because no text is as long as 2 GiB
	}
	if last := len(v.to) - 1; folded == "" && last >= 0 && int(v.to[last]) == from && !unicode.IsSpace(r) {
		v.to[last] = int32(to) //nolint:gosec // because no text is as long as 2 GiB
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
		folded, plain := fold(r)
		if plain {
			folded = string(r)
		}
		from, to := 0, 0
		if v.placed {
			from, to = int(v.from[i]), int(v.to[i+size-1])
		}
		into.put(r, folded, from, to)
		i += size
		begin = i
	}
	if begin == 0 {
		return false
	}
	into.take(v, begin, len(v.text))
	into.low = lower(into.low, into.text)
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
		return octets(text, 1)
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
		return unit(text)
	case 'x':
		return octets(text, 2)
	}
	return 0, 0
}

// unit is an escape of JSON: a character, or two escapes that are the halves of one.
func unit(text []byte) (r rune, size int) {
	r, size = hexadecimal(text, 2, 4)
	if size == 0 || !utf16.IsSurrogate(r) || len(text) < size+2 || text[size] != '\\' || text[size+1] != 'u' {
		return r, size
	}
	if low, n := hexadecimal(text[size:], 2, 4); n > 0 {
		if whole := utf16.DecodeRune(r, low); whole != utf8.RuneError {
			return whole, size + n
		}
	}
	return r, size
}

// octets is an escape of a byte, after so many bytes that begin it, or of all bytes of a character, each of which is escaped so.
// A byte of no character is the character of its number.
func octets(text []byte, begin int) (r rune, size int) {
	r, size = hexadecimal(text, begin, 2)
	if size == 0 || r < utf8.RuneSelf {
		return r, size
	}
	var character [utf8.UTFMax]byte
	character[0] = byte(r) //nolint:gosec // because it has two hexadecimal digits
	for n, at := 1, size; n < utf8.UTFMax && bytes.HasPrefix(text[at:], text[:begin]); n++ {
		next, more := hexadecimal(text[at:], begin, 2)
		if more == 0 {
			break
		}
		character[n] = byte(next) //nolint:gosec // because it has two hexadecimal digits
		at += more
		if whole, length := utf8.DecodeRune(character[:n+1]); length == n+1 {
			return whole, at
		}
	}
	return r, size
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
	if end == 0 || text[1] != '#' && (text[1]|0x20 < 'a' || text[1]|0x20 > 'z') {
		return 0, 0
	}
	written := string(text[:end])
	reading := html.UnescapeString(written)
	if r, n := utf8.DecodeRuneInString(reading); n == len(reading) && reading != written {
		return r, end
	}
	return 0, 0
}
