package openai_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/modeltest"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// dialectNames are the names of all dialects. A directory of the corpus has the name of its dialect in lower case.
var dialectNames = []string{
	"Generic", "OpenAI", "AzureOpenAI", "VLLM", "SGLang", "Ollama", "LlamaCpp", "LMStudio", "LiteLLM", "Mistral", "DeepSeek",
	"Moonshot", "Gemini", "OpenRouter", "XAI", "Groq", "Cohere", "Bedrock",
}

// TestCorpus replays the answers of all services that speak the protocol, each to its own dialect.
func TestCorpus(t *testing.T) {
	directories, err := modeltest.Directories()
	if err != nil {
		t.Fatal(err)
	}
	if len(directories) != len(dialectNames)+1 { // anthropic has a protocol of its own
		t.Errorf("there are %d directories and %d dialects: add a directory for each dialect", len(directories), len(dialectNames))
	}
	for _, name := range dialectNames {
		modeltest.Run(t, strings.ToLower(name), func(t *testing.T, url string) model.Provider {
			return provider(t, url, withDialect(openai.DialectOf(name, "")))
		})
	}
}
