package redact

import (
	"io"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxBackslashes is the maximum number of backslashes of an escape. JSON within three strings has eight of them.
const maxBackslashes = 8

// nameReader reads a text for package regexp, with characters in place of their escapes, such as \u4f4f. Each character
// has the size of its escape, so the positions of a match are those in the text. JSON that a program has written often
// has escapes for all characters outside of ASCII.
type nameReader struct{ text string }

// ReadRune reads a character.
func (r *nameReader) ReadRune() (c rune, size int, err error) {
	if r.text == "" {
		return 0, 0, io.EOF
	}
	c, size = nameCharacter(r.text)
	r.text = r.text[size:]
	return c, size, nil
}

// unescapedName returns a name with characters in place of their escapes.
func unescapedName(name string) string {
	if !strings.Contains(name, `\u`) {
		return name
	}
	var b strings.Builder
	for name != "" {
		r, size := nameCharacter(name)
		b.WriteRune(r)
		name = name[size:]
	}
	return b.String()
}

// nameCharacter returns the first character of a text, which may be escaped, and its length in the text. An escaped
// quote, bracket or other mark of JSON is a part of a string, so its escape is not decoded.
func nameCharacter(text string) (r rune, size int) {
	r, size = utf8.DecodeRuneInString(text)
	if r != '\\' {
		return r, size
	}
	escaped, end := unicodeEscape(text)
	if utf16.IsSurrogate(escaped) {
		low, n := unicodeEscape(text[end:])
		if whole := utf16.DecodeRune(escaped, low); whole != utf8.RuneError {
			return whole, end + n
		}
	}
	if end == 0 || escaped <= ' ' || strings.ContainsRune("\"'`\\{}[]:,/", escaped) {
		return r, size
	}
	return escaped, end
}

// unicodeEscape decodes an escape such as \u4f4f at the beginning of a text. size is 0 if there is none.
func unicodeEscape(text string) (r rune, size int) {
	begin := skipBackslashes(text, 0, min(len(text), maxBackslashes))
	if begin == 0 || begin == len(text) || text[begin] != 'u' {
		return 0, 0
	}
	return hexadecimal(text, begin+1, 4)
}
