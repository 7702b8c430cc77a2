package anthropic

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestThoughtsLastForOtherModels checks that later Turns send the thoughts of the models of other makers, which refuse
// calls without their thoughts also in earlier Turns. Claude does not need them.
func TestThoughtsLastForOtherModels(t *testing.T) {
	for name, tc := range map[string]struct {
		baseURL, model string
		lasting        bool
	}{
		"Anthropic":          {"https://api.anthropic.com/v1", "claude-sonnet-4-6", false},
		"Claude elsewhere":   {"https://gateway.example/v1", "anthropic.claude-sonnet-4-6", false},
		"alias at Anthropic": {"https://api.anthropic.com/v1", "sonnet", false},
		"DeepSeek":           {"https://api.deepseek.com/anthropic/v1", "deepseek-v4-pro", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := protocolOf(&Config{Config: endpoint.Config{BaseURL: tc.baseURL}})
			d := p.NewDecoder(&model.Request{Model: tc.model})
			answer := `{"type":"message","stop_reason":"tool_use","content":[` +
				`{"type":"thinking","thinking":"Hm.","signature":"s"},{"type":"tool_use","id":"a","name":"find","input":{}}]}`
			var out endpoint.Answer
			if _, err := d.Decode([]byte(answer), &out); err != nil {
				t.Fatal(err)
			}
			data := d.(*decoder).ProviderData(&out)
			if data == nil || data.Lasting != tc.lasting {
				t.Errorf("the data is %+v, but lasting should be %t", data, tc.lasting)
			}
		})
	}
}

// TestRefusedPropertyNames checks that properties whose names the protocol refuses are left out of a tool's schema, and
// that all other schemas stay the same, also those of answers.
func TestRefusedPropertyNames(t *testing.T) {
	for name, tc := range map[string]struct{ schema, want string }{
		"allowed": {
			`{"type":"object","properties":{"filter.id":{"type":"string"},"a_B-9":{}}}`,
			`{"type":"object","properties":{"filter.id":{"type":"string"},"a_B-9":{}}}`,
		},
		"refused": {
			`{"type":"object","properties":{"$top":{"type":"integer"},"filter[id]":{},"q":{"type":"string"}},"required":["$top","q"]}`,
			`{"properties":{"q":{"type":"string"}},"required":["q"],"type":"object"}`,
		},
		"only refused": {
			`{"type":"object","properties":{"$top":{}},"required":["$top"]}`, `{"properties":{},"required":[],"type":"object"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := toolSchema([]byte(tc.schema), false)
			if err != nil || string(got) != tc.want {
				t.Errorf("got %s, %v; want %s", got, err, tc.want)
			}
			if got, err := toolSchema([]byte(tc.schema), true); err != nil || string(got) != tc.schema {
				t.Errorf("an answer: got %s, %v; want the schema unchanged", got, err)
			}
		})
	}
}
