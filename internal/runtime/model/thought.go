package model

import "strings"

const thoughtOpens, thoughtCloses = "<think>", "</think>"

// SplitReasoning separates a text from the reasoning that precedes it as <think>...</think>. Models write this form if
// their endpoint does not separate reasoning itself. A text without such reasoning is returned unchanged. If the
// closing tag is missing and cutOff is true, the whole text is reasoning. If it is missing and cutOff is false, the
// text is returned unchanged.
func SplitReasoning(text string, cutOff bool) (thought, rest string) {
	opened, ok := strings.CutPrefix(strings.TrimLeft(text, " \t\r\n"), thoughtOpens)
	if !ok {
		return "", text
	}
	thought, rest, closed := strings.Cut(opened, thoughtCloses)
	if !closed && !cutOff {
		return "", text
	}
	return strings.TrimSpace(thought), strings.TrimLeft(rest, " \t\r\n")
}
