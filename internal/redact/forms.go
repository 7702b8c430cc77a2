package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"unicode"
)

const (
	// minRest is the shortest text after the scheme of a header's value that counts as a secret itself. minCore is
	// the shortest text within base64 that is searched for. Both are in bytes; shorter texts occur by chance.
	minRest = 8
	minCore = 6
	// minHex is the shortest secret that is searched for in hexadecimal digits, in bytes.
	minHex = minParted / 2
	// minParted is the length of the shortest form whose parts reveal the secret in any text, in bytes.
	minParted = 16
)

// form is one of the texts that reveal a secret, as it appears in a view.
type form struct {
	text []byte
	// folded is true if the case of letters is ignored, for example because of hexadecimal digits. The text is in lower
	// case if the form is folded. Short forms are not folded, because they may be another word in another case.
	folded bool
	// pivot is the part of the form that is searched for, and start is its offset. A match of the pivot is extended to
	// both sides as far as the text equals the form. The extended match counts if it has at least minMatch bytes.
	pivot    []byte
	start    int
	minMatch int
}

// newForm returns a form. The pivot of a long form is its middle half. Every part that has three quarters of the form
// contains the middle half, so one search finds all of these parts. A periodic middle would be found again and again in
// a text that repeats it. So such a form, like a short form, counts only as a whole.
func newForm(text string) form {
	f := form{text: []byte(text), minMatch: len(text), folded: len(text) >= minParted}
	f.pivot = f.text
	if quarter := len(text) / 4; f.folded {
		f.text = lower(nil, f.text)
		f.pivot = f.text
		if middle := f.text[quarter : len(text)-quarter]; period(middle) > len(middle)/4 {
			f.pivot, f.start, f.minMatch = middle, quarter, len(text)-quarter
		}
	}
	return f
}

// textOf returns the text of a view that the form is compared with.
func (f *form) textOf(v *view) []byte {
	if f.folded {
		return v.low
	}
	return v.text
}

// period returns the smallest shift by which a text matches itself.
func period(text []byte) int {
	// border[i] is the length of the longest part that both begins and ends text[:i+1] and is shorter than it.
	border := make([]int, len(text))
	for i := 1; i < len(text); i++ {
		n := border[i-1]
		for n > 0 && text[i] != text[n] {
			n = border[n-1]
		}
		if text[i] == text[n] {
			n++
		}
		border[i] = n
	}
	return len(text) - border[len(text)-1]
}

// find finds the matches of the form in a view that count, and adds their positions to found.
func (f *form) find(v *view, found []span) []span {
	text := f.textOf(v)
	for at := 0; ; {
		i := bytes.Index(text[at:], f.pivot)
		if i < 0 {
			return found
		}
		from, to := at+i, at+i+len(f.pivot)
		at = from + 1
		for j := f.start; j > 0 && from > 0 && text[from-1] == f.text[j-1]; j-- {
			from--
		}
		for j := f.start + len(f.pivot); j < len(f.text) && to < len(text) && text[to] == f.text[j]; j++ {
			to++
		}
		if to-from >= f.minMatch && (len(f.text) >= window || v.isContiguous(from, to)) {
			found = append(found, v.source(from, to))
			at = to
		}
	}
}

// formsOf returns the texts that reveal secrets. Secrets, and parts of secrets, of less than shortest bytes have no
// forms. Views have no escapes, so escaped secrets need no form, unless the removal of escapes changes the secret
// itself.
func formsOf(secrets []string, shortest int) []string {
	var all []string
	var vs views
	for _, secret := range secrets {
		for _, s := range credentials(secret) {
			if len(s) < shortest {
				continue
			}
			for v := range vs.each(s, false) {
				if len(v.text) >= shortest {
					all = append(all, string(v.text))
				}
			}
			if strings.Contains(s, " ") {
				all = append(all, strings.ReplaceAll(s, " ", "+")) // as in the query of a URL
			}
			all = append(all, cores(s)...)
			if len(s) >= minHex {
				all = append(all, hex.EncodeToString([]byte(s)))
			}
		}
	}
	return all
}

// credentials returns a secret and its parts that are secrets themselves: the text after a scheme such as Bearer, and
// for Basic also the user with the password, and the password alone.
func credentials(secret string) []string {
	all := []string{secret}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(secret), " ")
	if rest = strings.TrimSpace(rest); len(rest) < minRest || strings.ContainsFunc(rest, unicode.IsSpace) {
		return all
	}
	all = append(all, rest)
	if strings.EqualFold(scheme, "Basic") {
		if pair, err := base64.StdEncoding.DecodeString(rest); err == nil {
			_, password, _ := strings.Cut(string(pair), ":")
			all = append(all, string(pair), password)
		}
	}
	return all
}

// cores returns the base64 digits that are in the encoding of any text with the secret. The secret may begin at each of
// the three positions within a group of three bytes. Digits that also depend on the neighboring bytes are left out.
func cores(secret string) []string {
	var all []string
	for before := range 3 {
		digits := base64.RawStdEncoding.EncodeToString([]byte("\x00\x00"[:before] + secret))
		first := (before*8 + 5) / 6
		core := digits[first : (before+len(secret))*8/6]
		if len(core) < minCore {
			continue
		}
		all = append(all, core)
		if other := strings.NewReplacer("+", "-", "/", "_").Replace(core); other != core {
			all = append(all, other)
		}
	}
	return all
}
