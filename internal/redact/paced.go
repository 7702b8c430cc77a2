package redact

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// longText is the length from which a text is searched in chunks, in bytes. Before each chunk, other namespaces may go
// first. Such a search takes longer, because it cannot skip to the first letters of a pattern. The search of a shorter
// text takes at most about half a second.
const longText = 1 << 20

// matchesInTurns returns the matches that matchesIn returns, but after each chunk of the text, it waits until the
// namespace of ctx is next again. A match may have any length, and may depend on the character before it, so the text
// cannot be cut into pieces: instead, the pattern reads the text through a reader that waits.
func (p *compiledPattern) matchesInTurns(ctx context.Context, text string, after *regexp.Regexp) (all []span) {
	r := turnReader{ctx: ctx, text: text, done: func() {}}
	defer func() { r.done() }()
	for at := 0; at <= len(text) && len(all) <= maxMatches; {
		var m []int
		before := 0 // the length of the character before at
		if at == 0 {
			r.seek(0)
			m = p.FindReaderIndex(&r)
		} else {
			_, before = utf8.DecodeLastRuneInString(text[:at])
			r.seek(at - before)
			if m = after.FindReaderSubmatchIndex(&r); m != nil {
				m = m[2:]
			}
		}
		if m == nil {
			return all
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
	return all
}

// afterCharacter returns compiledPattern.after for a pattern. Few texts are so long that it is needed.
func afterCharacter(pattern string) func() (*regexp.Regexp, error) {
	return sync.OnceValues(func() (*regexp.Regexp, error) { return regexp.Compile(`\A(?s:.)(?s:.*?)(` + pattern + `)`) })
}

// turnReader reads a text. After each chunk, it waits until the namespace of ctx is next again. Its done must be called
// at the end.
type turnReader struct {
	ctx  context.Context //nolint:containedctx // because the reader is a part of one call
	text string
	strings.Reader
	left int // in this turn
	done func()
}

// seek continues at an offset of the text.
func (r *turnReader) seek(at int) { r.Reset(r.text[at:]) }

// ReadRune reads a character, for package regexp.
func (r *turnReader) ReadRune() (c rune, size int, err error) {
	if r.left <= 0 {
		r.done()
		r.left, r.done = chunk, fairgate.AcquireProcessor(r.ctx, chunk)
	}
	c, size, err = r.Reader.ReadRune()
	r.left -= size
	return c, size, err
}
