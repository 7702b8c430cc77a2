package termsafe_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

func TestSafe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, text, want string }{
		"plain":      {"words, line feeds and tabs stay", "a\tb\nc ü €", "a\tb\nc ü €"},
		"escape":     {"an escape sequence would colour, move or worse", "\x1b[2Jx", `\u001b[2Jx`},
		"one byte":   {"the 8-bit form of the same is no UTF-8", "\x9b2Jx", "\uFFFD2Jx"},
		"C1":         {"and as a character it is a control", "\u009b2J", `\u009b2J`},
		"return":     {"a carriage return would hide what stands before it", "rm -rf /\recho hi", `rm -rf /\u000decho hi`},
		"direction":  {"text must not be read backwards", "a\u202eb\u2066c", `a\u202eb\u2066c`},
		"separators": {"some terminals break lines at them", "a\u2028b", `a\u2028b`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := termsafe.Safe(tc.text); got != tc.want {
				t.Errorf("%s: Safe(%q) is %q, want %q", tc.reason, tc.text, got, tc.want)
			}
		})
	}
}

func TestExact(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, text, want string }{
		"plain":     {"what is seen stays", "a\tb\nc ü € 日本 👍", "a\tb\nc ü € 日本 👍"},
		"no width":  {"two names must not look alike", "pay\u200bpal \ufeffx", `pay\u200bpal \ufeffx`},
		"direction": {"nor be read otherwise", "a\u200eb\u202e", `a\u200eb\u202e`},
		"spaces":    {"a space is one that it looks like", "a\u00a0b\u3000c\u3164", `a\u00a0b\u3000c\u3164`},
		"tags":      {"whole sentences can be hidden in these", "a\U000e0049\U000e0067", `a\U000e0049\U000e0067`},
		"escape":    {"it is as safe as Safe", "\x1b[2J\x9b", `\u001b[2J` + "\uFFFD"},
		"variants":  {"so can they in these", "a\ufe01\U000e0101", `a\ufe01\U000e0101`},
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
		"short":   {"it stays", "a b", 10, "a b"},
		"lines":   {"they are joined", " a\n\n b\tc ", 10, "a b c"},
		"hostile": {"what does not print goes", "a\x1b[31m\u202eb", 10, "a[31mb"},
		"long":    {"the end is cut off, and that is shown", "äbcdef", 4, "äbc…"},
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
