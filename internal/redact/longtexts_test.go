//go:build !race

package redact_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/redact"
)

// The tests of this file need much time and memory for long texts, and ten times as much with the race detector. It
// would find nothing: they use one goroutine. make test without PKG runs them without it, and so does
// go test ./internal/redact.

// TestRulesTakeLinearTime checks texts and rules that would take very long in a search with backtracking. With such a
// search, this test would not end.
func TestRulesTakeLinearTime(t *testing.T) {
	const size = 128 << 10
	patterns := []redact.PatternRule{email, card, iban}
	for i := len(patterns); i < redact.MaxPatterns; i++ {
		patterns = append(patterns, redact.PatternRule{Name: fmt.Sprint("p", i), Pattern: fmt.Sprintf(`(?:a|b|ab){5}%d`, i)})
	}
	all := rulesOf(t, patterns, "$..password", "$.*.*", "$..a..b..c")
	names := rulesOf(t, nil, "$..password", "$..a[*].*", "$..a..b..c") // $.*.* removes the rest of most of these texts
	for name, text := range map[string]string{
		"letters": strings.Repeat("ab", size/2), "digits": strings.Repeat("4111 1111 ", size/10), "brackets": strings.Repeat("[", size),
		"objects": strings.Repeat(`{"a":`, size/5), "quotes": strings.Repeat(`["`, size/2),
		"strings": "[" + strings.Repeat(`"a@b",`, size/6),
		"list":    "[" + strings.Repeat(`{"password":"x","b":"ab"},`, size/26) + "1]", "escapes": strings.Repeat(`\\`, size/2),
		"marks": strings.Repeat("a"+strings.Repeat("\u0301", 40), size/81), "invisible": strings.Repeat("a\u200b", size/4),
		"broken":  strings.Repeat(`{"a":x`, size/6),
		"matches": strings.Repeat("a@b.cd ", size/7),
		"escaped": strings.Repeat(`{\"a\":`, size/7), "no escapes": strings.Repeat(`{\x`, size/3),
		"escapes and quotes": strings.Repeat(`[\n {"`, size/6), "escapes before a list": `[\n` + strings.Repeat("[", size) + `"`,
		"escaped strings": strings.Repeat(`{"a":\"{`, size/8), "apostrophes": "{" + strings.Repeat("'", size),
		"words": "{" + strings.Repeat("a ", size/2), "quoted words": "{" + strings.Repeat("'a ", size/3),
		"ends":       strings.Repeat("[", 500) + strings.Repeat("}", size),
		"mixed ends": strings.Repeat("[{]}", size/4), "escaped lines": "{" + strings.Repeat(`\n`, size/2),
		"colons":  "[" + strings.Repeat(":", size),
		"no ends": strings.Repeat("[{", size/2), "backslashes": "{" + strings.Repeat(`\`, size),
		"comments": "{" + strings.Repeat("//\npassword:1", size/13), "open comments": strings.Repeat(`{"password":[1,/*`, size/16),
		"marks of comments":      `{x "password": a` + strings.Repeat(",#", size/2),
		"backslashes of a value": `{x "password": a` + strings.Repeat(`\`, size),
		"values":                 "{x " + strings.Repeat(`"password": a`+strings.Repeat(",#", 200)+"\n", size/414),
		"comments in comments":   `{x "password": a` + strings.Repeat("#,\n", size/3),
		"short comments":         "{" + strings.Repeat("#\n", size/2),
		"escaped short comments": "{" + strings.Repeat(`#\n`, size/3),
		"names after comments":   "{x " + strings.Repeat(",/*\npassword:", size/14),
		"names after slashes":    "{x " + strings.Repeat("/password:", size/10),
		"broken lists":           strings.Repeat(`{"a":[x],`, size/9),
		"escaped objects":        strings.Repeat(`{\"password\":1}`, size/16),
		"escaped names":          "{x " + strings.Repeat(`"\u0070assword":1,`, size/18),
		"halves of characters":   "{x " + strings.Repeat(`\ud83d`, size/6),
		"backslashes of names":   `{x \u0070` + strings.Repeat(`\`, size),
		"in strings":             strings.Repeat(`{"b":"{\"password\":1}"}`, size/24),
	} {
		for _, r := range []*redact.Rules{all, names} {
			if got := r.Redact(t.Context(), text, nil); len(got) > 20*len(text) {
				t.Errorf("%s: a text of %d bytes has %d bytes after redaction, want at most 20 times as many", name, len(text), len(got))
			}
		}
	}
}

// TestRulesWithOptionalEndsTakeLinearTime checks a pattern that reads the rest of the text for each match. With a
// search that takes quadratic time, this test would take hours. Such a text with many matches is removed as a whole.
func TestRulesWithOptionalEndsTakeLinearTime(t *testing.T) {
	const key = "-----BEGIN PRIVATE KEY-----"
	rules := rulesOf(t, []redact.PatternRule{
		{Name: "x", Pattern: `q(?s:.*#)?`}, {Name: "key", Pattern: key + `(?s:.*?-----END PRIVATE KEY-----)?`},
	})
	for name, tc := range map[string]struct{ text, want string }{
		"a long text":        {strings.Repeat("q", 1<<17), "[redacted:x]"},
		"a longer text":      {strings.Repeat("q", 1<<20+1), "[redacted:x]"},
		"accents":            {strings.Repeat("qe\u0301", 1<<15), "[redacted:x]"},
		"full-width letters": {strings.Repeat("\uff51", 1<<15), "[redacted:x]"},
		"a string":           {`["` + strings.Repeat("q", 1<<17) + `", 1]`, `["[redacted:x]", 1]`},
		"keys":               {strings.Repeat(key+"\nM", 1<<12), "[redacted:key]"},
		"few keys":           {strings.Repeat(key+"\nM\n", 15), strings.Repeat("[redacted:key]\nM\n", 15)},
		"a short text":       {strings.Repeat("q ", 50), strings.Repeat("[redacted:x] ", 50)},
		"an end":             {strings.Repeat("q", 1<<17) + "#", "[redacted:x]"},
	} {
		if got := rules.Redact(t.Context(), tc.text, nil); got != tc.want {
			t.Errorf("%s: %.60q (%d bytes), want %.60q", name, got, len(got), tc.want)
		}
	}
}

// TestEscapesTakeLittleMemory checks that a text needs only a few times its own length in memory, however it is
// escaped, because the memory budget counts only its length.
func TestEscapesTakeLittleMemory(t *testing.T) {
	const size, most = 4 << 20, 5
	r, err := redact.NewRules("redaction", nil, []string{"$..password"})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"plain":            "{" + strings.Repeat("x", size),
		"one level":        `{\"a\":\"` + strings.Repeat("x", size),
		"three levels":     `{\"a {\\\"a {\\\\\\\"a` + strings.Repeat("x", size),
		"only escapes":     `{\"` + strings.Repeat(`\n`, size/2),
		"many backslashes": `{\"` + strings.Repeat(`\`, size),
		"many objects":     strings.Repeat(`{\"a\":1}`, size/9), "many values": strings.Repeat("[] ", size/3),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = r.Redact(t.Context(), text, nil) // only the memory counts
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > most*size {
			t.Errorf("%s: a text of %d bytes allocates %d bytes, %.1f times as many; want at most %d times", name, len(text), used,
				float64(used)/size, most)
		}
	}
}

// TestPatternsTakeLittleMemory checks that patterns search the views of a text without a copy for each pattern.
func TestPatternsTakeLittleMemory(t *testing.T) {
	const size, most, patterns = 1 << 20, 8, 16
	var rules []redact.PatternRule
	for i := range patterns {
		rules = append(rules, redact.PatternRule{Name: fmt.Sprint("rule", i), Pattern: fmt.Sprintf("INV-%d[0-9]+", i)})
	}
	r, err := redact.NewRules("redaction", rules, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("\uff51"+strings.Repeat("x", 1000), size/1003)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_ = r.Redact(t.Context(), text, nil) // only the memory counts
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > most*size {
		t.Errorf("%d patterns allocate %.1f times the bytes of the text; want at most %d times", patterns, float64(used)/size, most)
	}
}

// TestSearchTakesLittleMemory checks that the search for credentials needs only a few times the memory of the text,
// however long the credentials are, because the memory budget counts only the text. U+FDFA is folded to ten times its
// length.
func TestSearchTakesLittleMemory(t *testing.T) {
	const size, most = 4 << 20, 8
	const key = "sk-0123456789-very-secret"
	r := redact.New(credentialOf(longest), key)
	for name, text := range map[string]string{
		"ASCII":            strings.Repeat("x", size),
		"an escape":        `\n` + strings.Repeat("x", size),
		"decomposed":       strings.Repeat("\ufdfa", size/3),
		"escaped":          strings.Repeat(`\ufdfa`, size/6),
		"many escapes":     strings.Repeat(`\\u005cu0041`, size/12),
		"many credentials": strings.Repeat(key+" ", size/26),
	} {
		for _, text := range []string{text, key + text} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_ = r.Redact(text) // only the memory counts
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > most*size {
				t.Errorf("%s: a text of %d bytes allocates %d bytes, %.1f times as many; want at most %d times", name, len(text), used,
					float64(used)/size, most)
			}
		}
	}
}
