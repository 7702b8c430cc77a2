package model

import (
	"encoding/json"
	"strings"
)

// JSONAnswer extracts the JSON of a structured answer. The text must be one JSON value, optionally in one Markdown code
// block; reasoning before it is skipped, as SplitReasoning finds it. For any other text, JSONAnswer returns false. It
// does not check the value against a schema.
func JSONAnswer(text string) (json.RawMessage, bool) {
	_, text = SplitReasoning(text, false)
	text = strings.TrimSpace(text)
	if opened, ok := strings.CutPrefix(text, "```"); ok {
		language, body, _ := strings.Cut(opened, "\n")
		body, closed := strings.CutSuffix(strings.TrimRight(body, " \t\r\n"), "```")
		if language = strings.TrimSpace(language); !closed || language != "" && !strings.EqualFold(language, "json") {
			return nil, false
		}
		text = strings.TrimSpace(body)
	}
	if !json.Valid([]byte(text)) {
		return nil, false
	}
	return json.RawMessage(text), true
}
