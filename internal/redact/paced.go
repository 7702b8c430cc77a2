package redact

import (
	"context"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/text/unicode/norm"

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

// reading counts what a search reads. After each chunk of it, other namespaces may go first.
type reading struct {
	acquire acquireFunc
	// done ends the turn, and is nil between turns.
	done func()
	// read is the number of bytes that were read, and left is the number that may still be read in this turn.
	read, left int
}

// newReading returns the reading of a text. The caller must call end. Small work does not wait for a processor: the
// caller may hold one, so to wait for another could take forever.
func newReading(ctx context.Context, text string) *reading {
	if len(text) < fairgate.Large {
		return &reading{acquire: doNotWait}
	}
	return &reading{acquire: func(bytes int) func() { return fairgate.AcquireProcessor(ctx, bytes) }}
}

// add counts bytes that are read next.
func (r *reading) add(bytes int) {
	if r.left <= 0 {
		r.end()
		r.left, r.done = chunk, r.acquire(chunk)
	}
	r.left -= bytes
	r.read += bytes
}

// end ends the turn.
func (r *reading) end() {
	if r.done != nil {
		r.done()
	}
	r.left, r.done = 0, nil
}

// matchesIn returns the matches of a pattern in a text. If there are more than maxMatches, or if it takes too long to
// find all of them, tooMany is true, and all is incomplete.
func (p *compiledPattern) matchesIn(r *reading, text string) (all []span, tooMany bool) {
	at := 0
	switch {
	case len(text) > longText:
	case len(text) < fairgate.Large:
		r.add(len(text))
		first := p.FindAllStringIndex(text, fewMatches)
		for _, m := range first {
			r.read += len(text) - m[1] // at most: the pattern may have an optional end
		}
		all = spans(first)
		if len(first) < fewMatches {
			return all, false
		}
		at = first[fewMatches-1][1]
	default:
		if all, at = p.firstMatchesIn(r, text); at > len(text) {
			return all, false
		}
	}
	more, tooMany := p.matchesInTurns(r, text, at)
	return append(all, more...), tooMany
}

// firstMatchesIn returns the first matches of matchesIn, and the offset at which the search must continue, which is
// behind the text if there are no more matches. It searches for one match after the other, because each may take as
// long as to read the rest of the text.
func (p *compiledPattern) firstMatchesIn(r *reading, text string) (all []span, at int) {
	for range fewMatches {
		rest, before := text, 0 // before is the length of the character before at, on which a match may depend
		if at > 0 {
			_, before = utf8.DecodeLastRuneInString(text[:at])
			rest = text[at-before:]
		}
		r.add(len(rest))
		m := p.FindStringIndex(rest)
		if m != nil && m[0] < before { // this match begins with the character before
			r.add(len(rest))
			if m = p.after().FindStringSubmatchIndex(rest); m != nil {
				m = m[2:]
			}
		}
		if m == nil {
			return all, len(text) + 1
		}
		from, to := at-before+m[0], at-before+m[1]
		if from < to {
			all = append(all, span{from, to})
		}
		at = afterMatch(text, at, to)
		if at > len(text) {
			break
		}
	}
	return all, at
}

// afterMatch returns the offset at which the search continues after a match that ends at to. After an empty match at
// the offset itself, that is one character later.
func afterMatch(text string, at, to int) int {
	if to > at {
		return to
	}
	_, size := utf8.DecodeRuneInString(text[at:])
	return to + max(size, 1)
}

// hiddenMatchesIn is matchesIn for the views of a part of a text.
func (p *compiledPattern) hiddenMatchesIn(r *reading, vs *views, part string) (all []span, tooMany bool) {
	if isPlain(part) {
		return nil, false
	}
	n := 0
	vs.now.keepSpaces, vs.next.keepSpaces = true, true
	r.add(len(part)) // the views are made in turns, too
	if !norm.NFC.IsNormalString(part) {
		vs.now.compose(part)
		if all, tooMany = p.matchesInView(r, &vs.now); tooMany {
			return all, true
		}
	}
	for v := range vs.each(part, true) {
		var found []span
		found, tooMany = p.matchesInView(r, v)
		all = append(all, found...)
		if n++; n > rounds || tooMany {
			break
		}
	}
	return all, tooMany
}

// matchesInView is matchesIn for a view. The spans are those in the text of which the view was made.
func (p *compiledPattern) matchesInView(r *reading, v *view) (all []span, tooMany bool) {
	// A copy of each view for each pattern would need many times the memory of the text. The string is safe, because no
	// match keeps it, and the view changes only when the next one is made.
	text := unsafe.String(unsafe.SliceData(v.text), len(v.text)) //nolint:gosec // because of the reason above
	all, tooMany = p.matchesIn(r, text)
	for i, m := range all {
		all[i] = v.source(m.from, m.to)
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

// matchesInTurns returns the matches of matchesIn from the end of a match on, or from 0. A match may have any length,
// and may depend on the character before it, so the text cannot be cut into pieces: instead, the pattern reads the text
// through a reader that waits.
func (p *compiledPattern) matchesInTurns(reads *reading, text string, at int) (all []span, tooMany bool) {
	r := turnReader{reads: reads, text: text}
	most := reads.read + max(mostReads*len(text), mostRead)
	for at <= len(text) {
		if len(all) > maxMatches || reads.read > most {
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
		at = afterMatch(text, at, to)
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

// turnReader reads a text for package regexp.
type turnReader struct {
	reads *reading
	text  string
	strings.Reader
}

// seek continues at an offset of the text.
func (r *turnReader) seek(at int) { r.Reset(r.text[at:]) }

// ReadRune reads a character.
func (r *turnReader) ReadRune() (c rune, size int, err error) {
	c, size, err = r.Reader.ReadRune()
	r.reads.add(size)
	return c, size, err
}
