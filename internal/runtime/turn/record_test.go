package turn_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// recordOf returns the only record of a store.
func recordOf(t *testing.T, j *journaltest.Store) turnrecord.Record {
	t.Helper()
	all, _, err := j.Records(t.Context(), store.RecordQuery{})
	if err != nil || len(all) != 1 {
		t.Fatalf("records: %+v, %v; want one", all, err)
	}
	return all[0]
}

var about = turnrecord.About{Agent: "desk", Labels: map[string]string{"team": "red"}}

// TestRecordOfATurn checks that the end of a Turn leaves a record without any text of the conversation, and that a
// later run of the same Turn does not change the record.
func TestRecordOfATurn(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, says("The secret word is xyzzy."))
	in := inTalk("a", "Say the secret word.", c)
	in.Namespace, in.Name, in.Requester, in.About = "helpdesk", "turn-a", "ada", about
	e := engine(j)
	e.ReasonOf = func(s turn.Stop) string { return "Reason" + string(s) }
	for range 2 {
		if _, err := e.Run(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
		in.Epoch++
	}
	got := recordOf(t, j)
	if got.UID != "a" || got.Namespace != "helpdesk" || got.Turn != "turn-a" || got.Agent != "desk" || got.Requester != "ada" ||
		got.Session != "talk" || got.TurnNumber != 1 || got.Reason != "ReasonCompleted" || got.Strategy != "DirectAnswer" ||
		got.Labels["team"] != "red" || got.PromptRenderHash == "" || got.Prompt == nil || got.Completed.IsZero() {
		t.Errorf("record %+v", got)
	}
	if len(got.Models) != 1 || got.Models[0].Provider != "p0" || got.Models[0].Usage.InputTokens == 0 {
		t.Errorf("models %+v, want the usage of the model that was asked", got.Models)
	}
	data, err := got.MarshalDetails()
	if err != nil || strings.Contains(string(data), "xyzzy") || strings.Contains(string(data), "secret word") {
		t.Errorf("the record has a text of the conversation: %s, %v", data, err)
	}
}

// TestRecordOfADeletedTurn checks that the record of a Turn whose object is gone has the Agent and the requester from
// the journal.
func TestRecordOfADeletedTurn(t *testing.T) {
	j := &journaltest.Store{}
	called := false
	in, _ := deletedInput(func() { called = true })
	in.About, in.Name, in.Requester = about, "turn-a", "ada"
	ctx, cancel := context.WithCancel(t.Context())
	in.Interrupt = make(chan struct{})
	in.BeforeEffect = func(context.Context) error { cancel(); return context.Canceled }
	if _, err := engine(j).Run(ctx, &in); err == nil || called {
		t.Fatalf("Run: %v, want the run to stop before the call", err)
	}
	if all, _, err := j.Records(t.Context(), store.RecordQuery{}); err != nil || len(all) != 0 {
		t.Fatalf("records %v, %v; want none before the end", all, err)
	}
	for range 2 {
		if _, err := engine(j).EndDeletedTurn(t.Context(), "a", noChildren); err != nil {
			t.Fatal(err)
		}
	}
	if got := recordOf(t, j); got.Reason != "Cancelled" || got.Agent != "desk" || got.Requester != "ada" || got.Session != "talk" ||
		got.Turn != "turn-a" || got.Namespace != "helpdesk" || len(got.Models) != 1 {
		t.Errorf("record %+v", got)
	}
}

// TestRecordOfATurnThatEndedWithoutAnExecutor checks that EndFromObject writes the end from the object into the
// journal, with a record of all usage in the journal. A journal that has lost entries, or has an end, does not change.
func TestRecordOfATurnThatEndedWithoutAnExecutor(t *testing.T) {
	for name, tc := range map[string]struct {
		known int64
		ended bool
		want  bool
	}{
		"whole": {want: true}, "entries are lost": {known: 1000}, "ended": {ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			in, _ := deletedInput(func() {})
			ctx, cancel := context.WithCancel(t.Context())
			if !tc.ended {
				in.BeforeEffect = func(context.Context) error { cancel(); return context.Canceled }
			}
			_, err := engine(j).Run(ctx, &in)
			if cancel(); (err == nil) != tc.ended {
				t.Fatalf("Run: %v", err)
			}
			before := len(entries(t, j, "a"))
			object := turn.Input{
				UID: "a", Namespace: "helpdesk", Name: "turn-a", Requester: "ada", About: about, Session: &turn.Session{Name: "talk"},
			}
			end := turn.ObjectEnd{
				Stop: turn.StopDeadline, Message: "no executor was available", Reason: "DeadlineExceeded",
				At: engine(j).Now().Add(time.Hour), Entries: tc.known,
			}
			for i := range 2 {
				recorded, err := engine(j).EndFromObject(t.Context(), new(object), end, noChildren)
				if err != nil || recorded != (tc.want && i == 0) {
					t.Fatalf("EndFromObject = %v, %v; want true only from the first call for a whole journal", recorded, err)
				}
			}
			all := entries(t, j, "a")
			if !tc.want {
				if len(all) != before {
					t.Errorf("%d entries were added, want none", len(all)-before)
				}
				return
			}
			if last := all[len(all)-1]; last.Kind != journal.Finalized || !strings.Contains(string(last.Payload), end.Message) {
				t.Errorf("the last entry is %q, want the end", last.Kind)
			}
			got := recordOf(t, j)
			if got.Reason != "DeadlineExceeded" || got.Agent != "desk" || got.Requester != "ada" || got.Session != "talk" ||
				got.Turn != "turn-a" || got.Labels["team"] != "red" || !got.Completed.Equal(end.At.Truncate(time.Microsecond)) ||
				got.ElapsedMilliseconds < time.Hour.Milliseconds() ||
				len(got.Models) != 1 || got.Models[0].Usage.InputTokens != 1000 || got.Models[0].Cost == nil {
				t.Errorf("record %+v, want the usage and the cost of the reply", got)
			}
		})
	}
}

// TestAJournalWithoutEntriesIsFenced checks that a run that was paused before its first entry cannot begin after the
// object of its Turn has ended.
func TestAJournalWithoutEntriesIsFenced(t *testing.T) {
	j := &journaltest.Store{}
	begun := false
	in, s := deletedInput(func() { begun = true })
	object := turn.Input{UID: "a", Namespace: "helpdesk", Name: "turn-a", Requester: "ada", About: about}
	end := turn.ObjectEnd{Stop: turn.StopDeadline, Reason: "DeadlineExceeded", At: engine(j).Now(), Epoch: in.Epoch}
	for range 2 {
		if recorded, err := engine(j).EndFromObject(t.Context(), new(object), end, noChildren); err != nil || recorded {
			t.Fatalf("EndFromObject: %v, %v; want the object to be the source of the record", recorded, err)
		}
	}
	if _, err := engine(j).Run(t.Context(), &in); !errors.Is(err, journal.ErrFenced) || begun || len(s.requests) > 0 {
		t.Errorf("Run: %v with %d requests, want ErrFenced and none", err, len(s.requests))
	}
	if all := entries(t, j, "a"); len(all) != 2 || all[1].Kind != journal.Finalized {
		t.Errorf("%d entries, want the beginning and the end", len(all))
	}
	if namespace, err := engine(j).Namespace(t.Context(), "a"); namespace != "helpdesk" || err != nil {
		t.Errorf("Namespace = %q, %v; want the namespace of the Turn", namespace, err)
	}
	if all, _, err := j.Records(t.Context(), store.RecordQuery{}); err != nil || len(all) != 0 {
		t.Errorf("records %v, %v; want none", all, err)
	}
}
