package openai_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/modeltest"
	"github.com/capstan-dev/capstan/internal/model/openai"
)

// TestProtections checks that the adapter protects the process as every adapter does.
func TestProtections(t *testing.T) {
	var members strings.Builder
	for n := range 200_000 {
		_, _ = fmt.Fprintf(&members, `"%d":1,`, n) // which never fails
	}
	members.WriteString(`"index":0`)
	modeltest.RunProtections(t, modeltest.Wire{
		New: func(cfg endpoint.Config) *endpoint.Provider {
			return openai.New(openai.Config{Config: cfg, Dialect: openai.Dialect{Returned: openai.ReturnReasoningDetails}})
		},
		End: events(finishEvent("stop"), "[DONE]"),
		Text: func(piece string) string {
			data, err := json.Marshal(piece)
			if err != nil {
				t.Error(err)
			}
			return events(delta(`"content":` + string(data)))
		},
		Call: func(n int, arguments string) string { return events(callPart(n, "", "count", arguments)) },
		Lists: map[string]string{
			"choices":          events(`{"choices":[` + modeltest.Elements(`{}`) + `]}`),
			"calls":            events(delta(`"tool_calls":[` + modeltest.Elements(`{}`) + `]`)),
			"parts":            events(delta(`"content":[` + modeltest.Elements(`{}`) + `]`)),
			"parts of a part":  events(delta(`"content":[{"thinking":[` + modeltest.Elements(`{}`) + `]}]`)),
			"blocks":           events(delta(`"reasoning_details":[` + modeltest.Elements(`{}`) + `]`)),
			"members":          events(delta(`"reasoning_details":[{` + members.String() + `}]`)),
			"errors":           events(`{"error":[` + modeltest.Elements(`1`) + `]}`),
			"errors of errors": events(`{"error":[[` + modeltest.Elements(`1`) + `]]}`),
		},
	})
}
