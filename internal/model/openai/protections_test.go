package openai_test

import (
	"encoding/json"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/modeltest"
	"github.com/capstan-dev/capstan/internal/model/openai"
)

// TestProtections checks that the adapter protects the process as every adapter does.
func TestProtections(t *testing.T) {
	modeltest.RunProtections(t, modeltest.Wire{
		New: func(cfg endpoint.Config) *endpoint.Provider { return openai.New(openai.Config{Config: cfg}) },
		End: events(finishEvent("stop"), "[DONE]"),
		Text: func(piece string) string {
			data, err := json.Marshal(piece)
			if err != nil {
				t.Error(err)
			}
			return events(delta(`"content":` + string(data)))
		},
		Call: func(n int, arguments string) string { return events(callPart(n, "", "count", arguments)) },
	})
}
