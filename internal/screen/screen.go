// Package screen makes text of anybody's safe to look at on a terminal, now or later.
package screen

import (
	"fmt"
	"strings"
	"unicode"
)

// Safe returns a text of which a terminal acts on nothing: what it would act on is written out, as \u001b. Line feeds and
// tabs stay.
func Safe(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if strings.IndexFunc(text, acts) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if acts(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// acts reports whether a terminal acts on a character: control characters, and those that turn the direction of text.
func acts(r rune) bool {
	switch {
	case r == '\n', r == '\t':
		return false
	case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069', r == '\u2028', r == '\u2029':
		return true
	}
	return unicode.IsControl(r)
}

// Exact is Safe for a text that somebody decides by: what no screen shows, as spaces of no width and marks of direction, is
// written out, too. Texts of scripts that need such marks are harder to read for it.
func Exact(text string) string {
	text = Safe(text)
	if strings.IndexFunc(text, hidden) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > '\uffff':
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// hidden reports whether a character takes no room on a screen, or looks like a space and is none.
func hidden(r rune) bool {
	switch r {
	case '\n', '\t', ' ', '\ufffd':
		return false
	case '\u115f', '\u1160', '\u3164', '\uffa0': // which are letters, and blank
		return true
	}
	return !unicode.IsPrint(r) || unicode.Is(unicode.Variation_Selector, r)
}

// Line returns the beginning of a text on one line, at most so many characters, of which a terminal acts on nothing.
func Line(text string, most int) string {
	line := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.Join(strings.Fields(text), " "))
	if runes := []rune(line); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return line
}

// Quote sets a bar before each line of a text, so that nothing in it can pass for a line of the program that shows it. The
// result ends with a line feed.
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

// Thousands writes a number with a comma between its thousands.
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
