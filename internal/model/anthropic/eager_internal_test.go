package anthropic

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestArgumentsAsTheyAreWritten checks that only Anthropic's own endpoint is asked to send arguments while the model
// writes them. Other servers may refuse the field.
func TestArgumentsAsTheyAreWritten(t *testing.T) {
	req := &model.Request{
		Model: "m", Messages: []model.Message{{Role: model.RoleUser, Content: "a"}},
		Tools: []model.Tool{{Name: "a"}, {Name: "b"}}, Output: json.RawMessage(`{"type":"object"}`),
	}
	for url, want := range map[string]int{
		"https://api.anthropic.com/v1": 3, "https://API.anthropic.com:443": 3, "https://llm.internal/api.anthropic.com/v1": 0,
		"https://api.anthropic.com.example.com/v1": 0, "https://api.moonshot.ai/anthropic/v1": 0,
	} {
		for _, isStrict := range []bool{false, true} {
			p := protocolOf(&Config{Config: endpoint.Config{BaseURL: url}, Options: Options{StrictSchemas: isStrict}})
			body, err := p.Body(req, new(endpoint.Contents))
			if isStrict {
				want = 0 // the endpoint must check the arguments
			}
			if got := strings.Count(string(body), `"eager_input_streaming":true`); got != want || err != nil {
				t.Errorf("%s, strict %t: %d tools with eager_input_streaming (error %v), want %d", url, isStrict, got, err, want)
			}
		}
	}
}
