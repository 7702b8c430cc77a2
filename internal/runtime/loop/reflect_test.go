package loop_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func TestReflection(t *testing.T) {
	look := asksFor("", call("c1", "find", `{}`))
	cut := says("Half of")
	cut.reply.FinishReason = model.FinishLength
	const noTools = "the turn ran out of steps after 1 and gave its best answer: raise limits.maxSteps, or ask for less"
	answered := loop.End{Reason: loop.Answered, Message: "the model answered"}
	for name, tc := range map[string]struct {
		reason  string
		answers []answer
		change  func(*loop.Input)
		end     loop.End
		asked   int
		want    *loop.Reflection // nil for none
		text    string
	}{
		"replaced": {
			"the corrected answer counts",
			[]answer{look, says("Draft."), says("Better.")},
			nil, answered, 3,
			&loop.Reflection{Step: 2, Replaced: true, Text: "Better."}, "Better.",
		},
		"unchanged": {
			"white space is no change",
			[]answer{says("Draft."), says("\nDraft. ")},
			nil, answered, 2,
			&loop.Reflection{Step: 1, Text: "Draft."}, "Draft.",
		},
		"fails": {
			"the draft stays after a failure",
			[]answer{says("Draft."), fails(model.InvalidRequest)},
			nil,
			answered, 2, &loop.Reflection{Step: 1, Text: "Draft."}, "Draft.",
		},
		"too long": {
			"the prompt is not compacted for a reflection",
			[]answer{says("Draft."), fails(model.ContextLength)},
			nil, answered, 2, &loop.Reflection{Step: 1, Text: "Draft."}, "Draft.",
		},
		"cut off": {
			"an answer that is cut off is not used",
			[]answer{says("Draft."), cut},
			nil, answered, 2,
			&loop.Reflection{Step: 1, Text: "Draft."}, "Draft.",
		},
		"blank": {
			"a blank answer is not used",
			[]answer{says("Draft."), says(" ")},
			nil, answered, 2,
			&loop.Reflection{Step: 1, Text: "Draft."}, "Draft.",
		},
		"calls": {
			"calls in the reply are ignored",
			[]answer{says("Draft."), asksFor("Better.", call("c9", "find", `{}`))},
			nil, answered, 2,
			&loop.Reflection{Step: 1, Replaced: true, Text: "Better."}, "Better.",
		},
		"a call as text": {
			"servers return calls as text if a request offers no tools",
			[]answer{says("Draft."), says("I look again.\n<tool_call>\n{}\n</tool_call>")},
			nil, answered, 2,
			&loop.Reflection{Step: 1, Text: "Draft."}, "Draft.",
		},
		"over budget": {
			"the draft stays if the budget is spent",
			[]answer{says("Draft."), says("never asked")},
			func(in *loop.Input) { in.Limits.MaxTokens = 40 }, answered, 1,
			&loop.Reflection{Step: 1, Text: "Draft."}, "Draft.",
		},
		"not asked for": {
			"reflection is off",
			[]answer{says("Draft."), says("never asked")},
			func(in *loop.Input) { in.Reflect = false }, answered, 1, nil, "Draft.",
		},
		"out of steps": {
			"the last answer is checked too",
			[]answer{look, says("As far as I know."), says("Better.")},
			func(in *loop.Input) { in.Limits.MaxSteps = 1 },
			loop.End{Reason: loop.OutOfSteps, Message: noTools},
			3, &loop.Reflection{Step: 2, Replaced: true, Text: "Better."}, "Better.",
		},
		"a draft that was cut off": {
			"a draft that was cut off is not checked",
			[]answer{cut, says("never asked")},
			nil,
			answered, 1, nil, "Half of",
		},
		"structured": {
			"the new answer fits the schema",
			[]answer{says(validAnswer), says(`{"capital":"Bergen"}`)},
			func(in *loop.Input) { in.Output = capitalSchema(t) }, answered, 2,
			&loop.Reflection{Step: 1, Replaced: true, Text: `{"capital":"Bergen"}`}, `{"capital":"Bergen"}`,
		},
		"structured, misfit": {
			"the draft stays if the new answer does not fit",
			[]answer{says(validAnswer), says(invalidAnswer)},
			func(in *loop.Input) { in.Output = capitalSchema(t) }, answered, 2,
			&loop.Reflection{Step: 1, Text: validAnswer}, validAnswer,
		},
		"structured, second try": {
			"only an answer that fits is checked",
			[]answer{says(invalidAnswer), says(validAnswer), says("Fine.")},
			func(in *loop.Input) { in.Output = capitalSchema(t) }, answered, 3,
			&loop.Reflection{Step: 2, Text: validAnswer}, validAnswer,
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			c, s := candidate("one", 1, tc.answers...)
			find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
			for epoch := range int64(2) { // the second run finds the end in the journal
				in := withTools(inputOf(t, j, epoch+1, c), find)
				if in.Reflect = true; tc.change != nil {
					tc.change(&in)
				}
				end, err := loop.Run(t.Context(), &in)
				if diff := cmp.Diff(&tc.end, end); diff != "" || err != nil || len(s.requests) != tc.asked || len(found.calls) > 1 {
					t.Fatalf("run %d after %d requests, want %d (error %v): %s: -want +got:\n%s", epoch+1,
						len(s.requests), tc.asked, err, tc.reason, diff)
				}
				var want []loop.Reflection
				if tc.want != nil {
					want = []loop.Reflection{*tc.want}
				}
				if diff := cmp.Diff(want, in.State.Reflections); diff != "" || in.State.AnswerText() != tc.text {
					t.Errorf("the answer is %q, want %q: %s: -want +got:\n%s", in.State.AnswerText(), tc.text, tc.reason, diff)
				}
			}
		})
	}
}

// TestReflectionRequest checks that the request contains the whole conversation with the draft at its end,
// and has the tools of earlier requests, which must not be called.
func TestReflectionRequest(t *testing.T) {
	c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), says(validAnswer), says(validAnswer))
	c.StructuredOutput = true
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(input(t, c), find)
	in.Reflect, in.Output = true, capitalSchema(t)
	if _, err := loop.Run(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	r := s.requests[2]
	want := []string{"system ", "system output_form", "user ", "assistant calls c1", "tool answers c1", "assistant ", "system reflection"}
	if diff := cmp.Diff(want, messageOutline(r)); diff != "" || string(r.Output) != string(in.Output.Source) {
		t.Errorf("the request has the schema %s: -want +got:\n%s", r.Output, diff)
	}
	if !r.NoCalls || len(r.Tools) != 1 {
		t.Errorf("the request forbids calls of its %d tools: %t, want one tool that must not be called", len(r.Tools), r.NoCalls)
	}
	if want, note := "Your last message is a draft ", r.Messages[6].Content; !strings.HasPrefix(note, want) {
		t.Errorf("the note is %.80q, want it to begin with %q: scripted models recognize the request by this text", note, want)
	}
	if draft := r.Messages[5].Content; draft != validAnswer {
		t.Errorf("the draft is %q, want %q", draft, validAnswer)
	}
	if got := in.State.Requests[2]; got.Purpose != loop.ForReflection || got.Step != 2 || got.Attempt != 1 {
		t.Errorf("the request is journalled as %+v, want its purpose and the step that is checked", got)
	}
	if a := in.State.OtherReplies; len(a) != 1 || a[0].Purpose != loop.ForReflection || a[0].Last || len(in.State.Steps) != 2 {
		t.Errorf("other replies %+v after %d steps, want one reply, and no further step", a, len(in.State.Steps))
	}
}

// TestRunEndsDuringAReflection checks that a deadline does not discard the draft, which is already an answer.
func TestRunEndsDuringAReflection(t *testing.T) {
	overdue, cancelled := errors.New("the time of the turn is over"), errors.New("the turn was cancelled")
	for name, tc := range map[string]struct {
		reason    string
		abandoned bool
		cancel    bool
		before    bool // the deadline passes before the draft arrives
		err       error
	}{
		"deadline":        {"the draft stays", false, false, false, nil},
		"deadline before": {"no reflection is requested after the deadline", false, false, true, nil},
		"cancelled":       {"a cancelled Turn has no answer", false, true, false, cancelled},
		"given up":        {"the next run continues", true, false, false, overdue},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				ctx, stop := context.WithTimeoutCause(ctx, 5*time.Second, overdue)
				defer stop()
				draft, better := says("Draft."), says("Better.")
				better.after = time.Minute
				c, s := candidate("one", 3, draft, better)
				in := input(t, c)
				in.Reflect, in.Abandoned = true, func() bool { return tc.abandoned && ctx.Err() != nil }
				if tc.before {
					in.Record = runAfter(in.Record, journal.ModelReplied, func() { <-ctx.Done() })
				}
				if tc.cancel {
					time.AfterFunc(time.Second, func() { cancel(cancelled) })
				}
				end, err := loop.Run(ctx, &in)
				if !errors.Is(err, tc.err) || tc.err == nil && err != nil {
					t.Fatalf("Run = %+v, %v; want %v: %s", end, err, tc.err, tc.reason)
				}
				if want := map[bool]int{false: 2, true: 1}[tc.before]; len(s.requests) != want {
					t.Errorf("%d requests, want %d: %s", len(s.requests), want, tc.reason)
				}
				if ended := err == nil; ended != (len(in.State.Reflections) == 1) ||
					in.State.AnswerText() != "Draft." || ended && end.Reason != loop.Answered {
					t.Errorf("end %+v with %q and the reflections %+v: %s", end, in.State.AnswerText(), in.State.Reflections, tc.reason)
				}
			})
		})
	}
}

// TestInterruptBeforeAReflection checks that the run may stop before the reflection, and that a later run makes
// it.
func TestInterruptBeforeAReflection(t *testing.T) {
	j := &journaltest.Store{}
	c, s := candidate("one", 1, says("Draft."), says("Better."))
	in := inputOf(t, j, 1, c)
	interrupt := make(chan struct{})
	in.Reflect, in.Interrupt = true, interrupt
	in.Record = runAfter(in.Record, journal.ModelReplied, func() { close(interrupt) })
	if end, err := loop.Run(t.Context(), &in); !errors.Is(err, loop.ErrInterrupted) {
		t.Fatalf("Run = %+v, %v; want the interrupt", end, err)
	}
	in = inputOf(t, j, 2, c)
	in.Reflect = true
	if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered ||
		in.State.AnswerText() != "Better." || len(s.requests) != 2 {
		t.Errorf("Run = %+v, %v with %q after %d requests; want the draft checked", end, err, in.State.AnswerText(), len(s.requests))
	}
}

// TestReasoning checks that reasoning is recorded only with KeepReasoning, and is never sent back.
func TestReasoning(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep %t", keep), func(t *testing.T) {
			look, draft, better := asksFor("", call("c1", "find", `{}`)), says("Draft."), says("Better.")
			for _, a := range []*answer{&look, &draft, &better} {
				a.reply.Reasoning = "Let me think."
			}
			c, s := candidate("one", 1, look, draft, better)
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			in := withTools(input(t, c), find)
			in.KeepReasoning, in.Reflect = keep, true
			if _, err := loop.Run(t.Context(), &in); err != nil {
				t.Fatal(err)
			}
			for _, step := range append(in.State.Steps, in.State.OtherReplies...) {
				if got := step.Reply.Reasoning != ""; got != keep {
					t.Errorf("the journal has the reasoning %q of a reply, want any: %t", step.Reply.Reasoning, keep)
				}
			}
			if sent := fmt.Sprint(s.requests); strings.Contains(sent, "Let me think.") || in.State.AnswerText() != "Better." {
				t.Errorf("the reasoning was sent back in %s, or is part of the answer %q", sent, in.State.AnswerText())
			}
		})
	}
}
