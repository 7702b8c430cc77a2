// Package redact makes texts that a server wrote fit for messages: bounded, printable, and free of the credentials that it was
// sent, which some servers repeat.
package redact

import (
	"encoding/json"
	"html"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxExamined bounds what is looked at of a text, in bytes.
	maxExamined = 16 << 10
	// minSecret is the shortest text that is taken for a secret, in bytes.
	minSecret = 4
	// window is how much of a secret gives it away, in bytes: a server may show a part of a key.
	window = 12

	redacted = "[redacted]"
)

// Redactor knows the credentials of one server. It is safe for concurrent use.
type Redactor struct {
	// forms are the secrets in the forms in which a server may write them, without white space.
	forms []string
	// bare are the secrets as they are.
	bare []string
}

// New returns a redactor of secrets; one of less than 4 bytes is not taken for one.
func New(secrets ...string) *Redactor {
	r := &Redactor{}
	for _, secret := range secrets {
		if len(secret) >= minSecret {
			r.bare = append(r.bare, secret)
		}
		forms := []string{secret, url.QueryEscape(secret), html.EscapeString(secret)}
		if quoted, err := json.Marshal(secret); err == nil {
			forms = append(forms, string(quoted[1:len(quoted)-1]))
		}
		for _, form := range forms {
			if form, _ := pack(form); len(form) >= minSecret {
				r.forms = append(r.forms, form)
			}
		}
	}
	return r
}

// Line returns a text as one printable line of at most so many code points, and an ellipsis where it was longer. Shortening
// comes last: it could leave a part of a secret.
func (r *Redactor) Line(text string, most int) string {
	return shorten(r.redact(oneLine(text[:min(len(text), maxExamined)])), most)
}

// Text returns a text of at most so many code points, and an ellipsis where it was longer, with its lines as they are.
func (r *Redactor) Text(text string, most int) string {
	return shorten(r.redact(printable(text[:min(len(text), maxExamined)])), most)
}

// Whole returns all of a text without the secrets as they are, whole: for texts of any length, which are no messages.
func (r *Redactor) Whole(text string) string {
	for _, secret := range r.bare {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	return text
}

// redact replaces all parts of secrets, also where white space was put into them.
func (r *Redactor) redact(text string) string {
	packed, places := pack(text)
	hidden := make([]bool, len(text))
	for _, secret := range r.forms {
		hide(packed, places, secret, hidden)
	}
	var out strings.Builder
	for i := range len(text) {
		switch {
		case !hidden[i]:
			out.WriteByte(text[i])
		case i == 0 || !hidden[i-1]:
			out.WriteString(redacted)
		}
	}
	return out.String()
}

// pack leaves white space out of a text and returns the place of each byte that is left.
func pack(text string) (packed string, places []int) {
	var out strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		for end := i + size; i < end; i++ {
			if !unicode.IsSpace(r) {
				out.WriteByte(text[i])
				places = append(places, i)
			}
		}
	}
	return out.String(), places
}

// hide marks what a packed text and a secret have in common, from window bytes on, or all of a shorter secret.
func hide(packed string, places []int, secret string, hidden []bool) {
	size := min(window, len(secret))
	parts := map[string]bool{}
	for i := range len(secret) - size + 1 {
		parts[secret[i:i+size]] = true
	}
	for i := range max(0, len(packed)-size+1) {
		if !parts[packed[i:i+size]] {
			continue
		}
		for place := places[i]; place <= places[i+size-1]; place++ {
			hidden[place] = true
		}
	}
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
