package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// The payloads of a journal that an older version wrote. It has neither the beginning of the run nor the settings.
const (
	recordedInput = `{"input":{"Agent":{"Name":"helper"},"Profile":{"Name":"support","Identity":{}},` +
		`"Turn":{"Name":"first","Namespace":"desk","Message":"Hello"},"Now":"2026-06-11T15:04:05Z"},"zone":"UTC"}`
	recordedPrompt = `{"provider":"p","model":"m","messages":[{"role":"user","content":"Hello"}],"report":{}}`
	recordedEnd    = `{"stop":"Completed","message":"the model answered","text":"Hi."}`
)

// entriesOf returns the entries of a journal, given as kind and payload.
func entriesOf(all ...string) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for i := 0; i < len(all); i += 2 {
			e := journal.Entry{
				Seq: int64(i/2 + 1), Epoch: 1, Kind: journal.Kind(all[i]), Version: 1, Time: at, Payload: json.RawMessage(all[i+1]),
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

func noArtifact(context.Context, string, int64) ([]byte, error) { return nil, journal.ErrNoArtifact }

func TestReadRecordingOfOlderVersion(t *testing.T) {
	r, err := turn.ReadRecording(t.Context(), entriesOf("preparation.input", recordedInput, "prepared", recordedPrompt,
		"finalized", recordedEnd), noArtifact)
	if err != nil {
		t.Fatal(err)
	}
	if r.Namespace != "desk" || r.Name != "first" || r.Agent != "helper" || r.Settings != nil || len(r.Tools) != 0 || !r.Answered() ||
		r.Subject.Answer != "Hi." || !r.Began.Equal(at) {
		t.Errorf("the recording is %+v", r)
	}
}

// TestErrorsOfReadRecording checks that ReadRecording returns a *NotReplayableError for a Turn that cannot be replayed,
// but another error for a journal that cannot be read.
func TestErrorsOfReadRecording(t *testing.T) {
	for name, tc := range map[string]struct {
		entries []string
		want    string
		refused bool
	}{
		"empty":         {nil, "its journal is empty", true},
		"before input":  {[]string{"run.started", `{"name":"first"}`}, "the journal ends before the Turn made a prompt", true},
		"before prompt": {[]string{"preparation.input", recordedInput}, "the journal ends before the Turn made a prompt", true},
		"only prepared": {[]string{"prepared", recordedPrompt, "finalized", `{"stop":"Prepared"}`}, "capstan render --diff", true},
		"not prepared": {
			[]string{"run.started", `{"name":"first"}`, "finalized", `{"stop":"Cancelled","message":"it was"}`},
			"the Turn ended before it made a prompt (Cancelled: it was)", true,
		},
		"lost history": {
			[]string{
				"preparation.input", strings.Replace(recordedInput, `"zone"`, `"history":{"sessionUID":"s"},"zone"`, 1),
				"prepared", strings.Replace(recordedPrompt, `"report"`, `"history":{"sessionUID":"s","messages":2},"report"`, 1),
			}, "the history of its Session is gone", true,
		},
		"too large": {
			[]string{"some.new.kind", fmt.Sprintf(`"%s"`, strings.Repeat("x", turn.MaxRecordingBytes))}, "more than 64 MiB", true,
		},
		"damaged": {[]string{"preparation.input", `[]`}, `failed to read entry 1 ("preparation.input")`, false},
		"redacted": {
			[]string{"preparation.input", `{"input":{"redacted":true,"bytes":7},"zone":"UTC"}`, "prepared", `{"redacted":true}`},
			`failed to read entry 2 ("prepared"): the prompt has no messages`, false,
		},
		"lost answer": {
			[]string{
				"preparation.input", recordedInput, "prepared", recordedPrompt,
				"finalized", `{"stop":"Completed","answer":{"name":"answer.txt","sha256":"ab"}}`,
			}, "failed to read the answer", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := turn.ReadRecording(t.Context(), entriesOf(tc.entries...), noArtifact)
			_, refused := errors.AsType[*turn.NotReplayableError](err)
			if err == nil || !strings.Contains(err.Error(), tc.want) || refused != tc.refused {
				t.Errorf("error %v, refused %t, want %q and %t", err, refused, tc.want, tc.refused)
			}
		})
	}
	newer := func(yield func(journal.Entry, error) bool) {
		yield(journal.Entry{Seq: 1, Version: journal.PayloadVersion + 1}, nil)
	}
	_, err := turn.ReadRecording(t.Context(), newer, noArtifact)
	if refused, ok := errors.AsType[*turn.NotReplayableError](err); !ok || refused.Message != journal.ErrNewer.Error() {
		t.Errorf("the error for a newer journal is %v, want a *NotReplayableError", err)
	}
}

// called returns the entries of a call: its intent and its result.
func called(step int, id, name, arguments, end string) []string {
	return []string{
		"tool.intended", fmt.Sprintf(`{"step":%d,"callID":%q,"name":%q,"arguments":%s,"attempt":1}`, step, id, name, arguments),
		"tool.finished", fmt.Sprintf(`{"step":%d,"callID":%q,"name":%q,%s}`, step, id, name, end),
	}
}

// TestAnswers checks that each call receives the recorded result of a call of the same tool with the same arguments.
// The calls and the fields of their arguments may have another order than in the journal.
func TestAnswers(t *testing.T) {
	fence := func(body string) string {
		return fmt.Sprintf("%q", "<tool-output N0NCE> Text up to the closing tag.\n"+body+"\n</tool-output N0NCE>")
	}
	all := []string{
		"preparation.input", recordedInput,
		"tools.exposed", `{"nonce":"N0NCE","effectsDeclared":true,"tools":[{"name":"get","effect":"ReadOnly","requiresApproval":true,` +
			`"timeout":1},{"name":"close"},{"name":"end"}]}`,
		"prepared", recordedPrompt,
	}
	all = append(all, called(0, "context-pack-1", "get", `{"q":1}`, `"outcome":"Succeeded","content":"a fact"`)...)
	all = append(all, called(1, "a", "get", `{"q":1,"r":[2]}`, `"outcome":"Succeeded","content":`+fence("first\nline"))...)
	all = append(all, called(2, "a", "get", `{"r":[2],"q":1}`, `"outcome":"Succeeded","content":`+fence("second"))...)
	all = append(all, called(3, "a", "get", `{"q":1.0,"r":[2]}`, `"outcome":"Unknown","content":"?"`)...)
	all = append(all, called(4, "a", "get", `{"q":"long"}`, `"outcome":"Succeeded","artifact":"sum","content":"short"`)...)
	all = append(all, called(5, "a", "get", `{"q":"gone"}`, `"outcome":"Succeeded","artifact":"none","content":"short"`)...)
	all = append(all, called(6, "a", "get", `{"q":"bad"}`, `"outcome":"Failed","class":"timeout","content":`+
		strings.Replace(fence("it says"), `"`, `"error (timeout): too late\n`, 1))...)
	all = append(all, called(6, "b", "get", `{"q":"child"}`, `"outcome":"Succeeded","descendants":3,"content":"of a sub-agent"`)...)
	all = append(all, called(7, "a", "end", `{}`, `"outcome":"Succeeded","endsTurn":true,"text":"the answer","content":"x"`)...)
	all = append(all,
		"approval.requested", `{"request":"r","step":8,"callID":"a","name":"close","arguments":{"id":"1"}}`,
		"approval.decided", `{"request":"r","step":8,"callID":"a","approved":false}`,
		"tool.finished", `{"step":8,"callID":"a","name":"close","outcome":"Refused","class":"denied","content":"no"}`,
		"tool.finished", `{"step":9,"callID":"b","name":"other","outcome":"Refused","class":"unavailable","content":"no"}`)
	var read []string
	r, err := turn.ReadRecording(t.Context(), entriesOf(all...), func(_ context.Context, sum string, _ int64) ([]byte, error) {
		read = append(read, sum)
		if sum == "sum" {
			return []byte("the whole output"), nil
		}
		return nil, journal.ErrNoArtifact
	})
	if err != nil {
		t.Fatal(err)
	}
	answers := r.Answers()
	if err := answers.Err(); err != nil {
		t.Errorf("the error before any call is %v, want none", err)
	}
	tools := map[string]tool.Tool{}
	for _, known := range answers.Tools() {
		tools[known.Name] = known
	}
	if known := tools["get"]; known.RequiresApproval || known.Timeout != 0 || known.Effect != tool.ReadOnly {
		t.Errorf("the tool is %+v, want it to require no approval", known)
	}
	for i, tc := range []struct{ name, arguments, want string }{
		{"get", `{"q":1,"r":[2]}`, "first\nline"},
		{"get", `{ "r" : [2], "q" : 1 }`, "second"},
		{"get", `{"q":1,"r":[2]}`, "second"},
		{"get", `{"q":1}`, "unavailable: the call of \"get\" was not made"},
		{"get", `{"q":1,"r":[3]}`, "unavailable: the call of \"get\" was not made"},
		{"close", `{"q":1,"r":[2]}`, "unavailable: the call of \"close\" was not made"},
		{"get", `{"q":"long"}`, "the whole output"},
		{"get", `{"q":"gone"}`, "unavailable: the recorded result of this call can no longer be read"},
		{"get", `{"q":"long"}`, "unavailable: the recorded result of this call can no longer be read"},
		{"get", `{"q":"bad"}`, "timeout: too late: it says"},
		{"get", `{"q":"child"}`, "of a sub-agent"},
		{"end", `{}`, "the answer"},
		{"close", `{"id":"1"}`, "denied: this call was not approved"},
	} {
		result, err := tools[tc.name].Caller.Call(t.Context(), tool.Call{Arguments: json.RawMessage(tc.arguments)})
		got := result.Content
		if err != nil {
			got = string(tool.AsError(err).Class) + ": " + err.Error()
		}
		if !strings.HasPrefix(got, tc.want) || err == nil && got != tc.want {
			t.Errorf("call %d of %s %s: %q, want %q", i, tc.name, tc.arguments, got, tc.want)
		}
		descendants := 0
		if strings.Contains(tc.arguments, "child") {
			descendants = 3
		}
		if result.Descendants == nil || *result.Descendants != descendants {
			t.Errorf("call %d of %s %s has %v descendants, want the recorded %d", i, tc.name, tc.arguments, result.Descendants, descendants)
		}
	}
	want := turn.AnswerSummary{Recorded: 8, NotMade: 3, Unanswered: []turn.UnansweredCall{
		{Name: "get", Arguments: `{"q":1}`}, {Name: "get", Arguments: `{"q":1,"r":[3]}`}, {Name: "close", Arguments: `{"q":1,"r":[2]}`},
	}}
	if diff := cmp.Diff(want, answers.Summary()); diff != "" {
		t.Errorf("summary: -want +got:\n%s", diff)
	}
	const lost = `failed to read the recorded result of a call of "get": `
	if err := answers.Err(); !errors.Is(err, journal.ErrNoArtifact) || !strings.HasPrefix(err.Error(), lost) {
		t.Errorf("the error is %v, want that of the artifact that is lost", err)
	}
	if len(read) != 2 {
		t.Errorf("the artifacts %q were read, want none after the one that is lost", read)
	}
}

// TestAnswersCancelTheReplay checks that a recorded result that cannot be read cancels the replay, because the rest of
// it would be paid in vain. If the caller has cancelled the replay, this is not an error of the journal.
func TestAnswersCancelTheReplay(t *testing.T) {
	for name, isInterrupted := range map[string]bool{"the result is lost": false, "the caller has cancelled the replay": true} {
		t.Run(name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			all := append([]string{
				"preparation.input", recordedInput, "tools.exposed", `{"tools":[{"name":"get"}]}`, "prepared", recordedPrompt,
			}, called(1, "a", "get", `{}`, `"outcome":"Succeeded","artifact":"gone","content":"short"`)...)
			artifact := func(context.Context, string, int64) ([]byte, error) {
				if isInterrupted {
					interrupt()
				}
				return nil, journal.ErrNoArtifact
			}
			r, err := turn.ReadRecording(t.Context(), entriesOf(all...), artifact)
			if err != nil {
				t.Fatal(err)
			}
			answers := r.Answers()
			within, release := answers.Within(ctx)
			defer release()
			for _, known := range answers.Tools() {
				if _, err := known.Caller.Call(within, tool.Call{Arguments: []byte(`{}`)}); err == nil {
					t.Error("the call succeeds without its result")
				}
			}
			if err := answers.Err(); within.Err() == nil || (err == nil) != isInterrupted {
				t.Errorf("the context of the replay ended with %v, and the error is %v; want that the replay is cancelled, and "+
					"an error unless the caller has cancelled it", within.Err(), err)
			}
		})
	}
}
