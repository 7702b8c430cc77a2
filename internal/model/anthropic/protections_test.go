package anthropic_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/modeltest"
)

// TestProtections checks that the adapter protects the process as every adapter does.
func TestProtections(t *testing.T) {
	quote := func(text string) string {
		data, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	modeltest.RunProtections(t, modeltest.Wire{
		New:   func(cfg endpoint.Config) *endpoint.Provider { return anthropic.New(anthropic.Config{Config: cfg}) },
		Start: "data: {\"type\":\"message_start\",\"message\":{}}\n\n",
		End:   "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
		Text: func(piece string) string {
			return fmt.Sprintf(`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%s}}`+"\n\n",
				quote(piece))
		},
		Call: func(n int, arguments string) string {
			return fmt.Sprintf(`data: {"type":"content_block_start","index":%d,`+
				`"content_block":{"type":"tool_use","id":"a%d","name":"b"}}`+"\n\n"+
				`data: {"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":%s}}`+"\n\n",
				n, n, n, quote(arguments))
		},
		Lists: map[string]string{
			"blocks":              `data: {"type":"message","content":[` + modeltest.Elements(`{}`) + "]}\n\n",
			"blocks at the start": `data: {"type":"message_start","message":{"content":[` + modeltest.Elements(`{}`) + "]}}\n\n",
		},
	})
}
