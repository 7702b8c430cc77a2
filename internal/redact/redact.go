// Package redact makes texts of servers safe for messages: bounded, printable, and without the credentials that the
// server received. Some servers repeat their credentials.
//
// A credential is found unchanged, with escapes of JSON, URLs and HTML, also mixed and nested, anywhere within base64,
// and with white space in it. There is an unlimited number of other ways to hide it, for example backwards. No search
// can find all of them, and a malicious server has the credential anyway.
package redact

import (
	"slices"
	"strings"
	"unicode"
)

const (
	// maxExamined bounds the examined part of a text for a message, in bytes.
	maxExamined = 16 << 10
	// minSecret is the shortest text that counts as a secret, in bytes.
	minSecret = 4
	// window is the length of the shortest part of a secret that reveals the secret in a message, in bytes. A server
	// may show a part of a key.
	window = 12

	redacted = "[redacted]"
)

// Marker replaces each removed text.
const Marker = redacted

// Redactor knows the credentials of one server. It is safe for concurrent use.
type Redactor struct {
	forms  []form
	filter *filter
	// longest is the longest text that a view must contain as a whole so that a form is found, in bytes.
	longest int
	// short has, by length, the parts of unfolded forms that reveal the secret in a message. Unfolded forms are shorter
	// than 16 bytes: the parts of longer forms would need far more memory than the secrets.
	short [window + 1]map[string]bool
}

// New returns a redactor of secrets. A text of less than 4 bytes does not count as a secret. The redactor needs 7 to 11
// times the memory of the secrets, and twice as much for secrets that begin with a scheme, such as Bearer.
func New(secrets ...string) *Redactor {
	r := newFormRedactor(newForms(secrets, minSecret))
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

const (
	// memoryOfAny, memoryOfEach and memoryOfByte bound the memory for any secrets, for each secret, and for each byte
	// of a secret, in bytes: of a redactor, and of the same secrets in a Set.
	memoryOfAny  = 22 << 10
	memoryOfEach = 4 << 10
	memoryOfByte = 48
)

// Memory returns an upper bound of the memory that a redactor of secrets takes, in bytes, including the memory that the
// secrets take in a Set. It does not include about 20 KiB that a Set needs for each namespace.
func Memory(secrets []string) int64 {
	if len(secrets) == 0 {
		return 0
	}
	bytes := int64(memoryOfAny)
	for _, secret := range secrets {
		bytes += memoryOfEach + int64(len(secret))*memoryOfByte
	}
	return bytes
}

// newForms returns the forms of secrets, and of parts of secrets, of at least shortest bytes.
func newForms(secrets []string, shortest int) []form {
	var all []form
	for _, text := range slices.Compact(slices.Sorted(slices.Values(formsOf(secrets, shortest)))) {
		all = append(all, newForm(text))
	}
	return all
}

// newFormRedactor returns a redactor of forms that supports only Redact.
func newFormRedactor(forms []form) *Redactor {
	r := &Redactor{forms: forms}
	if len(forms) > 0 { // an empty filter would take 16 KiB
		r.filter = newFilter(forms)
	}
	for i := range forms {
		r.longest = max(r.longest, forms[i].needed())
	}
	return r
}

// Line returns a text as one printable line of at most limit code points, with an ellipsis if it was longer. It removes
// secrets, and also each part of a secret that has at least 12 bytes. It shortens the text last, because a shortened
// secret might not be found.
func (r *Redactor) Line(text string, limit int) string {
	return shorten(r.redact(oneLine(text[:min(len(text), maxExamined)])), limit)
}

// Text is like Line, but keeps the lines of the text.
func (r *Redactor) Text(text string, limit int) string {
	return shorten(r.redact(printable(text[:min(len(text), maxExamined)])), limit)
}

// Redact returns a text of any length without the secrets. It keeps the rest of the text unchanged, so the result may
// not be fit for a message. It also removes a part that has at least three quarters of a secret of 16 bytes or more, or
// the middle of a secret of more than 512 bytes. A shorter part, and a part of a shorter secret, could be normal text,
// and stays. The time is linear in the length of the text. Apart from the result, the memory does not depend on the
// length of the secrets, and only a little on that of the text.
func (r *Redactor) Redact(text string) string {
	if len(r.forms) == 0 {
		return text
	}
	return replace(text, r.scan(text))
}

// redact replaces all secrets, and all parts that reveal a secret.
func (r *Redactor) redact(text string) string {
	var hidden []span
	var vs views
	for v := range vs.each(text, true) {
		for size, known := range r.short {
			hidden = findParts(v, known, size, hidden)
		}
		hidden = r.findFoldedParts(v, hidden)
	}
	return replace(text, hidden)
}

// findParts finds known parts of one length of the unfolded forms, and adds their positions to hidden.
func findParts(v *view, known map[string]bool, size int, hidden []span) []span {
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

// findFoldedParts finds windows of folded forms, and adds their positions to hidden. The time is linear in the length
// of the view and of the forms.
func (r *Redactor) findFoldedParts(v *view, hidden []span) []span {
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

// span is a part of a text, from a byte offset up to another one.
type span struct{ from, to int }

// replace replaces parts of a text.
func replace(text string, hidden []span) string {
	if len(hidden) == 0 {
		return text
	}
	slices.SortFunc(hidden, func(a, b span) int { return a.from - b.from })
	var out strings.Builder
	out.Grow(len(text))
	end := -1 // end of the previous part
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

// oneLine returns a text as one printable line.
func oneLine(text string) string {
	return strings.Join(strings.Fields(printable(text)), " ")
}

// printable removes characters that are neither printable nor white space.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

func shorten(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "..."
	}
	return text
}
