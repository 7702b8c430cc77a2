package redact

import (
	"context"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// longText is the length from which a text is searched in chunks, in bytes. Before each chunk, other namespaces may
	// go first. Such a search takes longer, because it cannot skip to the first letters of a pattern. The search of a
	// shorter text takes at most about half a second until fewMatches are found.
	longText = 1 << 20
	// fewMatches is the number of matches after which a search counts what it reads. To find one match takes linear
	// time, but to find all may take quadratic time: a pattern with an optional end, such as q(?s:.*#)?, reads the rest
	// of the text for each match.
	fewMatches = 16
	// mostReads is how often a search for one pattern may read a text. Without an optional end, it reads it about once.
	// A short text may be read until mostRead bytes are read.
	mostReads, mostRead = 32, 16 << 10
)

// acquireFunc waits for a processor: see fairgate.AcquireProcessor.
type acquireFunc func(bytes int) (done func())

// doNotWait is an acquireFunc for work that does not wait.
func doNotWait(int) func() { return func() {} }

// matchesIn returns the matches of a pattern in a text. If there are more than maxMatches, or if it takes too long to
// find all of them, tooMany is true, and all is incomplete.
func (p *compiledPattern) matchesIn(ctx context.Context, text string) (all []span, tooMany bool) {
	acquire := func(bytes int) func() { return fairgate.AcquireProcessor(ctx, bytes) }
	switch {
	case len(text) > longText:
		return p.matchesInTurns(acquire, text, 0)
	case len(text) < fairgate.Large:
		// Small work does not wait for a processor. The caller may hold one, so to wait for another could take forever.
		acquire = doNotWait
	}
	done := acquire(len(text))
	first := p.FindAllStringIndex(text, fewMatches)
	done()
	all = spans(first)
	if len(first) < fewMatches {
		return all, false
	}
	more, tooMany := p.matchesInTurns(acquire, text, first[fewMatches-1][1])
	return append(all, more...), tooMany
}

// hiddenMatchesIn is matchesIn for the views of a part of a text. The caller must hold a processor.
func (p *compiledPattern) hiddenMatchesIn(vs *views, part string) (all []span, tooMany bool) {
	if isPlain(part) {
		return nil, false
	}
	n := 0
	vs.now.keepSpaces, vs.next.keepSpaces = true, true
	for v := range vs.each(part, true) {
		first := p.FindAllIndex(v.text, fewMatches)
		found := spans(first)
		if len(first) == fewMatches {
			var more []span
			more, tooMany = p.matchesInTurns(doNotWait, string(v.text), first[fewMatches-1][1])
			found = append(found, more...)
		}
		for _, m := range found {
			all = append(all, v.source(m.from, m.to))
		}
		if n++; n > rounds || tooMany {
			break
		}
	}
	return all, tooMany
}

// spans returns the matches that are not empty.
func spans(found [][]int) (all []span) {
	for _, m := range found {
		if m[0] < m[1] {
			all = append(all, span{m[0], m[1]})
		}
	}
	return all
}

// matchesInTurns returns the matches of matchesIn from the end of a match on, or from 0. After each chunk of the text,
// it acquires a processor again. A match may have any length, and may depend on the character
// before it, so the text cannot be cut into pieces: instead, the pattern reads the text through a reader that waits.
func (p *compiledPattern) matchesInTurns(acquire acquireFunc, text string, at int) (all []span, tooMany bool) {
	r := turnReader{acquire: acquire, text: text, done: func() {}}
	defer func() { r.done() }()
	for at <= len(text) {
		if len(all) > maxMatches || r.read > max(mostReads*len(text), mostRead) {
			return nil, true
		}
		var m []int
		before := 0 // the length of the character before at
		if at == 0 {
			r.seek(0)
			m = p.FindReaderIndex(&r)
		} else {
			_, before = utf8.DecodeLastRuneInString(text[:at])
			r.seek(at - before)
			if m = p.after().FindReaderSubmatchIndex(&r); m != nil {
				m = m[2:]
			}
		}
		if m == nil {
			return all, false
		}
		from, to := at-before+m[0], at-before+m[1]
		if from < to {
			all = append(all, span{from, to})
		}
		if to == at { // an empty match here: the next one begins later
			_, size := utf8.DecodeRuneInString(text[at:])
			to += max(size, 1)
		}
		at = to
	}
	return all, false
}

// afterCharacter returns compiledPattern.after for a pattern. Few texts are so long, or have so many matches, that it
// is needed. The error says that the groups of the pattern are nested too deeply for it.
func afterCharacter(pattern string) (func() *regexp.Regexp, error) {
	source := `\A(?s:.)(?s:.*?)(` + pattern + `)`
	if _, err := syntax.Parse(source, syntax.Perl); err != nil {
		return nil, err
	}
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(source) }), nil
}

// turnReader reads a text. After each chunk, it acquires a processor again. Its done must be called
// at the end.
type turnReader struct {
	acquire acquireFunc
	text    string
	strings.Reader
	// read is the number of bytes that were read, and left the number in this turn.
	read, left int
	done       func()
}

// seek continues at an offset of the text.
func (r *turnReader) seek(at int) { r.Reset(r.text[at:]) }

// ReadRune reads a character, for package regexp.
func (r *turnReader) ReadRune() (c rune, size int, err error) {
	if r.left <= 0 {
		r.done()
		r.left, r.done = chunk, r.acquire(chunk)
	}
	c, size, err = r.Reader.ReadRune()
	r.left -= size
	r.read += size
	return c, size, err
}
