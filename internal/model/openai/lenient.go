package openai

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// The types of this file read a part of an answer in every form that servers send. A form that is not known counts as
// absent: it must not make the rest of a reply, which was paid for, unreadable.

// maybe is a value that is absent if it is null or has another type.
type maybe[T any] struct {
	value T
	given bool
}

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (m *maybe[T]) UnmarshalJSON(data []byte) error {
	var value T
	if string(data) != "null" && json.Unmarshal(data, &value) == nil {
		m.value, m.given = value, true
	}
	return nil
}

// number is a number of tokens, or an index. Servers send it as an integer, as a fraction, or in quotes.
type number int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(data []byte) error {
	value, err := strconv.ParseFloat(strings.Trim(string(data), `"`), 64)
	if value > 0 { // which NaN is not
		*n = number(math.Round(min(value, float64(model.MaxTokens))))
	}
	return err
}

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
	var parts []maybe[struct {
		Text     maybe[string] `json:"text"`
		Thinking thinking      `json:"thinking"`
	}]
	_ = json.Unmarshal(data, &parts) // content of another form is none
	var text, reasoning strings.Builder
	for _, part := range parts {
		text.WriteString(part.value.Text.value)
		reasoning.WriteString(string(part.value.Thinking))
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
	var parts []maybe[struct {
		Text string `json:"text"`
	}]
	_ = json.Unmarshal(data, &parts) // reasoning of another form is none
	var text strings.Builder
	for _, part := range parts {
		text.WriteString(part.value.Text)
	}
	*t = thinking(text.String())
	return nil
}
