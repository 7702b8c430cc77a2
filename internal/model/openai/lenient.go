package openai

import (
	"encoding/json"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/lenient"
)

// arguments are the arguments of a call: a text, or the JSON value itself.
type arguments string

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (a *arguments) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, (*string)(a)) != nil {
		*a = arguments(data)
	}
	return nil
}

// prose is a text, or a list of parts. Mistral sends the reasoning as a part.
type prose struct{ text, reasoning string }

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (c *prose) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &c.text) == nil {
		return nil
	}
	var parts lenient.List[lenient.Maybe[struct {
		Text     lenient.Maybe[string] `json:"text"`
		Thinking thinking              `json:"thinking"`
	}]]
	_ = json.Unmarshal(data, &parts) // content of another form counts as absent
	var text, reasoning strings.Builder
	for _, part := range parts {
		text.WriteString(part.Value.Text.Value)
		reasoning.WriteString(string(part.Value.Thinking))
	}
	c.text, c.reasoning = text.String(), reasoning.String()
	return nil
}

// thinking is the reasoning in a part: a text, or again a list of parts.
type thinking string

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (t *thinking) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, (*string)(t)) == nil {
		return nil
	}
	var parts lenient.List[lenient.Maybe[struct {
		Text string `json:"text"`
	}]]
	_ = json.Unmarshal(data, &parts) // reasoning of another form counts as absent
	var text strings.Builder
	for _, part := range parts {
		text.WriteString(part.Value.Text)
	}
	*t = thinking(text.String())
	return nil
}
