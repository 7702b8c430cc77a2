package turnstatus_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

func TestProgressKeepsTheNewestCalls(t *testing.T) {
	calls := func(n int, id string) []turn.CallRecord {
		var all []turn.CallRecord
		for i := range n {
			all = append(all, turn.CallRecord{CallID: fmt.Sprintf("%s%d", id, i), Name: "search", Step: 1, Outcome: "Succeeded"})
		}
		return all
	}
	long := strings.Repeat("\U0001F680", 500)
	for name, tc := range map[string]struct {
		reason      string
		calls       []turn.CallRecord
		most, least int
	}{
		"ordinary": {"the 50 calls that the schema allows", calls(50, "call_0123456789abcdefghijkl"), 50, 50},
		"too many": {"the newest 50 calls", calls(60, "c"), 50, 50},
		"long ids": {"as many calls as fit into 16 KiB", calls(50, long), 49, 20},
	} {
		t.Run(name, func(t *testing.T) {
			var got v1alpha1.Turn
			progress := &turn.Progress{Counts: turn.Counts{Steps: 2}, Calls: tc.calls}
			turnstatus.ReportProgress(&got, turnstatus.Run{Progress: progress}, nil, now)
			kept := got.Status.ToolCalls
			if len(kept) > tc.most || len(kept) < tc.least || got.Status.Steps.Count != 2 {
				t.Fatalf("kept %d calls, want %d to %d: %s", len(kept), tc.least, tc.most, tc.reason)
			}
			last := kept[len(kept)-1].CallID
			if want := tc.calls[len(tc.calls)-1].CallID; !strings.HasPrefix(want, last) || utf8.RuneCountInString(last) > 128 {
				t.Errorf("the last call is %q, want the newest, with an ID of at most 128 characters", last)
			}
			data, err := json.Marshal(kept)
			if err != nil || len(data) > 16<<10+2 {
				t.Errorf("%d bytes of JSON (error %v), want at most 16 KiB", len(data), err)
			}
		})
	}
}

// TestProgressOfPendingCalls checks that a call leaves the list of pending calls when it is decided or has ended.
func TestProgressOfPendingCalls(t *testing.T) {
	got := bound()
	got.Status.Usage = &v1alpha1.Usage{TotalTokens: 9}
	for _, call := range []string{"made", "denied", "pending", "other"} {
		got.Status.PendingApprovals = append(got.Status.PendingApprovals, v1alpha1.PendingApproval{Step: 2, CallID: call})
	}
	turnstatus.ReportProgress(got, turnstatus.Run{Progress: &turn.Progress{Calls: []turn.CallRecord{
		{Step: 2, CallID: "made", Outcome: "Succeeded"},
		{Step: 2, CallID: "denied", DecidedBy: "jane"},
		{Step: 2, CallID: "pending"},
		{Step: 1, CallID: "other", Outcome: "Succeeded"},
	}}}, nil, now)
	want := []v1alpha1.PendingApproval{{Step: 2, CallID: "pending"}, {Step: 2, CallID: "other"}}
	if diff := cmp.Diff(want, got.Status.PendingApprovals); diff != "" {
		t.Errorf("pending: -want +got:\n%s", diff)
	}
	if got.Status.Usage.TotalTokens != 9 {
		t.Errorf("usage %+v, want that of earlier runs: this run has no usage", got.Status.Usage)
	}
}

// TestProgressOfWaits checks the state of a run that waits for RAM or for a ModelProvider.
func TestProgressOfWaits(t *testing.T) {
	got := bound()
	const short = `Running: bound to executor "e", and waiting for RAM of the manager: the conversations of the namespace use ` +
		`their whole share of it`
	for _, step := range []struct {
		waits *turnstatus.RunWait
		want  string
	}{
		{nil, "Running: running"},
		{&turnstatus.RunWait{Memory: true}, short},
		{nil, short},
		{&turnstatus.RunWait{}, `Running: bound to executor "e"`},
		{
			&turnstatus.RunWait{Provider: "openai"},
			`Queued: bound to executor "e", and waiting for ModelProvider "openai": its rate limits or its circuit breaker hold ` +
				`the next request back`,
		},
		{&turnstatus.RunWait{}, `Running: bound to executor "e"`},
	} {
		turnstatus.ReportProgress(got, turnstatus.Run{}, step.waits, now)
		if state := got.StateReason() + ": " + got.Status.Conditions[0].Message; state != step.want || got.BoundTo() != "e" {
			t.Errorf("%s, bound to %q, want %s, bound to e", state, got.BoundTo(), step.want)
		}
	}
}

// TestRunRecordsItsJournal checks what each kind of write says about the journal. The number of entries is exact only
// if the run hands its Turn back, because such a run writes no more entries.
func TestRunRecordsItsJournal(t *testing.T) {
	known := turnstatus.Run{Store: &store.Identity{ID: "new", Incarnation: "2"}, Entries: new(int64(4))}
	stays := known
	stays.StaysBound = true
	handedBack := v1alpha1.ExecutorBinding{
		Epoch: 3, StoreID: "new", StoreIncarnation: "2", JournalEntries: new(int64(4)), JournalComplete: true,
	}
	running := handedBack
	running.Name, running.JournalComplete = "e", false
	marked := running
	marked.SideEffects = true
	local := handedBack
	local.Name = "e"
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Turn, turnstatus.Run)
		run    turnstatus.Run
		want   v1alpha1.ExecutorBinding
		reason string
	}{
		"released": {func(t *v1alpha1.Turn, r turnstatus.Run) {
			turnstatus.Release(t, r, v1alpha1.TurnReasonPending, "", now)
		}, known, handedBack, v1alpha1.TurnReasonPending},
		"suspended": {func(t *v1alpha1.Turn, r turnstatus.Run) {
			turnstatus.Suspend(t, r, nil, now)
		}, known, handedBack, v1alpha1.TurnReasonSuspended},
		"parked": {func(t *v1alpha1.Turn, r turnstatus.Run) {
			turnstatus.Park(t, r, &loop.Parked{Turns: []string{"child"}}, now)
		}, known, handedBack, v1alpha1.TurnReasonWaitingForSubAgent},
		"parked by capstan run": {func(t *v1alpha1.Turn, r turnstatus.Run) {
			turnstatus.Park(t, r, &loop.Parked{Turns: []string{"child"}}, now)
		}, stays, local, v1alpha1.TurnReasonWaitingForSubAgent},
		"running": {func(t *v1alpha1.Turn, r turnstatus.Run) {
			turnstatus.ReportProgress(t, r, &turnstatus.RunWait{Memory: true}, now)
		}, known, running, v1alpha1.TurnReasonRunning},
		"before a side effect": {func(t *v1alpha1.Turn, r turnstatus.Run) {
			turnstatus.MarkSideEffects(t, r)
		}, known, marked, v1alpha1.TurnReasonRunning},
		"nothing begun": {func(t *v1alpha1.Turn, r turnstatus.Run) {
			turnstatus.Release(t, r, v1alpha1.TurnReasonPending, "", now)
		}, turnstatus.Run{Entries: new(int64(0))}, v1alpha1.ExecutorBinding{
			Epoch: 3, StoreID: "old", JournalEntries: new(int64(0)), JournalComplete: true,
		}, v1alpha1.TurnReasonPending},
		"nothing known": {func(t *v1alpha1.Turn, r turnstatus.Run) {
			turnstatus.Release(t, r, v1alpha1.TurnReasonPending, "", now)
		}, turnstatus.Run{}, v1alpha1.ExecutorBinding{Epoch: 3, StoreID: "old"}, v1alpha1.TurnReasonPending},
	} {
		t.Run(name, func(t *testing.T) {
			got := bound()
			got.Status.Executor.StoreID = "old"
			tc.change(got, tc.run)
			if diff := cmp.Diff(&tc.want, got.Status.Executor); diff != "" || got.StateReason() != tc.reason {
				t.Errorf("reason %q, want %q; binding: -want +got:\n%s", got.StateReason(), tc.reason, diff)
			}
		})
	}
}

func TestReleaseUnprepared(t *testing.T) {
	got := bound()
	turnstatus.ReleaseUnprepared(got, turnstatus.Run{}, v1alpha1.TurnReasonWaitingForAgent, "it is gone", now)
	want := []string{"Succeeded=Unknown/WaitingForAgent", "Reconciling=True/WaitingForAgent", "Prepared=Unknown/NotPrepared"}
	if diff := cmp.Diff(want, conditions(got)); diff != "" {
		t.Errorf("conditions: -want +got:\n%s", diff)
	}
}

func TestStartOver(t *testing.T) {
	got := bound()
	got.Status.Executor.JournalEntries, got.Status.Executor.JournalComplete = new(int64(4)), true
	got.Status.Steps, got.Status.Usage = &v1alpha1.StepCounts{Count: 2}, &v1alpha1.Usage{TotalTokens: 9}
	turnstatus.StartOver(got, &turnstatus.Loss{Reason: "OtherStore", Facts: "it is gone"}, store.Identity{ID: "new", Incarnation: "2"}, now)
	want := v1alpha1.ExecutorBinding{Name: "e", Epoch: 3, StoreID: "new", StoreIncarnation: "2"}
	if diff := cmp.Diff(&want, got.Status.Executor); diff != "" || got.Status.Steps != nil || got.Status.Usage != nil {
		t.Errorf("status %+v, want no counts of earlier runs; binding: -want +got:\n%s", got.Status, diff)
	}
	if c := conditions(got); !slices.Contains(c, "JournalLost=True/OtherStore") {
		t.Errorf("conditions %v, want the loss", c)
	}
}

func TestResultData(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, data string
		want         bool
	}{
		"none":      {"the answer has no data", "", false},
		"fits":      {"the bound itself is allowed", `"` + strings.Repeat("x", 32<<10-2) + `"`, true},
		"too long":  {"only the text has the answer", `"` + strings.Repeat("x", 32<<10-1) + `"`, false},
		"not valid": {"the API server would reject the whole status", `{`, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := bound()
			turnstatus.Finish(got, &turn.Result{Stop: turn.StopCompleted, Text: "x", Data: json.RawMessage(tc.data)}, now)
			if has := got.Status.Result.Data != nil; has != tc.want {
				t.Errorf("has data: %t, want %t: %s", has, tc.want, tc.reason)
			}
		})
	}
}

// TestLargestStatus checks that the status of any run and a spec of the largest size fit into an object of 256 KiB.
func TestLargestStatus(t *testing.T) {
	const mostBytes = 256<<10 - v1alpha1.MaxSpecBytes
	hostile := strings.Repeat("\x01", 1000)
	many := func(n int, text string) []string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("%d%s", i, text))
		}
		return all
	}
	ids := many(500, strings.Repeat("\U0001F680", 60))
	r := &turn.Result{
		Stop: turn.StopModelError, Message: strings.Repeat(hostile, 10), Text: strings.Repeat(hostile, 100),
		Data:        json.RawMessage(`"` + strings.Repeat("x", 32<<10-2) + `"`),
		Preparation: &prepare.Report{Report: prompt.Report{Sections: many(16, strings.Repeat("s", 60))}},
		Record: finalize.Record{
			Usage: model.Usage{InputTokens: model.MaxTokens}, Cost: &finalize.Cost{Amount: strings.Repeat("9", 40), Currency: "USD"},
			Citations: many(8, strings.Repeat("\U0001F680", 500)), Failures: []string{strings.Repeat(hostile, 10)},
			Decision: &finalize.Decision{Key: "k", ToolsUsed: many(64, strings.Repeat("t", 60))},
		},
		Answer: &turn.Artifact{Name: "answer.txt"},
	}
	r.Preparation.Provenance = turncontext.Provenance{
		UsedMemoryIDs: ids, DroppedMemoryIDs: ids, UsedEnrichmentIDs: ids, DroppedEnrichmentIDs: ids,
		UsedGuardrailIDs: ids, UsedOverlayIDs: ids,
	}
	for i := range 8 {
		r.Record.WebCitations = append(r.Record.WebCitations, citation.Page{
			Title: strings.Repeat("\U0001F680", 256), URL: fmt.Sprintf("https://shop.example/%d%s", i, strings.Repeat("x", 1000)),
		})
	}
	for i := range 16 {
		path := fmt.Sprintf("$.%d%s", i, strings.Repeat("\U0001F680", 250))
		r.Redactions = append(r.Redactions, turn.Redaction{Rule: path, Matches: 1 << 60})
	}
	for range turn.MaxCalls {
		r.Calls = append(r.Calls, turn.CallRecord{
			CallID: hostile, Name: hostile, Step: 1 << 30, Bytes: 1 << 60,
			DurationMS: 1 << 60, DecidedBy: hostile,
		})
	}
	got := bound()
	turnstatus.Finish(got, r, now)
	if len(got.Status.ToolCalls) == 0 || got.Status.Result.Data == nil || !got.Status.Preparation.Provenance.Truncated {
		t.Fatal("the status is not the largest possible one")
	}
	data, err := json.Marshal(got.Status)
	t.Logf("%d bytes", len(data))
	if err != nil || len(data) > mostBytes {
		t.Errorf("%d bytes of JSON (error %v), want at most %d", len(data), err, mostBytes)
	}
}
