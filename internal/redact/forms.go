package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"iter"
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
	// maxPivot is the length of the longest form that a view must contain as a whole, and of the longest pivot of a
	// longer form. A view takes many times the memory of its text, so it must stay short however long the secrets are.
	maxPivot = 512
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
// a text that repeats it. So such a form, like a short form, counts only as a whole. A form of more than maxPivot bytes
// counts wherever its pivot is, because no other text has so many bytes of it. That also makes the time linear.
func newForm(text string) form {
	f := form{text: []byte(text), minMatch: len(text), folded: len(text) >= minParted}
	f.pivot = f.text
	if !f.folded {
		return f
	}
	f.text = lower(nil, f.text)
	f.pivot = f.text
	quarter := len(text) / 4
	middle := f.text[quarter : len(text)-quarter]
	switch {
	case len(text) > maxPivot:
		f.start = max(quarter, (len(text)-maxPivot)/2)
		f.pivot = f.text[f.start:][:min(len(middle), maxPivot)]
		f.minMatch = len(f.pivot)
	case period(middle) > len(middle)/4:
		f.pivot, f.start, f.minMatch = middle, quarter, len(text)-quarter
	}
	return f
}

// needed returns the length of the text that a view must contain as a whole so that the form is found, in bytes.
func (f *form) needed() int { return min(len(f.text), maxPivot) }

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

// hit is a part of a text that equals a part of a form.
type hit struct {
	span
	// before and after are the numbers of bytes of the form that may be before and after the hit, beyond the view.
	before, after int
}

// find yields the parts of a view that equal a part of the form and count.
func (f *form) find(v *view) iter.Seq[hit] {
	return func(yield func(hit) bool) {
		text := f.textOf(v)
		for at := 0; ; {
			i := bytes.Index(text[at:], f.pivot)
			if i < 0 {
				return
			}
			pivot := at + i
			before := commonEnd(text[:pivot], f.text[:f.start])
			end := f.start + len(f.pivot)
			after := commonBegin(text[pivot+len(f.pivot):], f.text[end:])
			from, to := pivot-before, pivot+len(f.pivot)+after
			at = pivot + 1
			if to-from < f.minMatch || len(f.text) < window && !v.isContiguous(from, to) {
				continue
			}
			at = to
			var h hit
			if len(f.text) > maxPivot {
				// An escape may be cut at the border of the view, so the bytes at the border are left to extend.
				if from < reach {
					before = max(0, pivot-reach)
					from, h.before = pivot-before, f.start-before
				}
				if to > len(text)-reach {
					after = max(0, len(text)-reach-pivot-len(f.pivot))
					to, h.after = pivot+len(f.pivot)+after, len(f.text)-end-after
				}
			}
			h.span = v.source(from, to)
			if !yield(h) {
				return
			}
		}
	}
}

// extend extends a hit beyond the view in which it was found, as far as the text equals the form. The view was made
// with a number of rounds of removing escapes. extend looks at one short part of the text after the other.
func (f *form) extend(vs *views, text string, rounds int, h hit) span {
	for h.after > 0 {
		end := h.to + visible(text[h.to:], reach*maxPivot)
		v := vs.after(text[h.to:end], rounds)
		compared := f.textOf(v)
		if end < len(text) {
			compared = compared[:max(0, len(compared)-reach)] // the rest may have a part of an escape
		}
		n := commonBegin(compared, f.text[len(f.text)-h.after:])
		if n == 0 {
			break
		}
		h.to += int(v.to[n-1])
		h.after -= n
	}
	for h.before > 0 {
		begin := visibleBefore(text[:h.from], reach*maxPivot)
		v := vs.after(text[begin:h.from], rounds)
		compared := f.textOf(v)
		if begin > 0 {
			compared = compared[min(len(compared), reach):]
		}
		n := commonEnd(compared, f.text[:h.before])
		if n == 0 {
			break
		}
		h.from = begin + int(v.from[len(v.from)-n])
		h.before -= n
	}
	return h.span
}

// commonBegin returns the length of the common beginning of two texts.
func commonBegin(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// commonEnd returns the length of the common end of two texts.
func commonEnd(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
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
