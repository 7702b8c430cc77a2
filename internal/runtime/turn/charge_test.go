package turn_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// deletedInput returns the input of a Turn that calls a tool once. during is called during the call.
func deletedInput(during func()) (turn.Input, *script) {
	c, s := candidate("p0", 1, asks("send", "{}"), says("Done."))
	in := inTalk("a", "Send it.", c)
	in.Namespace = "helpdesk"
	in.Preparation = preparationOf(func(m *prepare.Input) { m.Turn.Session = &turncontext.Session{ID: "talk"} })
	in.Policy.Unvalidated = true
	in.Tools = []tool.Tool{named("send", tool.Destructive, func(context.Context, tool.Call) (tool.Result, error) {
		during()
		return tool.Result{Content: "sent"}, nil
	})}
	return in, s
}

// noChildren is the SubAgentUsageFunc of a Turn without sub-agents.
func noChildren(context.Context, turn.DeletedTurn, loop.Intent, string) (tool.Result, error) {
	return tool.Result{}, errors.New("the Turn has no sub-agents")
}

// charge charges the Turn with the UID "a" to its Session.
func charge(t *testing.T, j journal.Journal) *turn.SessionPosition {
	t.Helper()
	a, err := engine(j).OpenDeletedTurn(t.Context(), "a", noChildren)
	if err != nil || a == nil {
		t.Fatalf("OpenDeletedTurn = %v, %v; want a Turn to charge", a, err)
	}
	if a.Namespace != "helpdesk" || a.Session.UID != "talk-uid" || a.Session.Name != "talk" {
		t.Errorf("charged to Session %+v of namespace %q, want the Session of the Turn", a.Session, a.Namespace)
	}
	place, err := a.Charge(a.Session)
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// TestRunOfADeletedTurnStops checks that a run stops after the Turn was charged, so that it spends nothing that is
// never charged.
func TestRunOfADeletedTurnStops(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			var place *turn.SessionPosition
			in, s := deletedInput(func() { place = charge(t, j) })
			if result, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, journal.ErrFenced) || s.asked() != 1 {
				t.Errorf("Run = %+v, %v with %d requests; want ErrFenced and one request", result, err, s.asked())
			}
			want := model.Usage{InputTokens: 1000, OutputTokens: 100}
			if place == nil || place.Number != 1 || place.Totals.Usage != want || place.Totals.Cost == nil ||
				place.Totals.Cost.Amount != "0.002" {
				t.Errorf("place %+v, want number 1 with the usage and the cost of the reply", place)
			}
			if h := history(t, j); len(h.Turns) != 1 || len(h.Turns[0].Messages) != 0 {
				t.Errorf("history %+v, want the Turn without messages", h.Turns)
			}
			if diff := cmp.Diff(place, charge(t, j)); diff != "" || len(history(t, j).Turns) != 1 {
				t.Errorf("after a second charge, the history has %d Turns, and the place differs: -want +got:\n%s",
					len(history(t, j).Turns), diff)
			}
		})
	}
}

// TestEndedTurnIsChargedWithItsResult charges a Turn whose process was killed before it added the Turn to the Session.
func TestEndedTurnIsChargedWithItsResult(t *testing.T) {
	whole, cut := &journaltest.Store{}, &journaltest.Store{}
	in, _ := deletedInput(func() {})
	result := mustRun(t, whole, in)
	copyTurn(t, whole, cut, "a", len(entries(t, whole, "a"))) // without the addition to the Session
	if diff := cmp.Diff(result.Session, charge(t, cut)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(history(t, whole), history(t, cut)); diff != "" {
		t.Errorf("the history has other messages: -want +got:\n%s", diff)
	}
}

// TestALongAnswerIsChargedWithItsText charges a Turn that was deleted, or whose object ended without an executor, after
// its process was killed before it added the Turn to the Session. The answer is too long for the entry of its end.
func TestALongAnswerIsChargedWithItsText(t *testing.T) {
	whole := &journaltest.Store{}
	c, _ := candidate("p0", 1, says(strings.Repeat("long ", 20_000)))
	in := inTalk("a", "Tell me all.", c)
	in.Namespace = "helpdesk"
	in.Preparation = preparationOf(func(m *prepare.Input) { m.Turn.Session = &turncontext.Session{ID: "talk"} })
	result := mustRun(t, whole, in)
	if result.Answer == nil {
		t.Fatal("the answer is in its entry, want it in an artifact")
	}
	for name, add := range map[string]func(*testing.T, journal.Journal) *turn.SessionPosition{
		"deleted": func(t *testing.T, j journal.Journal) *turn.SessionPosition { t.Helper(); return charge(t, j) },
		"ended": func(t *testing.T, j journal.Journal) (place *turn.SessionPosition) {
			t.Helper()
			object := turn.Input{UID: "a", Namespace: "helpdesk", Name: "turn-a", Session: in.Session}
			end := turn.ObjectEnd{Stop: turn.StopDeadline, At: at, Epoch: 1}
			end.Charge = func(p *turn.SessionPosition) error { place = p; return nil }
			if recorded, err := engine(j).EndFromObject(t.Context(), &object, end, noChildren); recorded || err != nil {
				t.Errorf("EndFromObject = %t, %v; want false, because the journal has the end", recorded, err)
			}
			return place
		},
	} {
		t.Run(name, func(t *testing.T) {
			cut := &journaltest.Store{}
			copyTurn(t, whole, cut, "a", len(entries(t, whole, "a"))) // without the addition to the Session
			if diff := cmp.Diff(result.Session, add(t, cut)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(history(t, whole), history(t, cut)); diff != "" {
				t.Errorf("the history has other messages: -want +got:\n%s", diff)
			}
		})
	}
}

// TestJournalsWithoutACharge checks journals without a Session, without a request and without entries, and
// the journal of a Session.
func TestJournalsWithoutACharge(t *testing.T) {
	for name, tc := range map[string]struct {
		uid    string
		change func(*turn.Input)
	}{
		"no Session": {"a", func(in *turn.Input) { in.Session = nil }},
		"no request": {"a", func(in *turn.Input) { in.PrepareOnly = true }},
		"no request was sent": {"a", func(in *turn.Input) {
			c, _ := candidate("p0", 1, notSent())
			in.Chain = []loop.Candidate{c}
		}},
		"no entries": {"b", func(*turn.Input) {}},
		"a Session":  {"talk-uid", func(*turn.Input) {}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			in, _ := deletedInput(func() {})
			tc.change(&in)
			mustRun(t, j, in)
			before := len(entries(t, j, tc.uid))
			if a, err := engine(j).OpenDeletedTurn(t.Context(), tc.uid, noChildren); a != nil || err != nil {
				t.Errorf("OpenDeletedTurn = %+v, %v; want nothing", a, err)
			}
			if n := len(entries(t, j, tc.uid)); n != before {
				t.Errorf("%d entries were added, want none", n-before)
			}
		})
	}
}

// TestADeletedTurnReportsACallOfUnknownOutcome checks that a call is reported if its outcome is unknown, because the
// call may have taken effect.
func TestADeletedTurnReportsACallOfUnknownOutcome(t *testing.T) {
	j := &journaltest.Store{}
	var kill context.CancelCauseFunc
	in, _ := deletedInput(func() { kill(errors.New("killed")) })
	ctx, c := control(t, &in)
	kill = c.abandon
	stopped := &stopping{Store: j}
	if _, err := engine(stopped).Run(ctx, new(in)); err == nil {
		t.Fatal("the Turn has ended, want it cut off")
	}
	charge(t, j)
	ends := entries(t, j, "a")
	result := decoded[turn.Result](t, ends[len(ends)-1])
	if result.Stop != turn.StopCancelled || result.Message != "the turn was deleted before its end" || result.Counts.Resumes != 0 {
		t.Errorf("the Turn ended with %s, %q and %d resumes; want it cancelled as deleted, and none",
			result.Stop, result.Message, result.Counts.Resumes)
	}
	if result.Counts.UnknownOutcomes != 1 || len(result.Calls) != 1 || result.Calls[0].Outcome != loop.Unknown {
		t.Errorf("%d unknown outcomes and the calls %+v, want the one call", result.Counts.UnknownOutcomes, result.Calls)
	}
}

// stopping is a journal that refuses appends after the intent of a call, as if the process was killed there.
type stopping struct {
	*journaltest.Store
	intended bool
}

func (s *stopping) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	if s.intended {
		return errors.New("killed")
	}
	for _, e := range all {
		s.intended = s.intended || e.Kind == journal.ToolIntended
	}
	return s.Store.Append(ctx, uid, all...)
}

// TestAPanicInACharge checks that each function that works on the journal of a deleted Turn returns a panic as an
// error.
func TestAPanicInACharge(t *testing.T) {
	broken := &turn.Engine{} // has neither a journal nor a clock
	for name, call := range map[string]func() error{
		"OpenDeletedTurn": func() error { _, err := broken.OpenDeletedTurn(t.Context(), "a", noChildren); return err },
		"EndDeletedTurn":  func() error { _, err := broken.EndDeletedTurn(t.Context(), "a", noChildren); return err },
		"Charge":          func() error { _, err := new(turn.ChargeableTurn).Charge(turn.Session{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			if bug, ok := errors.AsType[*turn.PanicError](call()); !ok || bug.Stack == "" {
				t.Errorf("%s returned no PanicError", name)
			}
		})
	}
}

// TestAPausedRunAddsNothingAfterTheCharge checks that the Session of a Turn that ended without an executor has the same
// usage as the record of the Turn, even if the run of a paused executor continues during the charge. A charge that
// fails and is repeated does not count as a run of the Turn.
func TestAPausedRunAddsNothingAfterTheCharge(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			in, _ := deletedInput(func() {})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			in.BeforeEffect = func(context.Context) error { cancel(); return context.Canceled }
			if _, err := engine(j).Run(ctx, &in); err == nil {
				t.Fatal("the Turn has ended, want it cut off")
			}
			var reply journal.Entry
			for _, e := range entries(t, j, "a") {
				if e.Kind == journal.ModelReplied {
					reply = e
				}
			}
			tries := 0
			end := turn.ObjectEnd{Stop: turn.StopDeadline, At: at, Epoch: in.Epoch, Charge: func(*turn.SessionPosition) error {
				tries++
				n, err := j.Last(t.Context(), "a")
				if err != nil {
					return err
				}
				reply.Seq = n + 1
				if err := j.Append(t.Context(), "a", reply); !errors.Is(err, journal.ErrFenced) {
					t.Errorf("the paused run appends a reply: %v, want ErrFenced", err)
				}
				if tries < 3 {
					return errors.New("the API server is not available")
				}
				return nil
			}}
			for recorded := false; !recorded && tries < 5; {
				object := turn.Input{UID: "a", Namespace: "helpdesk", Name: "turn-a", Session: in.Session}
				var err error
				if recorded, err = engine(j).EndFromObject(t.Context(), &object, end, noChildren); recorded != (tries == 3) {
					t.Fatalf("EndFromObject = %t, %v in attempt %d; want the end in attempt 3", recorded, err, tries)
				}
			}
			all := entries(t, j, "a")
			result := decoded[turn.Result](t, all[len(all)-1])
			want := result.Record.Usage
			if got := history(t, j).Totals.Usage; got != want || want.InputTokens != 1000 {
				t.Errorf("the Session has the usage %+v, and the Turn %+v; want the same", got, want)
			}
			if result.Counts.Resumes != 0 {
				t.Errorf("%d resumes, want none", result.Counts.Resumes)
			}
			fences := 0
			for _, e := range all {
				if e.Kind == journal.RunStarted && e.Epoch > in.Epoch {
					fences++
				}
			}
			if fences != 1 {
				t.Errorf("%d entries fence the paused run, want one for all attempts", fences)
			}
		})
	}
}
