package endpoint

import (
	"net/http"
	"regexp"
	"strings"
)

// overflowCodes are parts of the codes of errors about a prompt that is longer than the context window. The first is of
// OpenAI and most other servers, the second of llama.cpp, the third of Anthropic for a request with too many bytes, and
// the fourth of GitHub Copilot.
var overflowCodes = []string{"context_length", "exceed_context", "request_too_large", "max_prompt_tokens_exceeded"}

// overflowMessages are parts of the messages of such errors, in lower case. Most servers have no code for these errors,
// and send them with any status. The corpus of package modeltest has an error of each server, and its source.
var overflowMessages = []string{
	"maximum context length",               // OpenAI, Azure, vLLM, DeepSeek, OpenRouter, Mistral
	"reduce the length of the",             // OpenAI, Azure, Groq, OpenRouter
	"exceeds the context window",           // OpenAI
	"exceeds the model's context window",   // OpenAI
	"this model's context window",          // OpenAI
	"exceed the configured limit",          // OpenAI, Azure
	"longer than the maximum model",        // vLLM
	"too long to fit into the model",       // vLLM
	"the model's context length",           // vLLM, SGLang
	"max_tokens must be at least 1, got -", // vLLM: the prompt leaves no room for output
	"token count exceeds",                  // SGLang
	"exceeds the maximum allowed length",   // SGLang
	"exceeds the context length",           // Ollama
	"exceeded max context length",          // Ollama
	"available context size",               // llama.cpp
	"is too large to process",              // llama.cpp, 500, for embeddings
	"exceed context window",                // llama.cpp for Python
	"greater than the context length",      // LM Studio
	"context length of only",               // LM Studio
	"context size has been exceeded",       // LM Studio
	"contextwindowexceeded",                // LiteLLM
	"exceeded model token limit",           // Moonshot
	"total message size",                   // Moonshot, for bytes
	"range of input length",                // DashScope
	"context window exceeds limit",         // MiniMax
	"exceeded max_prompt_tokens",           // SiliconFlow
	"exceed max message tokens",            // Volcengine Ark
	"prompt token count of",                // GitHub Copilot
	"exceeded this model context window",   // Cloudflare
	"exceeds maximum input length",         // DeepInfra
	"should not exceed max_num_tokens",     // TensorRT-LLM
	"tokens + `max_new_tokens` must be",    // TGI
	"`inputs` must have less than",         // TGI, and its server of embeddings
	"maximum number of tokens",             // Gemini
	"but model only supports up to",        // Gemini
	"maximum prompt length",                // xAI
	"maximum allowed input length",         // OpenRouter, for Poolside
	"prompt exceeds max length",            // Z.ai
	"more than max tokens allowed",         // Z.ai
	"total number of tokens",               // Cohere
	"input is too long for",                // Bedrock
	"input tokens exceeds maximum length",  // Bedrock, for Nova
	"too many total text bytes",            // Bedrock
	"prompt is too long",                   // Anthropic, Bedrock
	"exceed context limit",                 // Anthropic
	"request too large for",                // Groq and OpenAI: more tokens than they accept in a minute, so waiting does not help
}

// overflowLength matches the message of Volcengine Ark. Errors about other parts of a request, such as the name of a
// tool, also say that something exceeds a maximum length.
var overflowLength = regexp.MustCompile(`input length \d+ exceeds the maximum length`)

// isOverflow reports whether an error means that the prompt is too long. message is the whole message of the error:
// gateways put the message of their provider at its end.
func isOverflow(status int, codes, message string) bool {
	if status == http.StatusRequestEntityTooLarge {
		return true
	}
	for _, code := range overflowCodes {
		if strings.Contains(codes, code) {
			return true
		}
	}
	message = strings.ToLower(message)
	for _, part := range overflowMessages {
		if strings.Contains(message, part) {
			return true
		}
	}
	return overflowLength.MatchString(message)
}
