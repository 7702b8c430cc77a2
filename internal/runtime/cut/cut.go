// Package cut shortens texts without splitting a character.
package cut

import "unicode/utf8"

// Boundary returns the offset in a text, or the next smaller one at which a character begins. It moves back by less
// than utf8.UTFMax bytes: in a text that is not UTF-8, a search from one boundary to the next must still advance, and a
// text must not be shortened to nothing.
func Boundary(text string, at int) int {
	if at >= len(text) {
		return len(text)
	}
	for back := range utf8.UTFMax {
		if at-back <= 0 || utf8.RuneStart(text[at-back]) {
			return at - back
		}
	}
	return at
}

// Bytes returns the beginning of a text, at most limit bytes. It shares the memory of the text.
func Bytes(text string, limit int) string { return text[:Boundary(text, limit)] }

// Chars returns the beginning of a text, at most limit characters. If the text is longer, the result ends in mark,
// which counts, too.
func Chars(text string, limit int, mark string) string {
	if len(text) <= limit || utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit-utf8.RuneCountInString(mark)]) + mark
}
