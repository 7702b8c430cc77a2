package redact

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/fairgate/fairgatetest"
	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

// compiledRule returns a compiled pattern.
func compiledRule(t *testing.T, text string) *compiledPattern {
	t.Helper()
	p, err := pattern.Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	after, err := afterCharacter(text)
	if err != nil {
		t.Fatal(err)
	}
	return &compiledPattern{Pattern: p, after: after}
}

// TestMatchesInTurns checks that a search in turns finds the same matches as the search of the whole text, also if a
// match depends on the characters around it, is long, or is empty.
func TestMatchesInTurns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "b", "ab", " ", "\n", "é", "\xff", "aaa", "#"}
	for _, source := range []string{
		"a", "ab", "a+", "a+?", `\ba`, `a\b`, `\b`, `\Ba`, "^a", "a$", "(?m)^a", "(?m)a$", `(?m)$`, "a(.*#)?", "(?s)a.*?b", "(?s)a.*b",
		"(?i)A|b+", "[^a]+", "é", "^.", "(a)(b)?", `\Aab|b`, "(?:^|[^b])a", `\xff|b`,
	} {
		p := compiledRule(t, source)
		for range 300 {
			var b strings.Builder
			for range random.IntN(60) {
				b.WriteString(pieces[random.IntN(len(pieces))])
			}
			text := b.String()
			want := spans(p.FindAllStringIndex(text, -1))
			r := newReading(t.Context(), text)
			inTurns, _ := p.matchesInTurns(r, text, 0)
			both, _ := p.matchesIn(r, text)
			oneByOne, at := p.firstMatchesIn(r, text)
			rest, _ := p.matchesInTurns(r, text, at)
			for how, got := range map[string][]span{
				"in turns": inTurns, "in turns after a few matches": both, "in turns after a few in turns": append(oneByOne, rest...),
			} {
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(span{})); diff != "" {
					t.Fatalf("%q in %q: -whole +%s:\n%s", source, text, how, diff)
				}
			}
		}
	}
	long := "a" + strings.Repeat("x", 3<<20) + "b"
	if got, _ := compiledRule(t, "ax+b").matchesIn(newReading(t.Context(), long), long+"ab"+long); len(got) != 2 || got[0].to != len(long) {
		t.Errorf("matches at %v, want two of %d bytes each", got, len(long))
	}
}

// TestMatchesInJSONNeedOneProcessor checks that a text of JSON that holds a processor does not wait for another one
// when it finds many matches in a short string, and that a short text does not wait at all.
func TestMatchesInJSONNeedOneProcessor(t *testing.T) {
	rules, err := NewRules("redaction", []PatternRule{{Name: "x", Pattern: `q`}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	short, long := strings.Repeat("q ", 2*fewMatches), strings.Repeat("x", fairgate.Large)
	for text, want := range map[string]bool{
		`{"a":"` + short + `","b":"` + long + `"}`:               true,
		`"` + short + `{\"a\":\"` + long + `\"}"`:                true,
		`{"a":"{\"a\":\"` + short + `\"}","b":"` + long + `"}`:   true,
		`{"a":{\"b\":\"` + short + `\",\"c\":\"` + long + `\"}}`: true,
		short:                   false,
		`{"a":"` + short + `"}`: false,
	} {
		if got := fairgatetest.Waits(t, func(ctx context.Context) { rules.Redact(ctx, text, nil) }); got != want {
			t.Errorf("%.20s... (%d bytes) waits: %t, want %t", text, len(text), got, want)
		}
	}
}

// TestLongSearchLetsOthersGoFirst checks that another namespace gets the only processor many times while one pattern is
// searched for in a long text.
func TestLongSearchLetsOthersGoFirst(t *testing.T) {
	p := compiledRule(t, "x[0-9]{9}")
	text := strings.Repeat("x", 2<<20)
	synctest.Test(t, func(t *testing.T) {
		processors := fairgate.NewProcessors(1)
		other := processors.With(t.Context(), "other")
		done := fairgate.AcquireProcessor(other, fairgate.Large)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			reads := newReading(processors.With(t.Context(), "own"), text)
			defer reads.end()
			p.matchesIn(reads, text)
		}()
		synctest.Wait()
		turns := 0
		for isOver := false; !isOver; {
			done()
			done = fairgate.AcquireProcessor(other, fairgate.Large)
			turns++
			select {
			case <-ended:
				isOver = true
			default:
			}
		}
		done()
		if turns < 10 {
			t.Errorf("the other namespace had %d turns during the search, want more", turns)
		}
	})
}

// TestOptionalEndsAreReadInTurns checks that a pattern that reads the rest of a text for each match has a turn at the
// processors for about each chunk that it reads, and not only for each text.
func TestOptionalEndsAreReadInTurns(t *testing.T) {
	p := compiledRule(t, "q(?s:.*#)?")
	const few = fewMatches - 1
	rest := strings.Repeat("x", 60<<10)
	for name, search := range map[string]func(r *reading){
		"a text":    func(r *reading) { p.matchesIn(r, strings.Repeat("q", few)+rest) },
		"the views": func(r *reading) { p.hiddenMatchesIn(r, &views{}, strings.Repeat("\uff51", few)+rest) },
	} {
		turns, open := 0, 0
		r := &reading{acquire: func(int) func() {
			turns++
			open++
			return func() { open-- }
		}}
		search(r)
		r.end()
		if turns < few/2 || open != 0 {
			t.Errorf("%s: the search has %d turns, of which %d do not end; want at least %d, and that all end", name, turns, open, few/2)
		}
	}
	rules, err := NewRules("redaction", []PatternRule{{Name: "x", Pattern: "q(?s:.*#)?"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("q", few) + rest[:longString/2]
	s := jsonScan{ctx: t.Context(), rules: rules, all: rules, text: text, found: Matches{}, sum: &replacements{}, done: func() {}}
	s.removeMatches(rules, text)
	if s.at-s.turnStart < chunk {
		t.Errorf("after a string of %d bytes that is read %d times, the turn has %d bytes, want at least %d", len(text), few,
			s.at-s.turnStart, chunk)
	}
}
