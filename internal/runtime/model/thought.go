package model

import "strings"

const thoughtOpens, thoughtCloses = "<think>", "</think>"

// SplitThought parts a text from the reasoning that stands before it as <think>...</think>, as models write it whose endpoint does not
// part the two. A text without such reasoning is returned as it is. Reasoning that is not closed is all of the text if the text was
// cut off, and none of it otherwise.
func SplitThought(text string, cutOff bool) (thought, rest string) {
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
