package openai

import (
	"cmp"
	"encoding/json"

	api "github.com/sashabaranov/go-openai"
)

// chunk is an event of a stream: the library's, with the text of the model's reasoning under each of the names that servers
// give it.
type chunk struct {
	api.ChatCompletionStreamResponse
	Choices []choice `json:"choices"`
}

type choice struct {
	api.ChatCompletionStreamChoice
	Delta delta `json:"delta"`
	// Message is what some servers send in place of a delta. Only its refusal is read.
	Message struct {
		Refusal string `json:"refusal"`
	} `json:"message"`
}

type delta struct {
	api.ChatCompletionStreamChoiceDelta
	// Reasoning is a text, as OpenRouter and newer versions of vLLM send it, and anything else on other servers.
	Reasoning json.RawMessage `json:"reasoning"`
}

func chunkOf(event []byte) (chunk, error) {
	var c chunk
	err := json.Unmarshal(event, &c)
	return c, err
}

// reasoning is the piece of it in an event. A server that sends both names sends the same under each.
func (d delta) reasoning() string {
	var text string
	if len(d.Reasoning) > 0 && json.Unmarshal(d.Reasoning, &text) != nil {
		text = ""
	}
	return cmp.Or(d.ReasoningContent, text)
}
