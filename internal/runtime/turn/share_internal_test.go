package turn

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// stricter is a toolbox that returns stricter effects for all tools.
type stricter struct{ Toolbox }

func (stricter) Effect(context.Context, tool.Tool) (tool.Effect, error) { return tool.Destructive, nil }

func entryOf(t *testing.T, kind journal.Kind, payload any) journal.Entry {
	t.Helper()
	data, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	return journal.Entry{Kind: kind, Payload: data}
}

// TestTurnsShareEqualValues checks that Turns share equal values, and that a Turn that changes a value does not change
// it for other Turns.
func TestTurnsShareEqualValues(t *testing.T) {
	exposure := tool.Exposure{EffectsDeclared: true, Tools: []tool.Tool{
		{
			Tool: prompt.Tool{Name: "find"}, Schema: json.RawMessage(`{"type":"object"}`), Effect: tool.ReadOnly,
			Source: tool.Source{Server: "tickets", Name: "find"},
		},
	}}
	prepared := prepare.Prepared{Prompt: prepare.Prompt{Tools: []prompt.Tool{{Name: "find"}}, Messages: []model.Message{
		{Role: model.RoleSystem, Content: strings.Repeat("Be brief. ", 100)},
		{Role: model.RoleUser, Content: strings.Repeat("Hello. ", 100)},
	}}}
	var runs [2]*run
	for i := range runs {
		runs[i] = &run{in: &Input{}, life: t.Context()}
		for _, e := range []journal.Entry{
			entryOf(t, journal.ToolsExposed, exposure),
			entryOf(t, journal.Prepared, preparedRecord{Prepared: &prepared}),
		} {
			if err := runs[i].apply(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	a, b := &runs[0].replayed, &runs[1].replayed
	if &a.exposure.Tools[0] != &b.exposure.Tools[0] || &a.prompt.Tools[0] != &b.prompt.Tools[0] {
		t.Error("two Turns hold the same tools twice")
	}
	if a.shares.texts == nil || a.shares.texts[0] != b.shares.texts[0] || len(a.shares.texts) != 1 {
		t.Error("two Turns hold the same system prompt twice, or share the message of a user")
	}
	runs[0].in.Toolbox = stricter{}
	if err := runs[0].tighten(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.exposure.Tools[0].Effect != tool.Destructive || b.exposure.Tools[0].Effect != tool.ReadOnly {
		t.Errorf("the effects are %s and %s, want Destructive for the Turn with the stricter effect, and ReadOnly for the other",
			a.exposure.Tools[0].Effect, b.exposure.Tools[0].Effect)
	}
}
