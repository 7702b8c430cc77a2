package redact

import (
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"golang.org/x/text/unicode/rangetable"
)

// delete7 is the DEL character at the end of ASCII.
const delete7 = 0x7f

// ignorable are the characters that a reader does not notice, and that hide a text from a search: format characters
// (zero-width spaces, direction marks, tags), the default ignorable characters of Unicode (fillers, the soft
// hyphen, the grapheme joiner), variation selectors, combining marks, and control characters.
var ignorable = rangetable.Merge(unicode.Cc, unicode.Cf, unicode.Mn, unicode.Me, unicode.Variation_Selector,
	unicode.Other_Default_Ignorable_Code_Point)

// isIgnorable reports whether a character is neither visible nor white space.
func isIgnorable(r rune) bool { return !unicode.IsSpace(r) && unicode.Is(ignorable, r) }

// fold returns the text by which a character is compared: an empty text for an invisible character, and the plain
// letter for a letter of another width or style, or with marks. plain is true if the character is compared
// unchanged; folded is empty then. fold overwrites over, and encoded is the character in UTF-8.
func fold(over []byte, r rune, encoded string) (folded []byte, plain bool) {
	folded = over[:0]
	switch {
	case r > ' ' && r < delete7:
		return folded, true
	case unicode.IsSpace(r), unicode.Is(ignorable, r):
		return folded, false
	}
	decomposed := decompose(encoded)
	if decomposed == nil {
		return folded, true
	}
	for len(decomposed) > 0 {
		part, size := utf8.DecodeRune(decomposed)
		if !unicode.IsSpace(part) && !unicode.Is(ignorable, part) {
			folded = append(folded, decomposed[:size]...)
		}
		decomposed = decomposed[size:]
	}
	return folded, false
}

// decompose returns the characters of which the first character of a text consists, or nil if it consists only of
// itself.
func decompose(text string) []byte { return norm.NFKD.PropertiesString(text).Decomposition() }

// lower returns text with its ASCII letters in lower case. It overwrites over.
func lower(over, text []byte) []byte {
	over = append(over[:0], text...)
	for i, c := range over {
		if c-'A' < 26 {
			over[i] = c | 0x20
		}
	}
	return over
}
