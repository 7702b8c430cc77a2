package model_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestRedactedProviderData(t *testing.T) {
	redact := func(text string) string { return strings.ReplaceAll(text, "secret", "[redacted]") }
	signed := json.RawMessage(`[{"thinking":"I look. <b>","signature":"c2lnbg=="}]`)
	for name, tc := range map[string]struct {
		reason     string
		data, want *model.ProviderData
	}{
		"none":   {"there is nothing to redact", nil, nil},
		"text":   {"text is redacted like all texts", &model.ProviderData{Text: "a secret"}, &model.ProviderData{Text: "a [redacted]"}},
		"signed": {"a signature fits only the same bytes", &model.ProviderData{Blocks: signed}, &model.ProviderData{Blocks: signed}},
		"a leak": {"changed blocks would be refused", &model.ProviderData{Format: "f", Blocks: json.RawMessage(`["secret"]`)}, nil},
		"leak in the blocks": {
			"the rest stays",
			&model.ProviderData{Text: "a", Blocks: json.RawMessage(`["secret"]`)}, &model.ProviderData{Text: "a"},
		},
		"no bytes": {"the mark itself may matter", &model.ProviderData{Format: "f"}, &model.ProviderData{Format: "f"}},
	} {
		t.Run(name, func(t *testing.T) {
			reply := model.Reply{ProviderData: tc.data}
			reply.Redact(redact)
			if diff := cmp.Diff(tc.want, reply.ProviderData); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
	reply := model.Reply{ToolCalls: []model.ToolCall{
		{ID: "a", ProviderData: signed}, {ID: "b", ProviderData: json.RawMessage(`"secret"`)},
	}}
	reply.Redact(redact)
	want := []model.ToolCall{{ID: "a", ProviderData: signed}, {ID: "b"}}
	if diff := cmp.Diff(want, reply.ToolCalls); diff != "" {
		t.Errorf("data of calls: -want +got:\n%s", diff)
	}
}
