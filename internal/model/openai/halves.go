package openai

import (
	"bytes"
	"regexp"
)

// halves joins characters whose UTF-16 halves arrive in two events, as the end of a text and as the beginning of the
// next one. Servers that cut texts by UTF-16 units, as in Java and JavaScript, escape each half alone: "\ud83d", then
// "\ude00". Alone, a half is no character, and the decoder of JSON replaces it.
type halves struct {
	// high is the code of the first half that waits for the second one, in hexadecimal, or empty.
	high string
}

// The halves at the end and at the beginning of a text. After an odd number of backslashes, \u is no escape: the text
// itself has an escape, as in the arguments of a call.
var (
	highAtEnd  = regexp.MustCompile(`([^\\](?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})"`)
	lowAtBegin = regexp.MustCompile(`([:,\[\s])"(\\u[dD][c-fC-F][0-9a-fA-F]{2})`)
)

// join returns an event in which texts begin with the whole character, without a first half at the end of texts.
func (h *halves) join(event []byte) []byte {
	if !bytes.Contains(event, []byte(`\u`)) {
		return event
	}
	if h.high != "" && lowAtBegin.Match(event) {
		event = lowAtBegin.ReplaceAll(event, []byte(`${1}"\u`+h.high+`${2}`))
		h.high = ""
	}
	if last := highAtEnd.FindSubmatch(event); last != nil {
		h.high = string(last[2])
		event = highAtEnd.ReplaceAll(event, []byte(`${1}"`))
	}
	return event
}
