// Package genai has names of OpenTelemetry's conventions for generative AI that spans and metrics share.
package genai

import "github.com/capstan-dev/capstan/internal/runtime/loop"

// ProviderName returns the value of gen_ai.provider.name for a model: the protocol of its endpoint, because a
// compatible server does not say whose models it serves. It is empty if the model or its protocol is not known.
func ProviderName(c *loop.Candidate) string {
	if c == nil {
		return ""
	}
	switch c.Protocol {
	case "OpenAI":
		return "openai"
	case "Anthropic":
		return "anthropic"
	}
	return ""
}

// OperationName returns the value of gen_ai.operation.name for a request to a model. c is nil if the model is not
// known.
func OperationName(r *loop.Request, c *loop.Candidate) string {
	if r.Purpose == loop.ForEmbedding || c != nil && c.Embeds {
		return "embeddings"
	}
	return "chat"
}
