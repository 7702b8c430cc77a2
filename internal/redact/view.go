package redact

import (
	"bytes"
	"html"
	"iter"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

const (
	// maxDepth bounds how many nested escapes are removed: JSON in a JSON text that is sent in a URL, and escapes
	// that a secret itself seems to have.
	maxDepth = 5
	// chunk is the length of the parts in which a text is viewed, in visible bytes. reach is how many times longer than
	// a pivot its escaped text may be. Neighboring chunks overlap by reach times the longest text that a view must
	// contain as a whole.
	chunk = 64 << 10
	reach = 40
	// maxGrowth bounds how many times longer than a character its folded form is, in bytes.
	maxGrowth = 11
	// maxEntity bounds the HTML entities that are decoded, in bytes. No entity has a longer name.
	maxEntity = 34
)

// view is a text without white space and invisible characters, after a number of rounds of removing escapes.
// Characters are folded: a letter of another width or style, or with marks on it, becomes the plain letter.
type view struct {
	text []byte
	// low is the text with its ASCII letters in lower case. Each byte keeps its position.
	low []byte
	// from and to are the positions in the original text that each byte comes from. They exist only if hasPositions is
	// true, because they take most of the time.
	from, to     []int32
	hasPositions bool
	// keepSpaces keeps white space, which patterns need.
	keepSpaces bool
	// folded is the buffer of fold. Without it, a long text would make as much garbage as a view of all of it.
	folded []byte
}

// views are the two buffers for successive views of a text.
type views struct{ now, next view }

// search has the buffers for the search of a text.
type search struct {
	// chunk is for the views of a chunk, and beyond for views of the text before and after it.
	chunk, beyond views
	found         []span
}

// fewSpans is the number of spans from which spans are merged, because many secrets may be found in the same places.
const fewSpans = 4096

// scan finds the secrets in a text, chunk by chunk. The positions of a view need more memory than its text, so they
// are computed only for chunks that contain a secret.
func (r *Redactor) scan(text string) []span {
	var hidden []span
	var s search
	overlap := reach * r.longest
	size := max(chunk, 4*overlap)
	for start := 0; ; {
		next := start + visible(text[start:], size-overlap)
		end := next + visible(text[next:], overlap)
		if r.suspects(&s.chunk, text[start:end]) {
			hidden = append(hidden, r.findIn(&s, text, start, end)...)
		}
		if end == len(text) {
			return hidden
		}
		start = next
	}
}

// findIn finds the secrets in a chunk of a text. The result is valid until the next call.
func (r *Redactor) findIn(s *search, text string, start, end int) []span {
	s.found = s.found[:0]
	most, rounds := fewSpans, 0
	for v := range s.chunk.each(text[start:end], true) {
		for _, i := range r.candidates(v) {
			f := &r.forms[i]
			for h := range f.find(v) {
				h.from += start
				h.to += start
				s.found = append(s.found, f.extend(&s.beyond, text, rounds, h))
			}
			if len(s.found) > most {
				s.found = merged(s.found)
				most = max(fewSpans, 2*len(s.found))
			}
		}
		rounds++
	}
	s.found = merged(s.found)
	return s.found
}

// suspects reports whether a text may contain a secret.
func (r *Redactor) suspects(vs *views, text string) bool {
	for v := range vs.each(text, false) {
		if len(r.candidates(v)) > 0 {
			return true
		}
	}
	return false
}

// visible returns the length of the beginning of a text that has the given number of visible bytes, and all
// invisible bytes after them. A character counts as its folded form if that is longer, so that a view of the result is
// about as short.
func visible(text string, bytes int) int {
	if len(text) <= bytes/maxGrowth {
		return len(text)
	}
	for i := 0; i < len(text); {
		size, count := 1, 1
		if c := text[i]; c >= utf8.RuneSelf || c <= ' ' || c == delete7 {
			var r rune
			r, size = utf8.DecodeRuneInString(text[i:])
			count = visibleBytes(r, text[i:i+size])
		}
		if bytes -= count; bytes < 0 {
			return i
		}
		i += size
	}
	return len(text)
}

// visibleBefore returns the offset of the longest end of a text with at most the given number of visible bytes.
func visibleBefore(text string, bytes int) int {
	for i := len(text); i > 0; {
		r, size := utf8.DecodeLastRuneInString(text[:i])
		if bytes -= visibleBytes(r, text[i-size:i]); bytes < 0 {
			return i
		}
		i -= size
	}
	return 0
}

// visibleBytes returns the number of bytes that a character counts in visible. encoded is the character in the text.
func visibleBytes(r rune, encoded string) int {
	switch {
	case r > ' ' && r < delete7:
		return 1
	case unicode.IsSpace(r), isIgnorable(r):
		return 0
	}
	return max(len(encoded), len(decompose(encoded)))
}

// each yields views of a text: with no escapes removed, with one round of escapes removed, and so on. A view is valid
// until the next view is yielded.
func (vs *views) each(text string, hasPositions bool) iter.Seq[*view] {
	return func(yield func(*view) bool) {
		vs.now.hasPositions, vs.next.hasPositions = hasPositions, hasPositions
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

// after returns the view of a text after a number of rounds of removing escapes, or after fewer rounds if no escapes
// are left.
func (vs *views) after(text string, rounds int) *view {
	for range vs.each(text, true) {
		if rounds == 0 {
			break
		}
		rounds--
	}
	return &vs.now
}

// pack makes a view of the visible part of a text.
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
		folded, plain := v.fold(r, text[i:i+size])
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

// compose makes a view of the whole text in which letters and their marks are composed, as in patterns that people
// write.
func (v *view) compose(text string) {
	v.text, v.from, v.to, v.hasPositions = v.text[:0], v.from[:0], v.to[:0], true
	var parts norm.Iter
	parts.InitString(norm.NFC, text)
	for !parts.Done() {
		from := int32(parts.Pos()) //nolint:gosec // because no text is as long as 2 GiB
		part := parts.Next()
		to := int32(parts.Pos()) //nolint:gosec // because of the reason above
		if to == from {          // the first of two parts of one letter, such as U+0F43
			_, size := utf8.DecodeRuneInString(text[from:])
			to += int32(size) //nolint:gosec // because of the reason above
		}
		v.text = append(v.text, part...)
		for range part {
			v.from, v.to = append(v.from, from), append(v.to, to)
		}
	}
}

// fold returns the text by which a character is compared, until the next call. encoded is the character in UTF-8.
func (v *view) fold(r rune, encoded string) (folded []byte, plain bool) {
	if v.keepSpaces && unicode.IsSpace(r) {
		v.folded = append(v.folded[:0], ' ')
		return v.folded, r < utf8.RuneSelf
	}
	v.folded, plain = fold(v.folded, r, encoded)
	return v.folded, plain
}

// keep appends a part of a text unchanged.
func (v *view) keep(text string, from, to int) {
	v.text = append(v.text, text[from:to]...)
	for i := from; v.hasPositions && i < to; i++ {
		v.from, v.to = append(v.from, int32(i)), append(v.to, int32(i+1)) //nolint:gosec // because no text is as long as 2 GiB
	}
}

// put appends the folded form of a character at a position of the text. White space separates its neighbors. Any other
// character with an empty folded form belongs to the byte before it.
func (v *view) put(r rune, folded []byte, from, to int) {
	v.text = append(v.text, folded...)
	if !v.hasPositions {
		return
	}
	for range folded {
		v.from, v.to = append(v.from, int32(from)), append(v.to, int32(to)) //nolint:gosec // because no text is as long as 2 GiB
	}
	if last := len(v.to) - 1; len(folded) == 0 && last >= 0 && int(v.to[last]) == from && !unicode.IsSpace(r) {
		v.to[last] = int32(to) //nolint:gosec // because no text is as long as 2 GiB
	}
}

// source returns the position in the text of a part of the view.
func (v *view) source(from, to int) span { return span{int(v.from[from]), int(v.to[to-1])} }

// isContiguous reports whether the text of a part of the view has no white space. A short secret with white space in it
// may be two words.
func (v *view) isContiguous(from, to int) bool {
	for i := from + 1; i < to; i++ {
		if v.from[i] > v.to[i-1] {
			return false
		}
	}
	return true
}

// unescape makes the view into from this view by removing one round of escapes. It reports whether there were any
// escapes.
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
		encoded := string(r)
		folded, plain := v.fold(r, encoded)
		if plain {
			v.folded = append(v.folded[:0], encoded...)
			folded = v.folded
		}
		from, to := 0, 0
		if v.hasPositions {
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

// take appends a part of another view unchanged.
func (v *view) take(of *view, from, to int) {
	v.text = append(v.text, of.text[from:to]...)
	if v.hasPositions {
		v.from, v.to = append(v.from, of.from[from:to]...), append(v.to, of.to[from:to]...)
	}
}

// escape returns the character that is escaped at the beginning of a text, and the length of the escape in bytes. The
// length is 0 if the text does not begin with an escape.
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

// backslash decodes an escape of JSON, JavaScript and similar languages.
func backslash(text []byte) (r rune, size int) {
	if len(text) < 2 {
		return 0, 0
	}
	switch c := text[1]; c {
	case '"', '\'', '\\', '/':
		return rune(c), 2
	case 'b', 'f', 'n', 'r', 't':
		return ' ', 2 // a view leaves out each of these characters, or keeps it as a space
	case 'u':
		return unit(text)
	case 'x':
		return octets(text, 2)
	}
	return 0, 0
}

// unit decodes an escape of JSON: a character, or the two halves of a surrogate pair.
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

// octets decodes an escape of one byte, or the escapes of all bytes of a character. begin is the length of the text
// that begins each escape. A byte that is not a part of a character becomes the character with its number.
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

// hexadecimal decodes an escape with the given number of digits after the text that begins it.
func hexadecimal[T string | []byte](text T, begin, digits int) (r rune, size int) {
	if len(text) < begin+digits {
		return 0, 0
	}
	for i := begin; i < begin+digits; i++ {
		c := text[i]
		digit := strings.IndexByte("0123456789abcdef", c|0x20)
		if digit < 0 || c < '0' {
			return 0, 0
		}
		r = r<<4 | rune(digit) //nolint:gosec // because it is below 16
	}
	return r, begin + digits
}

// entity decodes an escape of HTML.
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
