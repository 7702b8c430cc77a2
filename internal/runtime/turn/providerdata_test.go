package turn_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestProviderDataInASession checks that a later Turn of a Session receives provider data only if the data is lasting,
// and only if the Turn asks the model that made it.
func TestProviderDataInASession(t *testing.T) {
	for name, tc := range map[string]struct {
		lasting bool
		next    string
		want    string
	}{
		"not lasting":   {false, "p0", ""},
		"lasting":       {true, "p0", "I think."},
		"another model": {true, "p1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := journals["memory"](t)
			asks := calls("", call("c1", "find"))
			asks.ToolCalls[0].ProviderData = json.RawMessage(`{"s":1}`)
			asks.ProviderData = &model.ProviderData{Format: "test", Lasting: tc.lasting, Text: "I think."}
			c, _ := candidate("p0", 1, answer{reply: asks}, says("It is here."))
			in := inTalk("a", "Where is it?", c)
			in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("in the shed"))}
			mustRun(t, j, in)
			c, s := candidate(tc.next, 1, says("You are welcome."))
			mustRun(t, j, inTalk("b", "Thanks.", c))
			text, call := "", ""
			for _, m := range s.requests[0].Messages {
				if len(m.ToolCalls) > 0 {
					call = string(m.ToolCalls[0].ProviderData)
					if d := m.ProviderData; d != nil {
						text = d.Text
					}
				}
			}
			want := []string{tc.want, ""}
			if tc.want != "" {
				want[1] = `{"s":1}`
			}
			if diff := cmp.Diff(want, []string{text, call}); diff != "" {
				t.Errorf("data in the next Turn: -want +got:\n%s", diff)
			}
		})
	}
}
