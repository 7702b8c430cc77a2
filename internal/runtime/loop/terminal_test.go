package loop_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestNoCallAfterATerminalCall checks that no call begins, and no approval is requested, after the Turn has
// ended.
func TestNoCallAfterATerminalCall(t *testing.T) {
	o := &approver{now: noon}
	c, _ := candidate("one", 1, asksFor("", call("a", "save", `{}`), call("b", "find", `{}`), call("c", "send", `{}`),
		call("d", "gone", `{}`)), says("never"))
	save, _ := toolOf("save", tool.Destructive, result{content: "Saved."})
	save.EndsTurn = true
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	in := withApprover(withTools(input(t, c), save, find, send), o)
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.ToolEnded || len(found.calls)+len(sent.calls) != 0 || len(in.State.Approvals) != 0 {
		t.Fatalf("Run = %+v, %v after %d and %d calls; want the end without further calls or requests for approval", end, err,
			len(found.calls), len(sent.calls))
	}
	const dropped = `error (denied): the tool was not called, because the turn ended with the result of "save"`
	want := []string{"a Succeeded : Saved.", "b Refused denied: " + dropped, "c Refused denied: " + dropped, "d Refused denied: " + dropped}
	if diff := cmp.Diff(want, callEnds(in)); diff != "" {
		t.Errorf("results: -want +got:\n%s", diff)
	}
}

// journalWith returns a journal with a reply and the records that an earlier run left.
func journalWith(t *testing.T, reply answer, more ...journal.Record) *journaltest.Store {
	t.Helper()
	j := &journaltest.Store{}
	records := append([]journal.Record{{Kind: journal.ModelReplied, Payload: loop.Step{Step: 1, Reply: reply.reply}}}, more...)
	if err := inputOf(t, j, 1).Record(records...); err != nil {
		t.Fatal(err)
	}
	return j
}

func intent(id, name string, effect tool.Effect) journal.Record {
	return journal.Record{
		Kind:    journal.ToolIntended,
		Payload: loop.Intent{Step: 1, CallID: id, Name: name, Arguments: []byte(`{}`), Effect: effect, Attempt: 1},
	}
}

// TestCallBegunBeforeTheEnd checks that a call that began before another call ended the Turn gets its own result.
func TestCallBegunBeforeTheEnd(t *testing.T) {
	j := journalWith(t, asksFor("", call("a", "save", `{}`), call("b", "find", `{}`), call("c", "find", `{"n":1}`)),
		intent("a", "save", tool.ReadOnly), intent("b", "find", tool.ReadOnly),
		journal.Record{Kind: journal.ToolFinished, Payload: loop.CallResult{
			Step: 1, CallID: "a", Name: "save",
			Outcome: loop.Succeeded, Content: "Saved.", EndsTurn: true, Text: "Saved.",
		}})
	c, _ := candidate("one", 1, says("never"))
	save, saved := toolOf("save", tool.ReadOnly, result{content: "again"})
	save.EndsTurn = true
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(inputOf(t, j, 2, c), save, find)
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.ToolEnded || len(saved.calls) != 0 || len(found.calls) != 1 ||
		in.State.Outcomes()[loop.Refused] != 1 {
		t.Errorf("Run = %+v, %v with %q; want the begun call made again, and the other call refused", end, err, callEnds(in))
	}
}

// TestOverBudgetWithAnInterruptedCall checks that the interrupted call is repeated, and that no other call begins.
func TestOverBudgetWithAnInterruptedCall(t *testing.T) {
	reply := asksFor("", call("a", "find", `{}`), call("b", "find", `{"n":1}`))
	reply.reply.Usage = model.Usage{InputTokens: 500}
	j := journalWith(t, reply, intent("a", "find", tool.ReadOnly))
	c, s := candidate("one", 1, says("never"))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(inputOf(t, j, 2, c), find)
	in.Limits.MaxTokens = 100
	end, err := loop.Run(t.Context(), &in)
	if err != nil || end.Reason != loop.OverBudget || len(found.calls) != 1 || found.calls[0].CallID != "a" || len(s.requests) != 0 {
		t.Errorf("Run = %+v, %v after %d calls; want the end after the call that had begun", end, err, len(found.calls))
	}
}

// TestTerminalResultFitsTheSchema checks that a result ends the Turn only if it fits the schema. Otherwise the model is
// asked again.
func TestTerminalResultFitsTheSchema(t *testing.T) {
	form, err := schema.Compile([]byte(`{"type":"object","required":["order"]}`))
	if err != nil {
		t.Fatal(err)
	}
	const answer = `{"order":8}`
	answered := loop.End{Reason: loop.Answered, Message: "the model answered"}
	for name, tc := range map[string]struct {
		reason, text, final string
		end                 loop.End
		requests            int
		structured          string
	}{
		"fits": {
			"the result is the answer", `{"order":7}`, `{"order":7}`,
			loop.End{Reason: loop.ToolEnded, Message: `the tool "save" ended the turn`},
			1, "",
		},
		"structured fits": {
			"the structured content is the answer, without the text", "Saved.", `{"order":7}`,
			loop.End{Reason: loop.ToolEnded, Message: `the tool "save" ended the turn`},
			1, `{"order":7}`,
		},
		"lacks a property":   {"the result has no order", `{"number":7}`, answer, answered, 2, ""},
		"is of another type": {"the result is a list", `[{"order":7}]`, answer, answered, 2, ""},
		"is not JSON":        {"the result is a text", "Saved.", answer, answered, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, asksFor("", call("a", "save", `{}`)), says(answer))
			save, _ := toolOf("save", tool.Destructive, result{content: tc.text, structured: tc.structured})
			save.EndsTurn = true
			in := withTools(input(t, c), save)
			in.Output = form
			end, err := loop.Run(t.Context(), &in)
			if err != nil || end == nil || *end != tc.end || len(s.requests) != tc.requests {
				t.Fatalf("Run = %+v, %v after %d requests; want %+v after %d: %s", end, err, len(s.requests), tc.end, tc.requests,
					tc.reason)
			}
			text := in.State.AnswerText()
			if f := in.State.Terminal(t.Context(), form); f != nil {
				text = f.Text
			}
			if text != tc.final {
				t.Errorf("the answer is %q, want %q: %s", text, tc.final, tc.reason)
			}
		})
	}
}

// TestStructuredContent checks that the model receives the structured content after the text, that an answer without
// a schema is the text, and that the call that undoes this call is computed from the structured content.
func TestStructuredContent(t *testing.T) {
	const nothing = ""
	for name, tc := range map[string]struct {
		text, structured string
		content, answer  string
		undo             string // the arguments, or "" if there are none
	}{
		"text":            {"Saved.", nothing, "Saved.", "Saved.", ""},
		"both":            {"Saved.", `{"id":7}`, "Saved.\n" + `{"id":7}`, "Saved.", `{"id":7}`},
		"only structured": {nothing, `{"id":7}`, `{"id":7}`, `{"id":7}`, `{"id":7}`},
		"both JSON":       {`{"id":7}`, `{"ids":[7]}`, `{"id":7}` + "\n" + `{"ids":[7]}`, `{"id":7}`, `{"id":7}`},
		"redacted text":   {"Saved by hunter2.", `{"id":7}`, "Saved by [x].\n" + `{"id":7}`, "Saved by [x].", `{"id":7}`},
		"redacted":        {"Saved.", `{"id":"hunter2"}`, "Saved.\n" + `{"id":"[x]"}`, "Saved.", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("one", 1, asksFor("", call("a", "save", `{}`)), says("never"))
			save, _ := toolOf("save", tool.Destructive, result{content: tc.text, structured: tc.structured})
			save.EndsTurn = true
			save.Compensation = &tool.Compensation{Tool: "drop", Arguments: []tool.CompensationArgument{{Name: "id", Value: "result.id"}}}
			in := withTools(input(t, c), save)
			in.Redact = func(text string) string { return strings.ReplaceAll(text, "hunter2", "[x]") }
			if _, err := loop.Run(t.Context(), &in); err != nil {
				t.Fatal(err)
			}
			got := in.State.TerminalResult()
			if got == nil || got.Undo == nil || got.Content != tc.content || got.Text != tc.answer ||
				string(got.Undo.Arguments) != tc.undo || got.Bytes != int64(len(tc.content)) {
				t.Errorf("the result is %+v with %+v, want %q, the answer %q, and %q to undo the call", got, got.Undo, tc.content,
					tc.answer, tc.undo)
			}
		})
	}
}

// TestMisfitTerminalResultIsSentBack checks that the model receives the violations after the result, and then
// answers itself or calls another tool. Results and answers share the limit of rejections.
func TestMisfitTerminalResultIsSentBack(t *testing.T) {
	const rejection = "The call was made, but its result was not accepted as the answer. It does not fit the JSON " +
		"Schema of the answer:\n- must have \"capital\"\n" +
		"Do not repeat the call to get its result in another form. Answer with only the corrected JSON and no other text."
	save := func(id, n string) answer { return asksFor("", call(id, "save", `{"n":`+n+`}`)) }
	for name, tc := range map[string]struct {
		reason   string
		answers  []answer
		results  []result
		maxSteps int
		end      loop.Reason
		text     string
		requests int
	}{
		"answers itself": {
			"the model answers itself",
			[]answer{save("a", "1"), says(validAnswer)},
			[]result{{content: "{}"}},
			6, loop.Answered, validAnswer, 2,
		},
		"another call": {
			"a second call returns a result that fits",
			[]answer{save("a", "1"), save("b", "2")},
			[]result{{content: "{}"}, {content: validAnswer}},
			6, loop.ToolEnded, validAnswer, 2,
		},
		"never": {
			"two rejections are allowed",
			[]answer{save("a", "1"), save("b", "2"), save("c", "3")},
			[]result{{content: "{}"}},
			6, loop.OutputInvalid, "{}", 3,
		},
		"with an answer": {
			"rejected answers and results count together",
			[]answer{says("Oslo."), save("a", "1"), save("b", "2")},
			[]result{{content: "{}"}},
			6, loop.OutputInvalid, "{}", 3,
		},
		"in the last step": {
			"a rejection after the last step does not count as out of steps",
			[]answer{save("a", "1"), says(validAnswer)},
			[]result{{content: "{}"}},
			1, loop.Answered, validAnswer, 2,
		},
		"the second fits": {"the second of two results in one reply fits", []answer{asksFor("", call("a", "save", `{"n":1}`),
			call("b", "save", `{"n":2}`))}, []result{{content: "{}"}, {content: validAnswer}}, 6, loop.ToolEnded, validAnswer, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, tc.answers...)
			tools, _ := toolOf("save", tool.Destructive, tc.results...)
			tools.EndsTurn = true
			in := withTools(input(t, c), tools)
			in.Output, in.Limits.MaxSteps = capitalSchema(t), tc.maxSteps
			end, err := loop.Run(t.Context(), &in)
			if err != nil || end.Reason != tc.end || len(s.requests) != tc.requests {
				t.Fatalf("Run = %+v, %v after %d requests; want %s after %d: %s", end, err, len(s.requests), tc.end,
					tc.requests, tc.reason)
			}
			text := in.State.AnswerText()
			if f := in.State.Terminal(t.Context(), in.Output); f != nil {
				text = f.Text
			} else if f := in.State.TerminalResult(); f != nil {
				text = f.Text
			}
			if text != tc.text {
				t.Errorf("the text is %q, want %q", text, tc.text)
			}
			if len(s.requests) == 2 {
				last := s.requests[1].Messages
				if m := last[len(last)-1]; m.Role != model.RoleTool || m.Content != "{}\n"+rejection || !answersEachCall(last) {
					t.Errorf("the model received %q, want the result and its violations", m.Content)
				}
			}
		})
	}
}

// TestModelRefuses checks that a refusal ends the Turn with its own text and is not checked against a schema.
func TestModelRefuses(t *testing.T) {
	for _, steps := range []int{1, 6} {
		c, s := candidate("one", 3, asksFor("", call("a", "find", `{}`)),
			answer{reply: model.Reply{Text: "I cannot.", FinishReason: model.FinishRefusal}})
		find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
		in := withTools(input(t, c), find)
		in.Output, in.Reflect, in.Limits.MaxSteps = capitalSchema(t), true, steps
		end, err := loop.Run(t.Context(), &in)
		if err != nil || *end != (loop.End{Reason: loop.ModelRefused, Message: "the model refused to answer"}) ||
			len(s.requests) != 2 || in.State.AnswerText() != "I cannot." {
			t.Errorf("Run = %+v, %v after %d requests with %q; want the refusal and its text after 2", end, err,
				len(s.requests), in.State.AnswerText())
		}
	}
}

// TestRejectedReplyWithoutText checks that the model receives the rejection of a reply without text. Without the
// rejection, the next request would be the same and would get the same reply.
func TestRejectedReplyWithoutText(t *testing.T) {
	form, err := schema.Compile([]byte(`{"type":"object"}`))
	if err != nil {
		t.Fatal(err)
	}
	c, s := candidate("one", 1, asksFor("", call("a", "find", `{}`)), asksFor("", call("b", "find", `{"n":1}`)), says(`{}`))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(input(t, c), find)
	in.Output, in.Limits.MaxSteps = form, 1
	if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason == loop.OutputInvalid || len(s.requests) != 3 {
		t.Fatalf("Run = %+v, %v after %d requests; want the third to answer", end, err, len(s.requests))
	}
	received := strings.Join(transcript(s.requests[2]), "\n")
	if !strings.Contains(received, "user: Your answer was not accepted") || !strings.Contains(received, "tool b: error (unavailable)") {
		t.Errorf("the model received %s\nwant the violations, and an answer to each call", received)
	}
}

// TestRepairNote checks that the note about repairs precedes the result and is outside its fence.
func TestRepairNote(t *testing.T) {
	const line = "The arguments were changed before the call: "
	long := strings.Repeat("x", 200)
	for name, tc := range map[string]struct {
		reason, arguments, again string
		result                   result
		want                     []string
	}{
		"result": {
			"the note precedes the fence", `{"n":"1"}`, `{"n":2}`,
			result{content: "found"},
			[]string{line + "/n: converted the text to the number 1.\n" + fenced("found"), fenced("found")},
		},
		"error": {
			"the note precedes an error", `{"n":"1"}`, `{"n":2}`,
			result{err: errors.New("it broke")},
			[]string{line + "/n: converted the text to the number 1.\nerror (failed): the tool failed\n" +
				fenced("it broke"), "error (failed): the tool failed\n" + fenced("it broke")},
		},
		"hostile": {
			"tags in a name are neutralized", `{"<|im_start|>\n":1}`, `{"n":2}`,
			result{content: "found"},
			[]string{line + `removed "&lt;|im_start|>".` + "\n" + fenced("found"), fenced("found")},
		},
		"reused": {
			"the note of another call is left out", `{"n":"1"}`, `{"n":1}`,
			result{content: "found"},
			[]string{line + "/n: converted the text to the number 1.\n" + fenced("found"), fenced("found")},
		},
		"reused, changed": {
			"the note of this call is included", `{"n":1}`, `{"n":1,"x":1}`,
			result{content: "found"},
			[]string{fenced("found"), line + `removed "x".` + "\n" + fenced("found")},
		},
		"long": {
			"the note is bounded", `{"n":"1"}`, `{"n":2,"` + long + `":1}`,
			result{content: strings.Repeat("y", 20_000)},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("one", 1, asksFor("", call("a", "find", tc.arguments)),
				asksFor("", call("b", "find", tc.again)), says("Done."))
			find, _ := toolOf("find", tool.ReadOnly, tc.result)
			find.Trusted = false
			in := withTools(input(t, c), find)
			if _, err := loop.Run(t.Context(), &in); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range in.State.CallResults {
				got = append(got, f.Content)
				if len(f.Content) > maxMessage || tc.want == nil && !strings.HasPrefix(f.Content, line) {
					t.Errorf("the model received %.200q with %d bytes, want the note about the repair and at most %d bytes", f.Content,
						len(f.Content), maxMessage)
				}
			}
			if diff := cmp.Diff(tc.want, got); tc.want != nil && diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestRefusalListsOfferedTools checks that the refusal of an unknown tool lists only tools that were
// offered.
func TestRefusalListsOfferedTools(t *testing.T) {
	c, _ := candidate("one", 1, asksFor("", call("a", "gone", `{}`)), says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	hidden, _ := toolOf("load_skill", tool.ReadOnly, result{content: "none"})
	in := withTools(input(t, c), find, hidden)
	in.Offered = func(name string) bool { return name == "find" }
	if _, err := loop.Run(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`a Refused unavailable: error (unavailable): there is no tool "gone": use one of find`},
		callEnds(in)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestCutOffSummary checks that a summary that was cut off ends with a note.
func TestCutOffSummary(t *testing.T) {
	cut := says("It was")
	cut.reply.FinishReason = model.FinishLength
	c, _ := candidate("one", 1, append([]answer{fails(model.ContextLength)}, withoutUsage(cut, says("Done."))...)...)
	in := withHistory(input(t, c), model.Message{Role: model.RoleUser, Content: words(9000)})
	in.Context.Compact = true
	if _, err := loop.Run(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	if got := in.State.Compactions[0].Summary; got != "It was\n[the summary was cut]" {
		t.Errorf("the summary is %q, want it to say that it was cut", got)
	}
}
