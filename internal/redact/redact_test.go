package redact_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/redact"
)

const secret = "sk-demo-0123456789abcdefghijklmnop"

func TestRedactor(t *testing.T) {
	r := redact.New(secret, "", "abc", `pass "word"`)
	for name, tc := range map[string]struct {
		reason string
		got    string
		want   string
	}{
		"line":          {"the text becomes one printable line", r.Line("a\n b\x00\tc", 100), "a b c"},
		"line, secret":  {"a secret across lines is found", r.Line("key "+secret[:20]+"\n"+secret[20:], 100), "key [redacted]"},
		"line, escaped": {"an escaped secret is found", r.Line(`{"p":"pass \"word\""}`, 100), `{"p":"[redacted]"}`},
		"line, long":    {"the text is shortened after redaction", r.Line("aa "+secret, 5), "aa [r..."},
		"line, short":   {"a text that is too short is not a secret", r.Line("abc", 100), "abc"},
		"text":          {"lines are kept", r.Text("a\nb\x1b[31m\n"+secret, 100), "a\nb[31m\n[redacted]"},
		"text, bytes":   {"invalid UTF-8 is replaced", r.Text("a\xffb", 100), "a\uFFFDb"},
		"text, long":    {"the text is shortened", r.Text(strings.Repeat("ü", 30), 10), strings.Repeat("ü", 10) + "..."},
		"whole": {
			"a text may have any length, and the rest is unchanged",
			r.Redact("\x00" + secret + strings.Repeat("x", 100_000)), "\x00[redacted]" + strings.Repeat("x", 100_000),
		},
		"whole, a part":  {"a short part is kept", r.Redact(secret[:20]), secret[:20]},
		"without secret": {"the text is unchanged", redact.New().Line("anything", 100), "anything"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %.100q, want %.100q: %s", name, tc.got, tc.want, tc.reason)
		}
	}
}
