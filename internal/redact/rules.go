package redact

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/cut"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

// The bounds of rules. A search takes time in proportion to the text and to the size of all patterns, so the sizes are
// bounded, too.
const (
	// MaxPatterns is the maximum number of patterns. The schema of the API has the same bound.
	MaxPatterns = 32
	// MaxPatternSize bounds the size of one pattern, in characters after the expansion of repetitions.
	MaxPatternSize = 100
	// MaxPatternsSize bounds the size of all patterns together.
	MaxPatternsSize = 1000
	// MaxPatternsMemory bounds the memory of all compiled patterns together, in bytes. The search of texts with many
	// matches, or of more than 1 MiB, doubles it.
	MaxPatternsMemory = 512 << 10
)

const (
	// ruleReach is the length of the text before and after a chunk that is searched together with the chunk, in bytes.
	// A longer match is found only if it has no escapes and no invisible characters.
	ruleReach = 4 << 10
	// maxMatches bounds the matches of one pattern in one text or in one string of JSON, and all replacements in a
	// text. With more of them, the whole text or string is replaced. A replacement takes up to 64 bytes, so without
	// this bound a text of commas and numbers would become many times as long.
	maxMatches = 100_000
	// rounds is the number of rounds of escapes that are removed to find matches.
	rounds = 3
)

// PatternRule is a pattern for texts that must not be kept.
type PatternRule struct {
	// Name identifies the rule in counts.
	Name string
	// Pattern is an RE2 expression.
	Pattern string
	// Replacement replaces each match. If it is empty, it is [redacted:NAME].
	Replacement string
}

// Rules remove texts that an Agent must not keep: matches of patterns, and values of JSON. A nil *Rules removes
// nothing. Rules are safe for concurrent use.
type Rules struct {
	patterns []compiledPattern
	paths    []jsonPath
	names    *memberNames
}

type compiledPattern struct {
	*pattern.Pattern
	// after returns an expression whose first group is the first match after the first character of a text.
	after             func() *regexp.Regexp
	name, replacement string
}

// Matches counts the matches of rules: by the name of the pattern, or by the JSON path.
type Matches map[string]int64

// add adds the numbers of other matches.
func (m Matches) add(other Matches) {
	for name, n := range other {
		m[name] += n
	}
}

// NewRules compiles rules. The error is an *invalid.Error, whose field begins with the given field.
func NewRules(field string, patterns []PatternRule, paths []string) (*Rules, error) {
	r := &Rules{}
	size, memory := 0, 0
	for i, p := range patterns {
		at := fmt.Sprintf("%s.patterns[%d].pattern", field, i)
		compiled, err := pattern.Compile(p.Pattern)
		if err != nil {
			return nil, invalid.Field(at, "must be an RE2 expression that can be used: %s", err)
		}
		if compiled.Size > MaxPatternSize {
			return nil, invalid.Field(at, "must have at most %d characters after its repetitions are expanded, and it has %d: "+
				"write fewer or smaller repetitions", MaxPatternSize, compiled.Size)
		}
		if compiled.MatchString("") {
			return nil, invalid.Field(at, "must not match an empty text: write + in place of *")
		}
		size += compiled.Size
		if memory += compiled.Memory; memory > MaxPatternsMemory {
			return nil, invalid.Field(field+".patterns", `must take at most %d KiB of memory together: write fewer classes such as \p{L}`,
				MaxPatternsMemory>>10)
		}
		replacement := p.Replacement
		if replacement == "" {
			replacement = "[redacted:" + p.Name + "]"
		}
		after, err := afterCharacter(p.Pattern)
		if err != nil {
			return nil, invalid.Field(at, "must be an RE2 expression with fewer groups within groups: %s", err)
		}
		r.patterns = append(r.patterns, compiledPattern{compiled, after, p.Name, replacement})
	}
	if size > MaxPatternsSize {
		return nil, invalid.Field(field+".patterns", "must have at most %d characters together after their repetitions are expanded, "+
			"and they have %d: remove patterns, or write smaller repetitions", MaxPatternsSize, size)
	}
	for i, text := range paths {
		p, err := parsePath(text)
		if err != nil {
			return nil, invalid.Field(fmt.Sprintf("%s.jsonPaths[%d]", field, i), "%s", err)
		}
		r.paths = append(r.paths, p)
	}
	r.names = newMemberNames(r.paths)
	return r, r.checkReplacements(field)
}

// checkReplacements checks that no pattern matches a replacement. Otherwise a text would change again each time that it
// is redacted, and a model that repeats it would repeat another text.
func (r *Rules) checkReplacements(field string) error {
	for i, p := range r.patterns {
		if len(r.paths) > 0 && p.MatchString(redacted) {
			return invalid.Field(fmt.Sprintf("%s.patterns[%d].pattern", field, i), "must not match %s, which replaces values of jsonPaths",
				redacted)
		}
		for j := range r.patterns {
			if p.MatchString(r.patterns[j].replacement) {
				return invalid.Field(fmt.Sprintf("%s.patterns[%d].pattern", field, i), "must not match %s, the replacement of pattern %q: "+
					"set another replacement", r.patterns[j].replacement, r.patterns[j].name)
			}
		}
	}
	return nil
}

// Redact returns a text without the matches of the rules, and adds their number to found, which may be nil.
//
//   - A pattern is searched for in four forms of the text: the text itself; the text with composed letters (NFC); the
//     text without invisible characters, in which full-width, styled and accented letters are replaced by plain ones;
//     and the text after escapes of JSON, URLs and HTML are decoded.
//   - In a JSON object or list, also within other text, a pattern is searched for in each name, string and number by
//     itself, so the JSON stays valid. A number with a match becomes a string. A text that is a JSON string counts as a
//     string within JSON.
//   - If matches overlap, one replacement takes their place: that of the match that begins first. If several matches
//     begin at the same position, the first rule counts.
//
// Before each piece of work on a large text, Redact waits until the namespace of ctx is next: see fairgate.
func (r *Rules) Redact(ctx context.Context, text string, found Matches) string {
	if r == nil || text == "" || len(r.patterns)+len(r.paths) == 0 {
		return text
	}
	if found == nil {
		found = Matches{}
	}
	var sum replacements
	clean := r.redact(ctx, text, found, &sum)
	switch {
	case !sum.tooMany():
		return clean
	case strings.IndexAny(strings.TrimSpace(text), "\"{[") == 0: // JSON stays JSON
		return `"` + redacted + `"`
	}
	return redacted
}

// replacements counts the replacements in a text.
type replacements struct {
	n int
	// more is the number of bytes that the searches for patterns have read beyond the length of the text.
	more int
}

func (c *replacements) add(n int) { c.n += n }

// tooMany reports whether the whole text must be replaced. The work on the text may then stop.
func (c *replacements) tooMany() bool { return c.n > maxMatches }

// redact is Redact for a text that is not empty. The result is not defined if there are too many replacements.
func (r *Rules) redact(ctx context.Context, text string, found Matches, sum *replacements) string {
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, `"`) {
		var content string
		if json.Unmarshal([]byte(trimmed), &content) == nil {
			s := jsonScan{ctx: ctx, rules: r, all: r, text: content, found: found, sum: sum}
			s.resume()
			clean := s.removeMatches(r, s.inside(content))
			s.done()
			if clean != content {
				return strings.Replace(text, trimmed, encodeString(clean), 1)
			}
			return text
		}
	}
	var edits []edit
	var values []span
	if strings.ContainsAny(text, "{[") {
		s := jsonScan{ctx: ctx, rules: r, all: r, text: text, found: found, sum: sum}
		edits, values = s.run()
		if len(values) == 1 && strings.TrimSpace(text[:values[0].from]) == "" && strings.TrimSpace(text[values[0].to:]) == "" {
			return applyEdits(text, edits) // the whole text is JSON
		}
	}
	var around replacements // with those in JSON, which are counted
	for _, m := range r.search(ctx, text, &around) {
		if v := spanAt(values, m.from); v != nil && m.to <= v.to {
			continue
		}
		edits = append(edits, edit{m.span, r.patterns[m.rule].replacement})
		found[r.patterns[m.rule].name]++
		sum.add(1)
	}
	if around.tooMany() {
		sum.add(around.n)
	}
	return applyEdits(text, edits)
}

// match is a match of a rule.
type match struct {
	span
	rule int
}

// search returns the matches of the patterns in a text that is searched as a whole, and counts them. The matches of one
// pattern do not overlap. search stops when there are too many replacements.
func (r *Rules) search(ctx context.Context, text string, sum *replacements) []match {
	if len(r.patterns) == 0 {
		return nil
	}
	var all []match
	var vs *views
	isTextPlain := isPlain(text)
	if !isTextPlain { // most texts of JSON are short and plain
		vs = &views{}
	}
	reads := newReading(ctx, text)
	defer reads.end()
	for i := range r.patterns {
		p := &r.patterns[i]
		begin := reads.read
		found, tooMany := p.matchesIn(reads, text)
		for start := 0; !isTextPlain && start < len(text) && !tooMany; {
			next := cut.Boundary(text, start+chunk)
			from, to := cut.Boundary(text, max(0, start-ruleReach)), cut.Boundary(text, next+ruleReach)
			var hidden []span
			hidden, tooMany = p.hiddenMatchesIn(reads, vs, text[from:to])
			for _, s := range hidden {
				found = append(found, span{from + s.from, from + s.to})
			}
			tooMany = tooMany || len(found) > maxMatches
			start = next
		}
		if tooMany {
			found = []span{{0, len(text)}}
		}
		sum.more += max(0, reads.read-begin-len(text))
		found = merged(found)
		if sum.add(len(found)); sum.tooMany() {
			return all
		}
		for _, s := range found {
			all = append(all, match{s, i})
		}
	}
	return all
}

// isPlain reports whether a text looks the same in all views: it is ASCII without escapes and without invisible
// characters.
func isPlain(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case c >= utf8.RuneSelf, c == '\\', c == '%', c == '&', c == delete7, c < ' ' && c != '\t' && c != '\n' && c != '\r':
			return false
		}
	}
	return true
}

// merged returns spans in order, and joins overlapping spans.
func merged(all []span) []span {
	slices.SortFunc(all, func(a, b span) int { return a.from - b.from })
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && s.from < out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}

// bounds returns the part itself, also for types that embed it.
func (s span) bounds() span { return s }

// spanAt returns the part that contains an offset, or nil. The parts must be in order, and must not overlap.
func spanAt[T interface{ bounds() span }](all []T, offset int) *T {
	i, _ := slices.BinarySearchFunc(all, offset, func(v T, at int) int { return v.bounds().to - at - 1 })
	if i == len(all) || all[i].bounds().from > offset {
		return nil
	}
	return &all[i]
}

// ordered returns edits in the order of their positions. Of overlapping edits, the first edit replaces the text of all.
func ordered(edits []edit) []edit {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.from - b.from })
	out := edits[:0]
	for _, e := range edits {
		if n := len(out); n > 0 && e.from < out[n-1].to {
			out[n-1].to = max(out[n-1].to, e.to)
			continue
		}
		out = append(out, e)
	}
	return out
}

// edit replaces a part of a text.
type edit struct {
	span
	with string
}

// applyEdits applies edits, in any order. Of overlapping edits, the first edit replaces the text of all.
func applyEdits(text string, edits []edit) string {
	if len(edits) == 0 {
		return text
	}
	var out strings.Builder
	end := 0
	for _, e := range ordered(edits) {
		out.WriteString(text[end:e.from])
		out.WriteString(e.with)
		end = e.to
	}
	out.WriteString(text[end:])
	return out.String()
}
