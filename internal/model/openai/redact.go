package openai

import (
	"encoding/json"
	"html"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxDetail bounds the part of a message that an endpoint wrote, in code points.
	maxDetail = 300
	// maxExamined bounds what is looked at of it, in bytes.
	maxExamined = 16 << 10
	// minSecret is the shortest text that is taken for a secret, in bytes.
	minSecret = 4
	// window is how much of a secret gives it away, in bytes: an endpoint may show a part of a key.
	window = 12

	redacted = "[redacted]"
)

// clean makes a text of the endpoint fit for a message: one line, printable, bounded, and without secrets, which some
// endpoints repeat. Shortening comes last: it could leave a part of a secret.
func (p *Provider) clean(text string) string {
	return shorten(p.redact(oneLine(text[:min(len(text), maxExamined)])))
}

// redact replaces all parts of secrets, also where white space was put into them.
func (p *Provider) redact(text string) string {
	packed, places := pack(text)
	hidden := make([]bool, len(text))
	for _, secret := range p.secrets() {
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

// secrets are the key and the values of secret headers, in the forms in which an endpoint may write them.
func (p *Provider) secrets() []string {
	var all []string
	bare := []string{p.cfg.APIKey}
	for _, h := range p.cfg.Headers {
		if h.Secret {
			bare = append(bare, h.Value)
		}
	}
	for _, secret := range bare {
		forms := []string{secret, url.QueryEscape(secret), html.EscapeString(secret)}
		if quoted, err := json.Marshal(secret); err == nil {
			forms = append(forms, strings.Trim(string(quoted), `"`))
		}
		for _, form := range forms {
			if form, _ := pack(form); len(form) >= minSecret {
				all = append(all, form)
			}
		}
	}
	return all
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
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return strings.Join(strings.Fields(text), " ")
}

func shorten(text string) string {
	if runes := []rune(text); len(runes) > maxDetail {
		return string(runes[:maxDetail]) + "..."
	}
	return text
}
