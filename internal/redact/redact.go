// Package redact makes texts that a server wrote fit for messages: bounded, printable, and free of the credentials that it was
// sent, which some servers repeat.
//
// A credential is found as it is and as formats write it: with escapes of JSON, URLs and HTML, also mixed and one within the
// other, within base64 at any place, and with white space put into it. There are ways without number to hide it, such as backwards: nobody
// can look for all of them, and a server that means harm has the credential anyway.
package redact

import (
	"slices"
	"strings"
	"unicode"
)

const (
	// maxExamined bounds what is looked at of a text for a message, in bytes.
	maxExamined = 16 << 10
	// minSecret is the shortest text that is taken for a secret, in bytes.
	minSecret = 4
	// window is how much of a secret gives it away in a message, in bytes: a server may show a part of a key.
	window = 12

	redacted = "[redacted]"
)

// Redactor knows the credentials of one server. It is safe for concurrent use.
type Redactor struct {
	forms   []form
	filter  *filter
	longest int // of the forms, in bytes
	// short are the parts of forms that are not folded that give them away in a message, by their length. Such forms are of less
	// than 16 bytes: the parts of longer ones would take far more room than the secrets.
	short [window + 1]map[string]bool
}

// New returns a redactor of secrets; one of less than 4 bytes is not taken for one. It keeps 7 to 11 times
// the length of the secrets, and twice that of those that begin with a scheme, such as Bearer.
func New(secrets ...string) *Redactor {
	r := searching(secrets)
	for _, f := range r.forms {
		if f.folded {
			continue
		}
		size := min(window, len(f.text))
		if r.short[size] == nil {
			r.short[size] = map[string]bool{}
		}
		for i := range len(f.text) - size + 1 {
			r.short[size][string(f.text[i:i+size])] = true
		}
	}
	return r
}

// searching returns a redactor of secrets for Whole alone.
func searching(secrets []string) *Redactor {
	r := &Redactor{}
	for _, text := range slices.Compact(slices.Sorted(slices.Values(formsOf(secrets)))) {
		f := newForm(text)
		r.forms = append(r.forms, f)
		r.longest = max(r.longest, len(f.text))
	}
	r.filter = newFilter(r.forms)
	return r
}

// Line returns a text as one printable line of at most so many code points, and an ellipsis where it was longer. Parts of
// secrets are left out, too, from 12 bytes on. Shortening comes last: it could leave a part of a secret.
func (r *Redactor) Line(text string, most int) string {
	return shorten(r.redact(oneLine(text[:min(len(text), maxExamined)])), most)
}

// Text returns a text of at most so many code points, and an ellipsis where it was longer, with its lines as they are, and
// otherwise as Line does.
func (r *Redactor) Text(text string, most int) string {
	return shorten(r.redact(printable(text[:min(len(text), maxExamined)])), most)
}

// Whole returns all of a text without the secrets, for texts of any length, which are no messages: the rest of it stays as it is.
// Of a secret of 16 bytes or more, a part of three quarters is left out, too. Less of it, and a part of a shorter one, cannot be
// told from what the text has to say, and stays. The time that it takes grows with the length of the text, and not faster.
func (r *Redactor) Whole(text string) string {
	if len(r.forms) == 0 {
		return text
	}
	return replace(text, r.scan(text))
}

// redact replaces all parts of secrets.
func (r *Redactor) redact(text string) string {
	var hidden []span
	var vs views
	for v := range vs.of(text, true) {
		for size, known := range r.short {
			hidden = parts(v, known, size, hidden)
		}
		hidden = r.foldedParts(v, hidden)
	}
	return replace(text, hidden)
}

// parts finds the parts of a length that are known of forms that are not folded, and adds their places.
func parts(v *view, known map[string]bool, size int, hidden []span) []span {
	if len(known) == 0 {
		return hidden
	}
	for i := range max(0, len(v.text)-size+1) {
		if known[string(v.text[i:i+size])] {
			hidden = append(hidden, v.source(i, i+size))
		}
	}
	return hidden
}

// foldedParts finds the windows of folded forms, and adds their places. Its time grows with the length of the view and of the forms.
func (r *Redactor) foldedParts(v *view, hidden []span) []span {
	var in *windows
	found := false
	for i := range r.forms {
		if !r.forms[i].folded || len(v.low) < window {
			continue
		}
		if in == nil {
			in = newWindows(v.low)
		}
		found = in.mark(r.forms[i].text) || found
	}
	for i := 0; found && i+window <= len(v.low); i++ {
		if in.marked(i) {
			hidden = append(hidden, v.source(i, i+window))
		}
	}
	return hidden
}

// span is a part of a text, from a byte up to another.
type span struct{ from, to int }

// replace replaces parts of a text.
func replace(text string, hidden []span) string {
	if len(hidden) == 0 {
		return text
	}
	slices.SortFunc(hidden, func(a, b span) int { return a.from - b.from })
	var out strings.Builder
	out.Grow(len(text))
	end := -1 // of the part before
	for _, h := range hidden {
		if h.from > end {
			out.WriteString(text[max(end, 0):h.from])
			out.WriteString(redacted)
		}
		end = max(end, h.to)
	}
	out.WriteString(text[end:])
	return out.String()
}

// oneLine makes a text printable, on one line.
func oneLine(text string) string {
	return strings.Join(strings.Fields(printable(text)), " ")
}

// printable drops what is neither printable nor white space.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

func shorten(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}
