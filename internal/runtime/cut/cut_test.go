package cut_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/cut"
)

func TestBytes(t *testing.T) {
	noStart := strings.Repeat("\x80", 9)
	for name, tc := range map[string]struct {
		text  string
		limit int
		want  string
	}{
		"short":                {"abc", 3, "abc"},
		"long":                 {"abcd", 3, "abc"},
		"between characters":   {"aä", 3, "aä"},
		"within a character":   {"aä!", 2, "a"},
		"in its last byte":     {"a😀!", 4, "a"},
		"no character fits":    {"😀!", 3, ""},
		"nothing":              {"abc", 0, ""},
		"not UTF-8":            {noStart, 5, noStart[:5]},
		"not UTF-8 at the end": {"abc" + noStart, 8, "abc" + noStart[:5]},
		"not UTF-8 and short":  {noStart, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cut.Bytes(tc.text, tc.limit); got != tc.want {
				t.Errorf("Bytes(%q, %d) = %q, want %q", tc.text, tc.limit, got, tc.want)
			}
		})
	}
}

func TestChars(t *testing.T) {
	for name, tc := range map[string]struct {
		text  string
		limit int
		mark  string
		want  string
	}{
		"short":       {"äöü", 3, "…", "äöü"},
		"long":        {"äöüß", 3, "…", "äö…"},
		"without one": {"äöüß", 3, "", "äöü"},
		"not UTF-8":   {"\x80\x80\x80\x80", 3, "", "\uFFFD\uFFFD\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cut.Chars(tc.text, tc.limit, tc.mark); got != tc.want {
				t.Errorf("Chars(%q, %d, %q) = %q, want %q", tc.text, tc.limit, tc.mark, got, tc.want)
			}
		})
	}
}
