package openai

import (
	"cmp"
	"encoding/json"

	api "github.com/sashabaranov/go-openai"
)

// chunk is an event of a stream. It extends the library's type with the model's reasoning, which servers send under
// two names.
type chunk struct {
	api.ChatCompletionStreamResponse
	Choices []choice `json:"choices"`
	// Error is an error of the endpoint instead of the next part of the answer.
	Error json.RawMessage `json:"error"`
}

type choice struct {
	api.ChatCompletionStreamChoice
	Delta delta `json:"delta"`
	// Message is sent by some servers instead of a delta. Only its refusal is read.
	Message struct {
		Refusal string `json:"refusal"`
	} `json:"message"`
}

type delta struct {
	api.ChatCompletionStreamChoiceDelta
	// Reasoning is a string from OpenRouter and newer versions of vLLM. Other servers may send any other type.
	Reasoning json.RawMessage `json:"reasoning"`
}

func chunkOf(event []byte) (chunk, error) {
	var c chunk
	err := json.Unmarshal(event, &c)
	return c, err
}

// reasoning returns the reasoning in an event. A server that sends both names sends the same text under each.
func (d delta) reasoning() string {
	var text string
	if len(d.Reasoning) > 0 && json.Unmarshal(d.Reasoning, &text) != nil {
		text = ""
	}
	return cmp.Or(d.ReasoningContent, text)
}
