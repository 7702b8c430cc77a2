package model

import "strings"

const thoughtOpens, thoughtCloses = "<think>", "</think>"

// SplitReasoning separates a text from the reasoning that precedes it as <think>...</think>. Models write this form if
// their endpoint does not separate reasoning itself. A text without such reasoning is returned unchanged. If the
// closing tag is missing and cutOff is true, the whole text is reasoning. If it is missing and cutOff is false, the
// text is returned unchanged.
//
// The chat templates of some models end with the opening tag, so that the model writes only the rest of its reasoning:
// github.com/deepseek-ai/DeepSeek-R1/issues/526. So the opening tag may be missing, too: see splitUnopened.
func SplitReasoning(text string, cutOff bool) (thought, rest string) {
	return splitReasoning(text, cutOff, false)
}

// SplitUnanswered is SplitReasoning for a text that needs no answer after its reasoning, because the reply was cut
// off or makes calls.
func SplitUnanswered(text string) (thought, rest string) { return splitReasoning(text, true, true) }

func splitReasoning(text string, cutOff, mayLackAnswer bool) (thought, rest string) {
	opened, ok := strings.CutPrefix(strings.TrimLeft(text, " \t\r\n"), thoughtOpens)
	if !ok {
		return splitUnopened(text, mayLackAnswer)
	}
	thought, rest, closed := strings.Cut(opened, thoughtCloses)
	if !closed && !cutOff {
		return "", text
	}
	return strings.TrimSpace(thought), strings.TrimLeft(rest, " \t\r\n")
}

// splitUnopened is SplitReasoning for a text that does not begin with an opening tag. An answer may mention the tags.
// So the text before a closing tag is reasoning only if no other tag is in the text, the line ends with the closing
// tag, and an answer follows, unless mayLackAnswer is true.
func splitUnopened(text string, mayLackAnswer bool) (thought, rest string) {
	thought, rest, closed := strings.Cut(text, thoughtCloses)
	line, answer, _ := strings.Cut(rest, "\n")
	switch {
	case !closed, strings.TrimSpace(line) != "", strings.TrimSpace(answer) == "" && !mayLackAnswer,
		strings.Contains(text, thoughtOpens), strings.Contains(answer, thoughtCloses):
		return "", text
	}
	return strings.TrimSpace(thought), strings.TrimLeft(answer, " \t\r\n")
}
