package prepare_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// TestHistoryWithTools checks that the history is unchanged and that each call stays with its result.
func TestHistoryWithTools(t *testing.T) {
	calls := []model.ToolCall{{ID: "c1", Name: "find", Arguments: `{"n": <1>}`}, {ID: "c2", Name: "send", Arguments: "no JSON {{ .x }}"}}
	p := mustPrepare(t, input(func(in *prepare.Input) {
		in.Turn.History = []prepare.HistoryMessage{
			{Role: model.RoleUser, Content: "Where is it?"},
			{Role: model.RoleAssistant, ToolCalls: calls},
			{Role: model.RoleTool, Content: "in the shed", ToolCallID: "c1"},
			{Role: model.RoleTool, ToolCallID: "c2"},
			{Role: model.RoleAssistant, Content: "In the shed."},
		}
	}))
	want := []model.Message{
		{Role: model.RoleUser, Name: "history", Content: "Where is it?"},
		{Role: model.RoleAssistant, Name: "history", ToolCalls: calls},
		{Role: model.RoleTool, Name: "history", Content: "in the shed", ToolCallID: "c1"},
		{Role: model.RoleTool, Name: "history", ToolCallID: "c2"},
		{Role: model.RoleAssistant, Name: "history", Content: "In the shed."},
	}
	if diff := cmp.Diff(want, p.Messages[2:7]); diff != "" || len(p.Messages) != 8 {
		t.Errorf("%d messages: -want +got:\n%s", len(p.Messages), diff)
	}
	var back prepare.Prepared
	if err := json.Unmarshal([]byte(asJSON(t, p)), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.Messages, back.Messages); diff != "" {
		t.Errorf("messages after a round trip through JSON: -want +got:\n%s", diff)
	}
	// A later change by the caller must not change the prompt.
	calls[0].Arguments = "changed"
	if got := p.Messages[3].ToolCalls[0].Arguments; got != `{"n": <1>}` {
		t.Errorf("the prompt has the arguments %q, want them unchanged", got)
	}
}
