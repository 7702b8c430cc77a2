package turn_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestUnrecordedAnswer checks which results a caller receives that wants the answers that the journal cannot record,
// and that nothing follows from such an answer: no request, no call and no entry.
func TestUnrecordedAnswer(t *testing.T) {
	const text = "The code is canary-4711."
	codes := outputpolicy.Policy{Name: "no-codes", Expression: `!output.text.contains("canary")`, OnViolation: outputpolicy.Fail}
	polite := outputpolicy.Policy{Name: "polite", Prompt: "Be polite.", OnViolation: outputpolicy.Fail}
	asksForCall := answer{reply: model.Reply{
		Text: text, FinishReason: model.FinishToolCalls,
		ToolCalls: []model.ToolCall{{ID: "c1", Name: "find", Arguments: "{}"}},
	}}
	for name, tc := range map[string]struct {
		reason   string
		broken   int // the number of the first append that fails
		answer   answer
		policies []outputpolicy.Policy
		// reflects makes the model check its draft.
		reflects bool
		// want are the reasons and the texts of the results that the caller receives.
		want []string
	}{
		"the request":  {"no model was asked", 2, says(text), nil, false, nil},
		"the reply":    {"the answer was paid for", 3, says(text), nil, false, []string{"Completed: " + text}},
		"the end":      {"the answer was paid for", 4, says(text), nil, false, []string{"Completed: " + text}},
		"the history":  {"only the Session lacks the answer", 5, says(text), nil, false, []string{"Completed: " + text}},
		"a call":       {"the reply asks for a call, which must not be made", 3, asksForCall, nil, false, nil},
		"a violation":  {"the policy withholds the answer", 3, says(text), []outputpolicy.Policy{codes}, false, []string{"OutputPolicy: "}},
		"an unchecked": {"the check needs another request", 3, says(text), []outputpolicy.Policy{polite}, false, nil},
		"a draft":      {"the check of the draft needs another request", 3, says(text), nil, true, nil},
	} {
		for _, abandoned := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", after the patience", true: ", abandoned"}[abandoned], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, s := candidate("p0", 1, tc.answer)
					j := &journaltest.Store{}
					e := engine(&breaking{Journal: j, n: tc.broken, times: -1})
					e.Patience = time.Minute
					ctx, abandon := context.WithCancelCause(t.Context())
					defer abandon(nil)
					if abandoned {
						e.Patience = 0
						e.Waiting = func(turn.Input, error, time.Duration) { abandon(errors.New("given up")) }
					}
					var got []string
					e.Unrecorded = func(r *turn.Result) { got = append(got, string(r.Stop)+": "+r.Text) }
					in := inTalk("uid", "Tell.", c)
					in.Timeout = time.Hour
					if in.Preparation = preparationOf(func(m *prepare.Input) { m.Profile.OutputPolicies = tc.policies }); tc.reflects {
						in.ReflectEvery = 1
					}
					if result, err := e.Run(ctx, new(in)); !errors.Is(err, errBroken) || result != nil {
						t.Fatalf("Run = %+v, %v; want only the error of the journal", result, err)
					}
					if diff := cmp.Diff(tc.want, got); diff != "" {
						t.Errorf("results: -want +got:\n%s\n%s", diff, tc.reason)
					}
					if want := min(tc.broken-2, 1); s.asked() != want {
						t.Errorf("%d requests, want %d: %s", s.asked(), want, tc.reason)
					}
					all := kinds(t, j)
					for _, kind := range all {
						if kind == journal.ToolIntended || kind == journal.ModelReplied && tc.broken <= 3 {
							t.Errorf("the journal has %v, want nothing after the append that failed", all)
						}
					}
				})
			})
		}
	}
}

// TestUnrecordedAnswerIsDropped checks that a caller that does not want unrecorded answers receives none.
func TestUnrecordedAnswerIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := candidate("p0", 1, says("Nothing."))
		e := engine(&breaking{Journal: &journaltest.Store{}, n: 3, times: -1})
		e.Patience = time.Minute
		if result, err := e.Run(t.Context(), new(input(c))); !errors.Is(err, errBroken) || result != nil {
			t.Errorf("Run = %+v, %v; want only the error of the journal", result, err)
		}
	})
}

// TestAnswerOfAnotherRun checks that a run that another run has replaced reports no answer: the other run has it.
func TestAnswerOfAnotherRun(t *testing.T) {
	c, s := candidate("p0", 1, says("Nothing."))
	j := &journaltest.Store{}
	e := engine(j)
	e.Unrecorded = func(r *turn.Result) { t.Errorf("the answer of a replaced run: %+v", r) }
	in := input(c)
	in.Redact = func(text string) string { // called when the reply has arrived
		if s.asked() == 1 {
			entries := entries(t, j, "uid")
			last := entries[len(entries)-1]
			if err := j.Append(t.Context(), "uid", journal.Entry{
				Seq: last.Seq + 1, Epoch: 2, Kind: journal.RunStarted, Version: 1, Time: at, Payload: []byte("{}"),
			}); err != nil && !errors.Is(err, journal.ErrSequence) {
				t.Error(err)
			}
		}
		return text
	}
	if result, err := e.Run(t.Context(), new(in)); !errors.Is(err, journal.ErrFenced) || result != nil {
		t.Errorf("Run = %+v, %v; want the error of a replaced run", result, err)
	}
}
