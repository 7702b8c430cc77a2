package verdicts_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/verdicts"
)

func TestRequest(t *testing.T) {
	q := verdicts.Question{Name: "check", Instruction: "Decide.", Schema: `{"type":"object"}`, Parts: []string{"one", "two"}}
	want := model.Request{Messages: []model.Message{
		{Role: model.RoleSystem, Name: "check", Content: "Decide."}, {Role: model.RoleUser, Name: "check", Content: "one\n\ntwo"},
	}}
	if diff := cmp.Diff(want, q.Request(false)); diff != "" {
		t.Errorf("an endpoint without schemas: -want +got:\n%s", diff)
	}
	want.Output = []byte(`{"type":"object"}`)
	if diff := cmp.Diff(want, q.Request(true)); diff != "" {
		t.Errorf("an endpoint with schemas: -want +got:\n%s", diff)
	}
}

func TestRead(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		reply  model.Reply
		want   bool
	}{
		"JSON":       {"the reply has the form", model.Reply{Text: `{"good": true}`}, true},
		"code block": {"many models write a code block", model.Reply{Text: "```json\n{\"good\": true}\n```"}, true},
		"thoughts":   {"reasoning comes first", model.Reply{Text: "<think>hm</think>{\"good\": true}"}, true},
		"quotes":     {"the JSON may be quoted from the answer", model.Reply{Text: `The answer says {"good": true}`}, false},
		"other type": {"the type of a field is wrong", model.Reply{Text: `{"good": "yes"}`}, false},
		"cut off":    {"the rest is missing", model.Reply{Text: `{"good": true}`, FinishReason: model.FinishLength}, false},
		"refusal":    {"the model does not decide", model.Reply{Text: `{"good": true}`, FinishReason: model.FinishRefusal}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var parsed struct{ Good bool }
			if got := verdicts.Read(&tc.reply, &parsed); got != tc.want || got != parsed.Good {
				t.Errorf("Read = %t with %+v, want %t: %s", got, parsed, tc.want, tc.reason)
			}
		})
	}
}

func TestReason(t *testing.T) {
	if got := verdicts.Reason("  It\nis\x1b[31m rude.\u202e "); got != "It is[31m rude." {
		t.Errorf("Reason = %q, want one line without control characters", got)
	}
	if n := len(verdicts.Reason(strings.Repeat("a", 10_000))); n != verdicts.MaxReasonChars {
		t.Errorf("the reason of a long text has %d characters, want %d", n, verdicts.MaxReasonChars)
	}
}
