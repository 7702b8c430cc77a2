package turn_test

import (
	"context"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// recordOf returns the only record of a store.
func recordOf(t *testing.T, j *journaltest.Memory) turnrecord.Record {
	t.Helper()
	all, err := j.Records(t.Context(), store.RecordQuery{})
	if err != nil || len(all) != 1 {
		t.Fatalf("records: %+v, %v; want one", all, err)
	}
	return all[0]
}

var about = turnrecord.About{Agent: "desk", Labels: map[string]string{"team": "red"}}

// TestRecordOfATurn checks that the end of a Turn leaves a record, without a word of the conversation, and that a later
// run of the same Turn changes nothing.
func TestRecordOfATurn(t *testing.T) {
	j := &journaltest.Memory{}
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
		t.Errorf("models %+v, want the usage of the one that was asked", got.Models)
	}
	data, err := got.MarshalDetails()
	if err != nil || strings.Contains(string(data), "xyzzy") || strings.Contains(string(data), "secret word") {
		t.Errorf("the record has a text of the conversation: %s, %v", data, err)
	}
}

// TestRecordOfADeletedTurn checks that a Turn whose object is gone leaves a record with the Agent and the requester,
// which only its journal knows.
func TestRecordOfADeletedTurn(t *testing.T) {
	j := &journaltest.Memory{}
	deleted := false
	in, _ := deletedIn(func() { deleted = true })
	in.About, in.Name, in.Requester = about, "turn-a", "ada"
	ctx, cancel := context.WithCancel(t.Context())
	in.Interrupt = make(chan struct{})
	in.BeforeEffect = func(context.Context) error { cancel(); return context.Canceled }
	if _, err := engine(j).Run(ctx, &in); err == nil || deleted {
		t.Fatalf("Run: %v, want that the run stops before the call", err)
	}
	if all, err := j.Records(t.Context(), store.RecordQuery{}); err != nil || len(all) != 0 {
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
