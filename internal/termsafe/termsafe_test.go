package termsafe_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

func TestSafe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, text, want string }{
		"plain":      {"visible characters, line feeds and tabs stay", "a\tb\nc ü €", "a\tb\nc ü €"},
		"escape":     {"an escape sequence could hide or overwrite text", "\x1b[2Jx", `\u001b[2Jx`},
		"one byte":   {"an 8-bit escape sequence is not valid UTF-8", "\x9b2Jx", "\uFFFD2Jx"},
		"C1":         {"C1 control characters also begin escape sequences", "\u009b2J", `\u009b2J`},
		"return":     {"a carriage return would hide the text before it", "rm -rf /\recho hi", `rm -rf /\u000decho hi`},
		"direction":  {"text must not be read backwards", "a\u202eb\u2066c", `a\u202eb\u2066c`},
		"separators": {"some terminals break lines at a separator", "a\u2028b", `a\u2028b`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := termsafe.Safe(tc.text); got != tc.want {
				t.Errorf("%s: Safe(%q) is %q, want %q", tc.reason, tc.text, got, tc.want)
			}
		})
	}
}

func TestStrip(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, text, want string }{
		"plain":      {"visible characters, line feeds and tabs stay", "a\tb\nc ü € 👍", "a\tb\nc ü € 👍"},
		"escape":     {"an escape sequence could hide or overwrite text", "\x1b[2Jx\u009b1m\r", "[2Jx1m"},
		"direction":  {"text must not be read backwards", "a\u202eb\u2066c\u2069", "abc"},
		"separators": {"some terminals break lines at a separator", "a\u2028b", "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := termsafe.Strip(tc.text); got != tc.want {
				t.Errorf("%s: Strip(%q) is %q, want %q", tc.reason, tc.text, got, tc.want)
			}
		})
	}
}

func TestExact(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, text, want string }{
		"plain":     {"visible characters stay", "a\tb\nc ü € 日本 👍", "a\tb\nc ü € 日本 👍"},
		"no width":  {"two names must not look alike", "pay\u200bpal \ufeffx", `pay\u200bpal \ufeffx`},
		"direction": {"two names must not be shown alike in another direction", "a\u200eb\u202e", `a\u200eb\u202e`},
		"spaces":    {"other spaces look like the plain one", "a\u00a0b\u3000c\u3164", `a\u00a0b\u3000c\u3164`},
		"tags":      {"sentences can be hidden in tag characters", "a\U000e0049\U000e0067", `a\U000e0049\U000e0067`},
		"escape":    {"Exact escapes all characters that Safe escapes", "\x1b[2J\x9b", `\u001b[2J` + "\uFFFD"},
		"variants":  {"sentences can be hidden in variation selectors", "a\ufe01\U000e0101", `a\ufe01\U000e0101`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := termsafe.Exact(tc.text); got != tc.want {
				t.Errorf("%s: Exact(%q) is %q, want %q", tc.reason, tc.text, got, tc.want)
			}
		})
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, text string
		most         int
		want         string
	}{
		"short":   {"a short line stays", "a b", 10, "a b"},
		"lines":   {"lines are joined", " a\n\n b\tc ", 10, "a b c"},
		"hostile": {"characters that are not printable are removed", "a\x1b[31m\u202eb", 10, "a[31mb"},
		"long":    {"an ellipsis replaces the end", "äbcdef", 4, "äbc…"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := termsafe.Line(tc.text, tc.most); got != tc.want {
				t.Errorf("%s: Line(%q, %d) is %q, want %q", tc.reason, tc.text, tc.most, got, tc.want)
			}
		})
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	if got, want := termsafe.Quote("a\n\nTurn x: Completed"), "| a\n|\n| Turn x: Completed\n"; got != want {
		t.Errorf("Quote is %q, want %q", got, want)
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -999: "-999", -1000: "-1,000"} {
		if got := termsafe.Thousands(n); got != want {
			t.Errorf("Thousands(%d) is %q, want %q", n, got, want)
		}
	}
}

func TestCounted(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 Turns were", 1: "1 Turn was", 2: "2 Turns were", 11: "11 Turns were"} {
		if got := termsafe.Counted(n, "Turn was", "Turns were"); got != want {
			t.Errorf("Counted(%d) = %q, want %q", n, got, want)
		}
	}
}
