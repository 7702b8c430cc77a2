package loop_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// unsendable lists arguments that strict endpoints refuse in a request, by the reason.
var unsendable = map[string]string{
	"no JSON": `{"n":`, "prose": `n is 1`, "a text": `"n"`, "a list": `[1]`, "a number": `1`, "null": `null`,
	"nothing": ``, "two objects": `{} {}`,
	"too deep": strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2000), "a huge number": `{"n":1e999}`,
	"huge": `{"n":"` + strings.Repeat("x", 1<<20) + `"}`,
}

// TestUnsendableArguments checks that the journal keeps unsendable arguments, but no request contains them: neither the
// next request of the Turn nor a request of a later Turn with this history.
func TestUnsendableArguments(t *testing.T) {
	for name, arguments := range unsendable {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, asksFor("", call("c1", "find", arguments), call("c2", "find", `{"n":1}`)), says("Done."))
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			in := withHistory(withTools(input(t, c), find),
				model.Message{Role: model.RoleUser, Content: "Before."},
				model.Message{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{call("c0", "find", arguments)}},
				model.Message{Role: model.RoleTool, ToolCallID: "c0", Content: "found"},
				model.Message{Role: model.RoleAssistant, Content: "There."})
			if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
				t.Fatalf("Run = %+v, %v; want the answer", end, err)
			}
			for i, r := range s.requests {
				sent := map[string]string{}
				for _, m := range r.Messages {
					for _, c := range m.ToolCalls {
						sent[c.ID] = c.Arguments
					}
				}
				want := map[string]string{"c0": "{}"}
				if i > 0 {
					want["c1"], want["c2"] = "{}", `{"n":1}`
				}
				if diff := cmp.Diff(want, sent); diff != "" {
					t.Errorf("arguments in request %d: -want +got:\n%s", i+1, diff)
				}
				if !answersEachCall(r.Messages) {
					t.Errorf("request %d does not answer each call once", i+1)
				}
			}
			if kept := in.State.Steps[0].Reply.ToolCalls[0].Arguments; kept != arguments {
				t.Errorf("the journal has %.80q, want what the model wrote", kept)
			}
		})
	}
}

// TestChangedArgumentsInRequests checks in which form the next request contains the arguments of a call. Arguments that
// not every parser can read are replaced by the repaired arguments, or by an equal form that every parser can read.
func TestChangedArgumentsInRequests(t *testing.T) {
	for name, tc := range map[string]struct{ reason, arguments, want string }{
		"a text that holds the object": {"the request contains the repaired object", `"{\"n\":1}"`, `{"n":1}`},
		"half a surrogate":             {"half a surrogate pair becomes U+FFFD", `{"s":"\ud83d","n":1}`, "{\"n\":1,\"s\":\"\uFFFD\"}"},
		"a surrogate pair":             {"a surrogate pair is one character", `{"s":"\ud83d\ude00"}`, `{"s":"😀"}`},
		"any other object":             {"any other object stays unchanged", ` {"n" : 1}`, ` {"n" : 1}`},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, asksFor("", call("c1", "find", tc.arguments)), says("Done."))
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			find.Schema = json.RawMessage(`{"type":"object"}`)
			if _, err := loop.Run(t.Context(), new(withTools(input(t, c), find))); err != nil {
				t.Fatal(err)
			}
			if got := s.requests[1].Messages[2].ToolCalls[0].Arguments; got != tc.want {
				t.Errorf("the arguments are sent as %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestCallWithoutOfferedTools checks that gate 1 refuses the call and the model is asked again.
func TestCallWithoutOfferedTools(t *testing.T) {
	c, s := candidate("one", 3, asksFor("I look.", call("c1", "find", `{}`)), says("Done."))
	in := input(t, c)
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.Answered || len(s.requests) != 2 {
		t.Fatalf("Run = %+v, %v after %d requests; want the answer to the second", end, err, len(s.requests))
	}
	want := []string{
		"assistant: I look. [c1 find {}]",
		`tool c1: error (unavailable): there is no tool "find": no tools are available, so answer without tools`,
	}
	if diff := cmp.Diff(want, transcript(s.requests[1])); diff != "" {
		t.Errorf("the model received: -want +got:\n%s", diff)
	}
}

// TestRejectedLastReplyWithCalls checks that the calls of a rejected last reply have results in the next
// request.
func TestRejectedLastReplyWithCalls(t *testing.T) {
	c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), asksFor("I would look again.", call("c2", "find", `{}`)),
		says(validAnswer))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(input(t, c), find)
	in.Limits.MaxSteps, in.Output = 1, capitalSchema(t)
	end, err := loop.Run(t.Context(), &in)
	if err != nil || len(s.requests) != 3 {
		t.Fatalf("Run = %+v, %v after %d requests; want the end after the third", end, err, len(s.requests))
	}
	if last := s.requests[2]; !answersEachCall(last.Messages) || in.State.Outcomes()[loop.Refused] != 1 {
		t.Errorf("the model received %v, want an answer to each call", transcript(last))
	}
}
