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
