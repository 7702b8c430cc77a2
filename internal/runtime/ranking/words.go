package ranking

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxWord is the maximum length of a word, in bytes.
const maxWord = 64

// unspaced are the scripts without spaces between words.
var unspaced = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar,
}

// Words returns the words of a text in lower case: runs of letters, digits and marks. Each character of a script
// without spaces is a word. Words ignores format characters, such as joiners and soft hyphens, because texts are stored
// without them: see untrusted.Strip.
func Words(text string) []string {
	text = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, text)
	var b strings.Builder
	for _, r := range norm.NFKC.String(text) {
		switch {
		case unicode.In(r, unspaced...):
			b.WriteString(" " + string(r) + " ")
		case unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r):
			b.WriteRune(unicode.ToLower(r))
		default:
			b.WriteByte(' ')
		}
	}
	words := strings.Fields(b.String())
	for i, w := range words {
		words[i] = strings.ToValidUTF8(w[:min(len(w), maxWord)], "")
	}
	return words
}

// WithPairs returns words, followed by each pair of neighbors that are characters of a script without spaces. A single
// letter of Thai says as little as one of English, but a pair is a part of a word.
func WithPairs(words []string) []string {
	all := slices.Clone(words)
	for i := 1; i < len(words); i++ {
		if isCharacter(words[i-1]) && isCharacter(words[i]) {
			all = append(all, words[i-1]+words[i])
		}
	}
	return all
}

// isCharacter reports whether a word is a character of a script without spaces.
func isCharacter(word string) bool {
	r, size := utf8.DecodeRuneInString(word)
	return size == len(word) && unicode.In(r, unspaced...)
}
