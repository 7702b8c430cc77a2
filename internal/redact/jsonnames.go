package redact

import (
	"context"
	"iter"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// memberNames finds members of objects in invalid JSON by their names alone: in JSON with comments, with NaN or a
// missing comma, and in objects of other languages. The path to such a member is not known, so each member whose name
// is the last segment of a path counts. Of a path that ends in wildcards, such as $.cards[*], the last segment with a
// name counts, and with it the whole value. nil finds nothing.
type memberNames struct {
	begin *regexp.Regexp
	// paths maps each name, composed and decomposed, to the first path whose last name it is.
	paths map[string]string
}

const (
	// escapedSpace is white space, or an escaped line break or tab.
	escapedSpace = `(?:\s|\\+[nrt])*`
	// stringPrefix is the prefix of a string in Python and other languages, such as b'text'.
	stringPrefix = `[bBfFrRuU]{0,2}`
)

// newMemberNames returns the last names in paths, or nil if no path has a name.
func newMemberNames(paths []jsonPath) *memberNames {
	n := &memberNames{paths: map[string]string{}}
	var names []string
	for i := range paths {
		if paths[i].named == 0 {
			continue
		}
		last := paths[i].segments[paths[i].named-1].name
		if _, known := n.paths[last]; known {
			continue
		}
		for _, form := range slices.Compact([]string{last, norm.NFD.String(last)}) { // a regular expression does not compose letters
			n.paths[form] = paths[i].text
			names = append(names, regexp.QuoteMeta(form))
		}
	}
	if len(names) == 0 {
		return nil
	}
	name := "(" + strings.Join(names, "|") + ")"
	// A name in quotes, whose number of backslashes is the number of quotes around the JSON; or a name without quotes
	// after the beginning of an object, a comma or, perhaps, a comment: see beginsMember.
	quoted, plain := "(\\\\*)[\"'`]"+name+"\\\\*[\"'`]", `(?:[{,/\n]|\\+[nr])`+escapedSpace+name
	n.begin = regexp.MustCompile("(?:" + quoted + "|" + plain + ")" + escapedSpace + ":" + escapedSpace)
	return n
}

// has reports whether a name is the last name of a path.
func (n *memberNames) has(name string) bool { return n != nil && n.paths[name] != "" }

// find returns the positions of the first member in a text, as package regexp does. If escapes is true, the text may
// have escaped names.
func (n *memberNames) find(text string, escapes bool) []int {
	if !escapes {
		return n.begin.FindStringSubmatchIndex(text)
	}
	return n.begin.FindReaderSubmatchIndex(&nameReader{text})
}

// edits returns the edits that remove the values of members from an offset on, except for members within known parts of
// the text, and for values that earlier edits remove. known and earlier must be in order.
func (n *memberNames) edits(
	ctx context.Context, text string, at int, known []span, earlier []edit, found Matches, sum *replacements,
) (all []edit) {
	if n == nil {
		return nil
	}
	escapes := strings.Contains(text[at:], `\u`)
	turnStart, done := at, fairgate.AcquireProcessor(ctx, min(len(text), chunk))
	defer func() { done() }()
	for at < len(text) && !sum.tooMany() {
		if at-turnStart >= chunk {
			done()
			turnStart, done = at, fairgate.AcquireProcessor(ctx, min(len(text)-at, chunk))
		}
		m := n.find(text[at:], escapes)
		if m == nil {
			return all
		}
		begin, from := at+m[0], at+m[1]
		backslashes, name := m[3]-m[2], text[max(at, at+m[4]):max(at, at+m[5])]
		if name == "" { // without quotes
			name = text[at+m[6] : at+m[7]]
			begin = at + m[6]
			if !beginsMember(text, begin) {
				at = from
				continue
			}
		}
		at = from
		if spanAt(known, begin) != nil || spanAt(earlier, from) != nil {
			continue
		}
		to := valueEnd(text, from)
		if word := text[from:to]; word == "" || word == "null" {
			continue
		}
		quote := strings.Repeat(`\`, backslashes) + `"`
		all = append(all, edit{span{from, to}, quote + redacted + quote})
		found[n.paths[unescapedName(name)]]++
		sum.add(1)
		at = to
	}
	return all
}

// valueEnd returns the end of the value of a member in invalid JSON. If the end is not clear, it is the end of the
// line; if a quote or a bracket is open, it is the end of the text.
func valueEnd(text string, from int) int {
	if m := valueBegin.FindStringSubmatchIndex(text[from:]); m != nil {
		begin := from + m[1] - 1
		if c := text[begin]; c == '{' || c == '[' {
			return bracketEnd(text, begin)
		}
		return quotedEnd(text, begin, m[3]-m[2])
	}
	end := from
	for end < len(text) && strings.IndexByte("}]\r\n", text[end]) < 0 {
		if strings.IndexByte(",\\\"'`", text[end]) >= 0 && endsValue(text, end) {
			break
		}
		// The backslashes of a run count together.
		end = max(end+1, skipBackslashes(text, end, len(text)))
	}
	return from + len(strings.TrimRight(text[from:end], " \t"))
}

var (
	// valueBegin is the beginning of a string, an object or a list. Its group has the backslashes before it.
	valueBegin = regexp.MustCompile("^(?:" + stringPrefix + "(\\\\*)[\"'`]|\\\\*[{\\[])")
	// afterString is the text after the quote that ends a value.
	afterString = regexp.MustCompile("^" + escapedSpace + `(?:[,}\])'"\\]|$)`)
)

// quotedEnd returns the end of a string that begins with a quote after a number of backslashes. A quote after more
// backslashes does not end the string, and neither does a quote that no end of a member follows.
func quotedEnd(text string, begin, backslashes int) int {
	for end := range stringEnds(text, begin, backslashes, 0) {
		if afterString.MatchString(text[end:min(len(text), end+maxSpace)]) {
			return end
		}
	}
	return len(text)
}

// stringEnds yields the possible ends of a string that begins with a quote after a number of backslashes: after each
// further quote of this kind that is not escaped. A string of Python that begins with three quotes ends with three.
//
// A quote after more backslashes ends the string if the others are pairs of backslashes, as in "C:\\". unit is the
// number of backslashes that stand for one: it is 2 if the text is within another string, such as
// '{"a": "say \\"]\\""}' of Python. If unit is 0, no quote after more backslashes ends the string.
func stringEnds(text string, begin, backslashes, unit int) iter.Seq[int] {
	mark := text[begin : begin+1]
	if three := strings.Repeat(mark, 3); backslashes == 0 && strings.HasPrefix(text[begin:], three) {
		mark = three
	}
	pair := 2 * unit * (backslashes + 1)
	return func(yield func(int) bool) {
		before := 0
		for i := begin + len(mark); i < len(text); i++ {
			if text[i] == '\\' {
				before++
				continue
			}
			ends := before <= backslashes || pair > 0 && (before-backslashes)%pair == 0
			if ends && strings.HasPrefix(text[i:], mark) && !yield(i+len(mark)) {
				return
			}
			before = 0
		}
	}
}

// bracketEnd returns the end of an object or a list. It is not known how many strings contain the text, and so whether
// a quote after two or more backslashes ends a string. The end is the last one that is possible, because the rest of a
// value that ends too early may be secret.
func bracketEnd(text string, begin int) int {
	end := bracketEndWith(text, begin, 0)
	if !strings.Contains(text[begin:end], `\\`) {
		return end // the same for each unit
	}
	for _, unit := range []int{1, 2, 4} {
		end = max(end, bracketEndWith(text, begin, unit))
	}
	return end
}

// bracketEndWith returns the end of an object or a list, by counting brackets outside of strings and comments. If the
// end of a string or of a comment is missing, it is the end of the text. For unit, see stringEnds.
func bracketEndWith(text string, begin, unit int) int {
	depth, backslashes := 0, 0 // backslashes are those before the position
	for i := begin; i < len(text); i++ {
		before := backslashes
		backslashes = 0
		switch c := text[i]; c {
		case '\\':
			backslashes = before + 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '/', '#':
			if c == '/' && (i+1 == len(text) || text[i+1] != '/' && text[i+1] != '*') {
				continue
			}
			length := commentLength(text[i:])
			if length == 0 {
				return len(text)
			}
			i += length - 1
		case '"', '\'', '`':
			end := len(text)
			for end = range stringEnds(text, i, before, unit) {
				break
			}
			i = end - 1
		}
	}
	return len(text)
}
