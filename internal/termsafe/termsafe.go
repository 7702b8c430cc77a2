// Package termsafe makes untrusted text safe to show on a terminal.
package termsafe

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/capstan-dev/capstan/internal/runtime/cut"
)

// Safe replaces each character of a text that controls a terminal by an escape such as \u001b. Line feeds and tabs
// stay.
func Safe(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if strings.IndexFunc(text, controlsTerminal) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if controlsTerminal(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Strip removes each character that Safe would escape.
func Strip(text string) string {
	return strings.Map(func(r rune) rune {
		if controlsTerminal(r) {
			return -1
		}
		return r
	}, text)
}

// controlsTerminal reports whether a character is a control character, changes the direction of text, or separates
// lines or paragraphs. Line feeds and tabs do not count.
func controlsTerminal(r rune) bool {
	switch {
	case r == '\n', r == '\t':
		return false
	case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069', r == '\u2028', r == '\u2029':
		return true
	}
	return unicode.IsControl(r)
}

// Exact is like Safe, but for a text on which a person bases a decision. It also escapes characters that a screen does
// not show, such as zero-width spaces and direction marks. Scripts that need such marks become harder to read.
func Exact(text string) string {
	text = Safe(text)
	if strings.IndexFunc(text, isHidden) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !isHidden(r):
			b.WriteRune(r)
		case r > '\uffff':
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// isHidden reports whether a character is invisible, or looks like a space without being one.
func isHidden(r rune) bool {
	switch r {
	case '\n', '\t', ' ', '\ufffd':
		return false
	case '\u115f', '\u1160', '\u3164', '\uffa0': // letters that look blank
		return true
	}
	return !unicode.IsPrint(r) || unicode.Is(unicode.Variation_Selector, r)
}

// Line returns the beginning of a text on one line, at most limit characters, without characters that are not
// printable.
func Line(text string, limit int) string {
	line := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.Join(strings.Fields(text), " "))
	return cut.Chars(line, limit, "…")
}

// Quote puts a bar before each line of a text, so that the text cannot imitate output of the program. The result
// ends with a line feed.
func Quote(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" {
			line = " " + line
		}
		b.WriteString("|" + line + "\n")
	}
	return b.String()
}

// Counted returns a number with the words after it: one if the number is 1, and many otherwise.
func Counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Thousands formats a number with commas between groups of thousands.
func Thousands[N int | int64](n N) string {
	digits := fmt.Sprint(n)
	first := 0
	if n < 0 {
		first = 1
	}
	for at := len(digits) - 3; at > first; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
