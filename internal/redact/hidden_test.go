package redact_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/redact"
)

// between inserts a text between all characters of another text.
func between(s, what string) string { return strings.Join(strings.Split(s, ""), what) }

// shifted moves the characters of a text to another range of Unicode.
func shifted(s string, by rune) string {
	return strings.Map(func(r rune) rune { return r + by }, s)
}

// TestHiddenCharacters checks secrets with characters that a reader does not see, but that a plain search does.
func TestHiddenCharacters(t *testing.T) {
	hidden := map[string]string{
		"space of no width": "\u200b", "joiner": "\u200d", "no-break space of no width": "\ufeff",
		"word joiner": "\u2060", "soft hyphen": "\u00ad",
		"grapheme joiner": "\u034f", "variation selector": "\ufe0f", "variation selector 17": "\U000e0100",
		"tag": "\U000e0041", "mark of direction": "\u202e",
		"isolate": "\u2068", "Hangul filler": "\u3164", "Mongolian vowel separator": "\u180e",
		"invisible times": "\u2062", "musical": "\U0001d173",
		"annotation": "\ufff9", "NUL": "\x00", "escape": "\x1b", "delete": "\x7f", "control of Latin-1": "\u0085\u009c", "accent": "\u0301",
		"overlay": "\u0336", "enclosing": "\u20e0", "many": strings.Repeat("\u200b\ufe0f\U000e0041", 4), "with a space": "\u200b \u200b",
	}
	writings := map[string]func(string) string{
		"as it is":         func(s string) string { return s },
		"JSON":             utf16s,
		"URL":              func(s string) string { return octets(s, "%%%02X") },
		"bytes of Python":  func(s string) string { return octets(s, `\x%02x`) },
		"HTML":             func(s string) string { return unicodes(s, "&#%d;") },
		"base64":           func(s string) string { return between(base64.StdEncoding.EncodeToString([]byte(secret)), s) },
		"hexadecimal":      func(s string) string { return between(hex.EncodeToString([]byte(secret)), s) },
		"hexadecimal, big": func(s string) string { return between(strings.ToUpper(hex.EncodeToString([]byte(secret))), s) },
	}
	r := redact.New(secret)
	for name, what := range hidden {
		for kind, write := range writings {
			text := write(between(secret, what))
			if kind == "base64" || strings.HasPrefix(kind, "hexadecimal") {
				text = write(what)
			}
			if kind == "HTML" && strings.ContainsAny(what, "\x00\u0085") {
				continue // HTML maps the numbers of these characters to visible characters
			}
			// Text before and after the secret shares its first and last base64 digits.
			if got := r.Redact("<" + text + ">"); letters(got) != "redacted" && letters(got) != "redactedA" {
				t.Errorf("%s, %s: %q is left", name, kind, got)
			}
			if line := r.Line(text, 10_000); letters(line) != "redacted" && letters(line) != "redactedA" {
				t.Errorf("%s, %s, in a message: %q is left", name, kind, line)
			}
		}
	}
}

// letters returns the ASCII letters and digits of a text.
func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, s)
}

// utf16s writes each UTF-16 unit of a text as a number, as JSON may do.
func utf16s(s string) string {
	var out strings.Builder
	for _, r := range s {
		if r > 0xffff {
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			continue
		}
		fmt.Fprintf(&out, `\u%04x`, r)
	}
	return out.String()
}

// octets writes each byte of a text as a number.
func octets(s, format string) string {
	var out strings.Builder
	for _, b := range []byte(s) {
		fmt.Fprintf(&out, format, b)
	}
	return out.String()
}

// TestFoldedCharacters checks secrets with characters that a model reads as the characters of the secret.
func TestFoldedCharacters(t *testing.T) {
	r := redact.New(secret)
	for name, tc := range map[string]struct{ text, want string }{
		"full width":         {shifted(secret, 0xff01-'!'), "[redacted]"},
		"capitals":           {strings.ToUpper(secret), "[redacted]"},
		"hexadecimal":        {hex.EncodeToString([]byte(secret)), "[redacted]"},
		"names of entities":  {between(secret, "&ZeroWidthSpace;"), "[redacted]"},
		"in a text":          {"日本語 é " + between(secret, "\u200b") + " café", "日本語 é [redacted] café"},
		"no credential":      {"a\u200bb é\u0301 \U000e0041", "a\u200bb é\u0301 \U000e0041"},
		"invisible at first": {"\u200b" + secret + "x", "\u200b[redacted]x"},
	} {
		if got := r.Redact(tc.text); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	short := redact.New("pass")
	for text, want := range map[string]string{"p\u200bass": "[redacted]", "p ass": "p ass", "p\u200b ass": "p\u200b ass", "Pass": "Pass"} {
		if got := short.Redact(text); got != want {
			t.Errorf("a short secret: %q of %q, want %q", got, text, want)
		}
	}
}

// TestHiddenAcrossChunks checks a secret with more invisible characters than a chunk has bytes.
func TestHiddenAcrossChunks(t *testing.T) {
	r := redact.New(secret)
	for _, gap := range []int{100, 5_000, 50_000} {
		for before := range 3 {
			text := strings.Repeat("x", before*40_000) + between(secret, strings.Repeat("\u200b", gap)) + "y"
			if got, want := r.Redact(text), strings.Repeat("x", before*40_000)+"[redacted]y"; got != want {
				t.Errorf("%d characters between, %d before: %d bytes are left, want %d", gap, before*40_000, len(got), len(want))
			}
		}
	}
}

// TestTimeIsLinear checks texts and secrets that would take very long in a search that starts again at each position.
// With such a search, this test would not end.
func TestTimeIsLinear(t *testing.T) {
	const size = 1 << 20
	var alike []string
	for i := range 20 {
		alike = append(alike, fmt.Sprintf("%s%04d%s", strings.Repeat("a", 2000), i, strings.Repeat("a", 2000)))
	}
	for name, text := range map[string]string{
		"a letter": strings.Repeat("a", size), "a digit at times": strings.Repeat(strings.Repeat("a", 2000)+"0", size/2001),
		"escapes": strings.Repeat(`\\`, size/2), "percent": strings.Repeat("%25",
			size/3), "ampersands": strings.Repeat("&amp;", size/5), "entities": strings.Repeat("&a;", size/3),
		"invisible": strings.Repeat("\u200b", size/3), "surrogates": strings.Repeat(`\ud83d`, size/6),
		"octets": strings.Repeat("%e2", size/3), "marks": strings.Repeat("e\u0301", size/3),
		"almost": strings.Repeat(alike[0][:len(alike[0])*3/4-1], size/3000),
	} {
		if got := redact.New(alike...).Redact(text); len(got) > 2*len(text) {
			t.Errorf("%s: a text of %d bytes has %d bytes after redaction, want at most twice as many", name, len(text), len(got))
		}
	}
}

// FuzzWhole hides a secret in arbitrary texts.
func FuzzWhole(f *testing.F) {
	f.Add("before", "after", "\u200b", uint64(1))
	f.Add(`{"a":"\u00`, `"}`, "%E2%80%8B", uint64(2))
	f.Add("&#", "&amp;", "\U000e0041\u0301", uint64(3))
	f.Add("\xe2\x80", "\x8b", "\xff", uint64(4))
	r := redact.New(secret)
	f.Fuzz(func(t *testing.T, before, after, gap string, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		visible := strings.Map(func(c rune) rune {
			if c == 0x200b || c == 0xfe0f || c == 0xad {
				return c
			}
			return -1
		}, gap)
		var hidden strings.Builder
		for _, c := range secret {
			hidden.WriteRune(c)
			if random.IntN(2) == 0 {
				hidden.WriteString(visible)
			}
		}
		text := before + " " + hidden.String() + " " + after
		got := r.Redact(text)
		if strings.Contains(got, hidden.String()) {
			t.Errorf("%q contains the secret; the text was %q", got, text)
		}
		if utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Errorf("%q is not UTF-8; the text was %q", got, text)
		}
		_ = r.Line(text, 300) // must not panic
	})
}
