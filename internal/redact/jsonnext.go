package redact

import "strings"

// maxNext is the length of the text in which the next or the previous member is looked for, in bytes. It includes
// comments.
const maxNext = 512

// maxStarts is how many braces and commas before a name without quotes are tried as the beginning of its member. More
// than one is tried because comments before the name may have braces and commas, too.
const maxStarts = 16

// A hostile text may have a comma, a quote or a backslash in every second byte. Each function of this file looks at
// maxNext bytes at most, and passes over comments and backslashes with a search for one byte. So they take linear time.

// endsValue reports whether a value without quotes ends at an offset of a comma, a quote or a backslash: the next
// member begins there, or there is an escaped line break.
func endsValue(text string, at int) bool {
	limit := min(len(text), at+maxNext)
	comma := text[at] == ','
	if comma {
		at++
	}
	if _, isBreak := escapedSpaceEnd(text, at, limit); isBreak {
		return true
	}
	at = skipBetween(text, at, limit)
	end := quotedNameEnd(text, at, limit)
	if end < 0 && comma {
		end = wordEnd(text, at, limit)
	}
	if end < 0 {
		return false
	}
	end = skipSpace(text, end, limit)
	return end < limit && text[end] == ':'
}

// beginsMember reports whether a name without quotes at an offset is that of a member: only white space and comments
// are between the name and the beginning of an object, or a comma that does not separate parameters.
func beginsMember(text string, name int) bool {
	from := max(0, name-maxNext)
	at := name
	for range maxStarts {
		at = from + strings.LastIndexAny(text[from:at], "{,")
		if at < from {
			return false
		}
		if skipBetween(text, at+1, name) == name {
			return text[at] == '{' || !inParentheses(text, at)
		}
	}
	return false
}

// inParentheses reports whether the innermost open bracket before an offset is a parenthesis, as in the parameters of a
// function.
func inParentheses(text string, at int) bool {
	depth := 0
	for i := at - 1; i >= max(0, at-maxNext); i-- {
		switch text[i] {
		case ')', ']', '}':
			depth++
		case '(', '[', '{':
			if depth == 0 {
				return text[i] == '('
			}
			depth--
		}
	}
	return false
}

// skipBetween returns the offset after white space and whole comments, as they are between members. White space
// includes escaped line breaks and tabs.
func skipBetween(text string, at, limit int) int {
	for {
		at = skipSpace(text, at, limit)
		length := commentLength(text[at:limit])
		if length == 0 {
			return at
		}
		at += length
	}
}

// commentLength returns the length of the comment with which a text begins, or 0 if there is none, or if its end is
// missing. A comment up to the end of the line includes the line break, which may be escaped.
func commentLength(text string) int {
	switch {
	case strings.HasPrefix(text, "/*"):
		if end := strings.Index(text[2:], "*/"); end >= 0 {
			return 2 + end + 2
		}
	case strings.HasPrefix(text, "#"), strings.HasPrefix(text, "//"):
		return lineLength(text)
	}
	return 0
}

// lineLength returns the length of the first line with its line break, which may be escaped, or 0 if there is none. It
// reads no further, so that the time for many lines is linear.
func lineLength(text string) int {
	for i := range len(text) {
		switch {
		case text[i] == '\n':
			return i + 1
		case strings.HasPrefix(text[i:], `\n`):
			return i + len(`\n`)
		}
	}
	return 0
}

// skipSpace returns the offset after white space, which includes escaped line breaks and tabs.
func skipSpace(text string, at, limit int) int {
	for at < limit {
		if strings.IndexByte(" \t\r\n\v\f", text[at]) >= 0 {
			at++
			continue
		}
		end, _ := escapedSpaceEnd(text, at, limit)
		if end == at {
			return at
		}
		at = end
	}
	return at
}

// escapedSpaceEnd returns the offset after an escaped line break or tab, whose backslashes may be escaped, too. It
// returns at if there is none. isBreak is true for a line break.
func escapedSpaceEnd(text string, at, limit int) (end int, isBreak bool) {
	end = skipBackslashes(text, at, limit)
	if end == at || end == limit || strings.IndexByte("nrt", text[end]) < 0 {
		return at, false
	}
	return end + 1, text[end] != 't'
}

func skipBackslashes(text string, at, limit int) int {
	for at < limit && text[at] == '\\' {
		at++
	}
	return at
}

// quotedNameEnd returns the offset after a name in quotes, which may have a prefix or be escaped, or -1 if there is
// none.
func quotedNameEnd(text string, at, limit int) int {
	for range 2 { // the prefix of a string in Python and other languages, such as b'text'
		if at < limit && strings.IndexByte("bBfFrRuU", text[at]) >= 0 {
			at++
		}
	}
	at = skipBackslashes(text, at, limit)
	if at == limit || !isQuote(text[at]) {
		return -1
	}
	at++
	for at < limit && !isQuote(text[at]) {
		size := 1
		if text[at] == '\\' {
			if _, size = unicodeEscape(text[at:limit]); size == 0 {
				break
			}
		}
		at += size
	}
	at = skipBackslashes(text, at, limit)
	if at == limit || !isQuote(text[at]) {
		return -1
	}
	return at + 1
}

func isQuote(c byte) bool { return c == '"' || c == '\'' || c == '`' }

// wordEnd returns the offset after a name without quotes, or -1 if there is none.
func wordEnd(text string, at, limit int) int {
	end := at
	for end < limit && isWord(text[end]) {
		end++
	}
	if end == at {
		return -1
	}
	return end
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c == '-'
}

// isPlaceholder reports whether a text begins with a name in braces, such as the {id} of a path.
func isPlaceholder(text string) bool {
	end := strings.IndexByte(text[:min(len(text), maxSpace)], '}')
	if end < 0 {
		return false
	}
	for i := 1; i < end; i++ {
		if c := text[i]; !isWord(c) && c != '.' && c != ' ' {
			return false
		}
	}
	return true
}
