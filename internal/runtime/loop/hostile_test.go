package loop_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// hostileOutputs returns hostile outputs of tools by name. Some attackers know the nonce of the Turn: their files
// contain @NONCE@ in its place, and @nonce@ in place of its lower-case form.
func hostileOutputs(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/hostile/*.txt")
	if err != nil || len(files) < 25 {
		t.Fatalf("%d hostile outputs (error %v), want the corpus", len(files), err)
	}
	all := map[string]string{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "@NONCE@", nonce)
		all[strings.TrimSuffix(filepath.Base(f), ".txt")] = strings.ReplaceAll(text, "@nonce@", strings.ToLower(nonce))
	}
	return all
}

// TestHostileOutputs runs each hostile output through the whole loop in three forms: as a result, as an error of
// the other side, and as the message of an error, in which Capstan may quote names. The reaction of a model is not
// tested. The test requires that the requests have the same structure as with a harmless output.
func TestHostileOutputs(t *testing.T) {
	for name, output := range hostileOutputs(t) {
		for kind, r := range map[string]result{
			"result": {content: output}, "error": {err: errors.New(output)},
			"message": {err: &tool.Error{Class: tool.Failed, Message: output}},
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				harmless, hostile := runWith(t, result{content: "found"}), runWith(t, r)
				if diff := cmp.Diff(shapes(harmless), shapes(hostile)); diff != "" {
					t.Errorf("the requests have another structure: -harmless +hostile:\n%s", diff)
				}
				received := hostile.requests[1].Messages[3].Content
				checkModelText(t, received)
				switch kind {
				case "result":
					checkFenced(t, received)
				case "error":
					fenced, ok := strings.CutPrefix(received, "error (failed): the tool failed\n")
					if !ok && output != "" {
						t.Errorf("the model received an error as %.200q, want Capstan's line and the fence", received)
					}
					if ok {
						checkFenced(t, fenced)
					}
				case "message":
					if strings.Contains(received, "\n") || !strings.HasPrefix(received, "error (failed): ") {
						t.Errorf("the model received a message as %.200q, want one line", received)
					}
				}
			})
		}
	}
}

// hostileRun is the result of a run.
type hostileRun struct {
	requests []model.Request
	in       loop.Input
	sent     int
}

// runWith runs a Turn with two replies that request calls. Of the three calls in the first reply, one returns r, one
// requires approval and is denied, and one is refused. The call in the second reply is harmless.
func runWith(t *testing.T, r result) hostileRun {
	t.Helper()
	o := &approver{now: noon, decisions: map[string]loop.Decision{"c2": {Step: 1, CallID: "c2", By: "ann"}}}
	c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`), call("c2", "send", `{}`), call("c3", "search", `{}`)),
		asksFor("", call("c1", "other", `{}`)), says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, r)
	find.Trusted = false
	other, _ := toolOf("other", tool.ReadOnly, result{content: "other"})
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	search, _ := toolOf("search", tool.ReadOnly, result{content: "searched"})
	search.Role = tool.WebSearch
	in := withApprover(withTools(input(t, c), find, send, search, other), o)
	in.Policy.NoWeb, in.Limits.MaxTokens = true, 1_000_000
	limits, policy := in.Limits, in.Policy
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.Answered || in.State.LastStep().Reply.Text != "Done." {
		t.Fatalf("Run = %+v, %v; want the answer", end, err)
	}
	if in.Limits != limits || in.Policy != policy || in.State.ToolCalls() != 2 {
		t.Errorf("limits %+v, policy %+v, %d calls; want nothing changed", in.Limits, in.Policy, in.State.ToolCalls())
	}
	return hostileRun{s.requests, in, len(sent.calls)}
}

// shape holds the parts of a run that no output of a tool may change.
type shape struct {
	Messages [][]message
	Tools    [][]model.Tool
	Ends     []string
	Sent     int
	Asked    []string
}

// message is a message without the hostile output.
type message struct {
	Role          model.Role
	Name, Call    string
	Content       string
	Calls         []model.ToolCall
	StableContent int
}

func shapes(r hostileRun) shape {
	s := shape{Sent: r.sent, Asked: callIDs(r.in.State.Approvals)}
	for _, q := range r.requests {
		var all []message
		for _, m := range q.Messages {
			one := message{m.Role, m.Name, m.ToolCallID, m.Content, m.ToolCalls, m.StableChars}
			if m.Role == model.RoleTool && len(all) == 3 {
				one.Content = "the output"
			}
			all = append(all, one)
		}
		s.Messages, s.Tools = append(s.Messages, all), append(s.Tools, q.Tools)
	}
	for _, f := range r.in.State.CallResults[1:] {
		s.Ends = append(s.Ends, f.CallID+" "+string(f.Outcome))
	}
	return s
}

// checkModelText fails the test if a text for the model contains anything but harmless text.
func checkModelText(t *testing.T, received string) {
	t.Helper()
	if n := utf8.RuneCountInString(received); n > maxMessage || !utf8.ValidString(received) {
		t.Errorf("the model received %d characters (UTF-8: %t), want at most %d", n, utf8.ValidString(received), maxMessage)
	}
	for _, r := range received {
		if r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			t.Errorf("the model received U+%04X, want only visible characters", r)
			break
		}
	}
	lower := strings.ToLower(received)
	for _, marker := range []string{
		"<|", "<｜", "[inst]", "[/inst]", "[tool_calls]", "<<sys>>", "<start_of_turn>", "<end_of_turn>", "</s>",
		"<system>", "<untrusted-text>", "</untrusted-text>", "</prompt-data>", "<tool_call>", "</tool_output", "</tооl",
	} {
		if strings.Contains(lower, marker) {
			t.Errorf("the model received %q, want it neutralized", marker)
		}
	}
}

// checkFenced fails the test if an output is not within exactly one fence of the Turn.
func checkFenced(t *testing.T, received string) {
	t.Helper()
	opening, closing := "<tool-output "+nonce+"> "+untrusted.ToolNotice, "\n</tool-output "+nonce+">"
	if !strings.HasPrefix(received, opening) || !strings.HasSuffix(received, closing) {
		t.Errorf("the model received the output as %.200q, want it in its fence", received)
	}
	lower := strings.ToLower(received)
	if strings.Count(lower, "<tool-output") != 1 || strings.Count(lower, "</tool-output") != 1 ||
		strings.Count(lower, strings.ToLower(nonce)) != 2 {
		t.Errorf("there are %d openings, %d closings and %d nonces, want one fence", strings.Count(lower, "<tool-output"),
			strings.Count(lower, "</tool-output"), strings.Count(lower, strings.ToLower(nonce)))
	}
}
