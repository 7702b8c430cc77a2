package redact

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// inside returns the text of a string without the values that paths select in JSON within it.
func (s *jsonScan) inside(text string) string {
	edits, broken, _ := s.pathEdits(text, false)
	// The scan of a text without its escapes does not search for names. The scan of the text that still has them does,
	// so it must learn of the mistake.
	s.broken = s.broken || broken && s.escaped
	return applyEdits(text, edits)
}

// pathEdits returns the edits that remove the values that paths select in JSON within a string, in the order of their
// positions and without overlaps. It looks through as many strings within strings as the search for patterns looks
// through escapes. escaped is true if the string is a part of a text whose escapes were removed. broken reports whether
// the string has invalid JSON, and cut whether it ends within JSON.
func (s *jsonScan) pathEdits(text string, escaped bool) (edits []edit, broken, cut bool) {
	if s.depth == rounds || len(s.rules.paths) == 0 || !strings.ContainsAny(text, "{[") {
		return nil, false, false
	}
	if len(text) >= longString {
		s.done() // the scan takes turns itself
		defer s.resume()
	}
	rules := &Rules{paths: s.rules.paths, names: s.rules.names}
	inner := jsonScan{
		ctx: s.ctx, rules: rules, all: s.all, text: text, found: s.found, sum: s.sum, depth: s.depth + 1,
		escaped: escaped || s.escaped,
	}
	edits, _ = inner.run()
	return edits, inner.broken, inner.cut
}

// readEscaped reads JSON that is escaped, as in a quoted string of a log: {\"password\":\"secret\"}. It must be called
// at the position of a mistake, and ok is false if there is no escape. It reads up to the quote that ends the string,
// also over line breaks and over escapes that JSON does not have, as in output for a terminal. whole reports whether
// the outermost open value is escaped JSON without mistakes.
func (s *jsonScan) readEscaped() (ok, whole bool) {
	if s.at == len(s.text) || s.text[s.at] != '\\' || s.at < s.unreadable || s.depth == rounds {
		return false, false
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
	to -= unquotedBeginning(s.text[s.at+1 : to]) // the JSON after the escapes is read without removing escapes
	content := s.text[from:to]
	s.done() // each part of a large content takes a turn of its own
	plain := unescapeString(s.ctx, content)
	s.resume()
	if plain == content {
		s.unreadable = to
		return false, false
	}
	edits, broken, cut := s.pathEdits(plain, true)
	toSource(content, edits)
	for _, e := range edits {
		source := span{from + e.from, from + e.to}
		with := e.with
		if with[0] == '"' { // a string of JSON, and not text with escapes, which an inner scan has already searched
			with = encodeString(s.removeMatches(s.all, s.decodeString(with)))
		}
		literal := encodeString(with)
		s.edits = append(s.edits, edit{source, literal[1 : len(literal)-1]})
		s.addValue(source)
	}
	s.at = to
	endsEarly := cut && to < len(s.text)
	return true, !broken && !endsEarly && from == s.stack[0].from
}

// unquotedBeginning returns how many bytes at the end of a text may be the beginning of a JSON value without escapes.
// The text ends before a quote. Example: the result is 1, for the {, if {"a":1} follows a text with escapes.
func unquotedBeginning(text string) int {
	length := 0
	for i := len(text) - 1; i >= 0 && strings.IndexByte(" \t\r\n{[+-.,0123456789Eaeflnrstu", text[i]) >= 0; i-- {
		if text[i] == '{' || text[i] == '[' {
			length = len(text) - i
		}
	}
	return length
}

// decodeString returns the text of a string of JSON. It also accepts line breaks and unknown escapes in the string.
func (s *jsonScan) decodeString(literal string) string {
	inner := literal[1 : len(literal)-1]
	if strings.IndexByte(inner, '\\') < 0 {
		return inner
	}
	if len(literal) >= longString {
		s.done() // unescapeString waits for turns of its own
		defer s.resume()
	}
	var text string
	if json.Unmarshal([]byte(literal), &text) == nil {
		return text
	}
	return unescapeString(s.ctx, inner)
}

// unescapeString removes one level of escapes from the content of a quoted string of JSON, a shell or a log. Unknown
// escapes stay. Before each chunk of a large content, it waits until the namespace of ctx is next.
func unescapeString(ctx context.Context, content string) string {
	var out strings.Builder
	out.Grow(len(content))
	for at := 0; at < len(content); {
		part := min(at+chunk, len(content))
		done := fairgate.AcquireProcessor(ctx, part-at)
		for at < part {
			plain := strings.IndexByte(content[at:part], '\\')
			if plain < 0 {
				plain = part - at
			}
			out.WriteString(content[at : at+plain])
			if at += plain; at == part {
				break
			}
			r, size := escapedCharacter(content[at:])
			if size == 0 {
				out.WriteByte(content[at])
				size = 1
			} else {
				out.WriteRune(r)
			}
			at += size
		}
		done()
	}
	return out.String()
}

// toSource changes the positions of edits, which are in order, from those in the result of unescapeString to those in
// the content. It computes the positions again, because a table of the positions of all bytes would need many times as
// much memory as the content.
func toSource(content string, edits []edit) {
	at, plain := 0, 0 // the same position in the content and in the result
	advance := func(to int) int {
		for plain < to && at < len(content) {
			if next := strings.IndexByte(content[at:min(len(content), at+to-plain)], '\\'); next != 0 {
				if next < 0 {
					next = min(len(content)-at, to-plain)
				}
				at, plain = at+next, plain+next
				continue
			}
			r, size := escapedCharacter(content[at:])
			if size == 0 {
				at, plain = at+1, plain+1
				continue
			}
			at, plain = at+size, plain+len(string(r))
		}
		return at
	}
	for i := range edits {
		edits[i].from = advance(edits[i].from)
		edits[i].to = advance(edits[i].to)
	}
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
