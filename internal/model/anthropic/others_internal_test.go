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

// TestUnsignedThoughtsOfKimi checks that the unsigned thoughts of Kimi are kept for later requests, and those of other
// models are not.
func TestUnsignedThoughtsOfKimi(t *testing.T) {
	for name, tc := range map[string]struct {
		baseURL, model string
		kept           bool
	}{
		"Moonshot":           {"https://api.moonshot.cn/anthropic/v1", "k3", true},
		"Kimi for coding":    {"https://api.kimi.com/coding/v1", "k3-256k", true},
		"Kimi elsewhere":     {"https://gateway.example/v1", "moonshotai/Kimi-K2.6", true},
		"DeepSeek":           {"https://api.deepseek.com/anthropic/v1", "deepseek-v4-pro", false},
		"Claude":             {"https://gateway.example/v1", "claude-sonnet-4-6", false},
		"alias at Anthropic": {"https://api.anthropic.com/v1", "sonnet", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := protocolOf(&Config{Config: endpoint.Config{BaseURL: tc.baseURL}}).NewDecoder(&model.Request{Model: tc.model}).(*decoder)
			var out endpoint.Answer
			for _, event := range []string{
				`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}`,
				`{"type":"content_block_stop","index":0}`,
				`{"type":"content_block_start","index":1,"content_block":{"type":"thinking","thinking":""}}`,
				`{"type":"content_block_stop","index":1}`,
				`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"a","name":"find","input":{}}}`,
				`{"type":"content_block_stop","index":2}`,
				`{"type":"message_delta","delta":{"stop_reason":"tool_use"}}`,
			} {
				if _, err := d.Decode([]byte(event), &out); err != nil {
					t.Fatal(err)
				}
			}
			data, want := d.ProviderData(&out), `[{"thought":{"thinking":"Hm.","type":"thinking"}},{"call":true}]`
			if !tc.kept && data != nil || tc.kept && (data == nil || string(data.Blocks) != want) {
				t.Errorf("the data is %+v; want %s if kept is true: %t", data, want, tc.kept)
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
