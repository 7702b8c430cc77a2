package turnstatus_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// TestCutOff checks what the status says about calls whose results are unknown.
func TestCutOff(t *testing.T) {
	lost := func(sideEffects bool) turnstatus.Cut {
		return turnstatus.Cut{
			Stop: turn.StopInterrupted, Message: "so it ended",
			Loss: &turnstatus.Loss{Reason: "OtherStore", Facts: "it is gone", SideEffects: sideEffects},
		}
	}
	fault := turnstatus.Cut{Stop: turn.StopInterrupted, Message: "so it ended"}
	pending := []v1alpha1.ToolCallRecord{
		{CallID: "a", Outcome: v1alpha1.ToolCallSucceeded}, {CallID: "b", Outcome: v1alpha1.ToolCallPending},
	}
	ended := []string{"Succeeded=False/Interrupted", "Stalled=True/Interrupted", "Finalized=False/PartiallyFinalized"}
	endedByLoss := slices.Insert(slices.Clone(ended), 2, "JournalLost=True/OtherStore")
	const withoutResult = "the record has only the facts of the status: the run had no result"
	const withoutJournal = "the record has only the facts of the status: the journal was lost"
	for name, tc := range map[string]struct {
		why        string
		binding    v1alpha1.ExecutorBinding
		calls      []v1alpha1.ToolCallRecord
		progress   *turn.Progress
		cut        turnstatus.Cut
		unknown    int32
		outcomes   []v1alpha1.ToolCallOutcome
		conditions []string
		missing    string
	}{
		"a fault": {
			"a call without side effects does not count",
			v1alpha1.ExecutorBinding{},
			pending, nil, fault,
			0,
			[]v1alpha1.ToolCallOutcome{"Succeeded", "Unknown"},
			ended, withoutResult,
		},
		"a fault after side effects": {
			"the pending call may have been made",
			v1alpha1.ExecutorBinding{SideEffects: true},
			pending, nil, fault,
			1,
			[]v1alpha1.ToolCallOutcome{"Succeeded", "Unknown"},
			ended, withoutResult,
		},
		"a fault after side effects that no call shows": {
			"a call may have been made since the last write",
			v1alpha1.ExecutorBinding{SideEffects: true},
			nil, nil, fault,
			1, nil, ended, withoutResult,
		},
		"a fault before anything began": {
			"no call was made",
			v1alpha1.ExecutorBinding{SideEffects: true, JournalEntries: new(int64(0)), JournalComplete: true},
			nil, nil, fault, 0, nil, ended, withoutResult,
		},
		"a fault with newer progress": {
			"the run knows more than the status",
			v1alpha1.ExecutorBinding{SideEffects: true},
			pending,
			&turn.Progress{Counts: turn.Counts{UnknownOutcomes: 2}, Calls: []turn.CallRecord{{CallID: "c"}}}, fault,
			3,
			[]v1alpha1.ToolCallOutcome{"Unknown"},
			ended, withoutResult,
		},
		"a lost journal": {
			"the loss has no side effects, whatever the binding says",
			v1alpha1.ExecutorBinding{SideEffects: true},
			pending, nil, lost(false),
			0,
			[]v1alpha1.ToolCallOutcome{"Succeeded", "Unknown"},
			endedByLoss, withoutJournal,
		},
		"a lost journal after side effects": {
			"the loss has side effects, whatever the binding says",
			v1alpha1.ExecutorBinding{},
			nil, nil, lost(true), 1, nil, endedByLoss, withoutJournal,
		},
		"a cancelled Turn": {
			"the reason follows from the stop",
			v1alpha1.ExecutorBinding{},
			nil, nil,
			turnstatus.Cut{Stop: turn.StopCancelled, Message: "so it ended"},
			0, nil,
			[]string{"Succeeded=False/Cancelled", "Stalled=True/Cancelled", "Finalized=False/PartiallyFinalized"},
			withoutResult,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := bound()
			got.Status.Executor, got.Status.ToolCalls = &tc.binding, slices.Clone(tc.calls)
			turnstatus.CutOff(got, tc.progress, tc.cut, now)
			if diff := cmp.Diff(tc.conditions, conditions(got)); diff != "" || got.Status.StopReason != v1alpha1.StopReason(tc.cut.Stop) {
				t.Errorf("stop reason %q, want %q; conditions: -want +got:\n%s", got.Status.StopReason, tc.cut.Stop, diff)
			}
			if s := got.Status; s.Conditions[0].Message != "so it ended" || s.Conditions[len(s.Conditions)-1].Message != tc.missing {
				t.Errorf("conditions %+v, want the message of the end, and %q", s.Conditions, tc.missing)
			}
			var outcomes []v1alpha1.ToolCallOutcome
			for _, c := range got.Status.ToolCalls {
				outcomes = append(outcomes, c.Outcome)
			}
			if diff := cmp.Diff(tc.outcomes, outcomes); diff != "" || got.Status.Steps.UnknownOutcomes != tc.unknown {
				t.Errorf("%d unknown outcomes, want %d: %s; calls: -want +got:\n%s",
					got.Status.Steps.UnknownOutcomes, tc.unknown, tc.why, diff)
			}
		})
	}
}

// TestCutOffCountsEachSubAgentOnce checks that no usage of a sub-agent is counted twice or lost.
func TestCutOffCountsEachSubAgentOnce(t *testing.T) {
	spent := func(name string, tokens int64) *tool.Spent {
		return &tool.Spent{Turn: name, Usage: model.Usage{InputTokens: tokens}}
	}
	for name, tc := range map[string]struct {
		why    string
		status v1alpha1.TurnStatus
		spent  []*tool.Spent
		want   *v1alpha1.Usage
	}{
		"none": {"the usage stays unset", v1alpha1.TurnStatus{}, nil, nil},
		"nothing new": {
			"the usage does not change",
			v1alpha1.TurnStatus{SubAgentUsage: &v1alpha1.Usage{InputTokens: 5, TotalTokens: 5}},
			nil,
			&v1alpha1.Usage{InputTokens: 5, TotalTokens: 5},
		},
		"none before": {
			"all Turns are new",
			v1alpha1.TurnStatus{},
			[]*tool.Spent{spent("a", 3), spent("b", 4)},
			&v1alpha1.Usage{InputTokens: 7, TotalTokens: 7, CostUnknown: true},
		},
		"known in part": {
			"the known parts of the costs are added, also that of the status",
			v1alpha1.TurnStatus{
				SubAgentUsage: &v1alpha1.Usage{InputTokens: 3, TotalTokens: 3, CostUnknown: true, KnownCost: "0.5"},
			},
			[]*tool.Spent{
				{Turn: "b", Usage: model.Usage{InputTokens: 2}, Known: new(decimal.RequireFromString("0.25"))},
				{Turn: "c", Usage: model.Usage{InputTokens: 1}, Cost: &model.Cost{Amount: decimal.NewFromInt(1), Currency: "USD"}},
			},
			&v1alpha1.Usage{InputTokens: 6, TotalTokens: 6, CostUnknown: true, KnownCost: "1.75"},
		},
		"one before": {
			"a listed call names the Turn that is already counted",
			v1alpha1.TurnStatus{
				SubAgentUsage: &v1alpha1.Usage{InputTokens: 3, TotalTokens: 3},
				Steps:         &v1alpha1.StepCounts{ToolCalls: 1}, ToolCalls: []v1alpha1.ToolCallRecord{{CallID: "x", Turn: "a"}},
			},
			[]*tool.Spent{spent("a", 3), spent("b", 4)},
			&v1alpha1.Usage{InputTokens: 7, TotalTokens: 7, CostUnknown: true},
		},
		"a listed Turn that is gone": {
			"its usage stays in the sum, because all calls are listed",
			v1alpha1.TurnStatus{
				SubAgentUsage: &v1alpha1.Usage{InputTokens: 3, TotalTokens: 3},
				Steps:         &v1alpha1.StepCounts{ToolCalls: 1}, ToolCalls: []v1alpha1.ToolCallRecord{{CallID: "x", Turn: "a"}},
			},
			[]*tool.Spent{spent("b", 4)},
			&v1alpha1.Usage{InputTokens: 7, TotalTokens: 7, CostUnknown: true},
		},
		"unlisted calls with the same usage": {
			"the status also knows the cost",
			v1alpha1.TurnStatus{
				SubAgentUsage: &v1alpha1.Usage{InputTokens: 4, TotalTokens: 4}, Steps: &v1alpha1.StepCounts{ToolCalls: 2},
			},
			[]*tool.Spent{spent("b", 4)},
			&v1alpha1.Usage{InputTokens: 4, TotalTokens: 4},
		},
		"unlisted calls with more output": {
			"input and output count together",
			v1alpha1.TurnStatus{
				SubAgentUsage: &v1alpha1.Usage{InputTokens: 5, TotalTokens: 5}, Steps: &v1alpha1.StepCounts{ToolCalls: 2},
			},
			[]*tool.Spent{{Turn: "b", Usage: model.Usage{InputTokens: 3, OutputTokens: 4}}},
			&v1alpha1.Usage{InputTokens: 3, OutputTokens: 4, TotalTokens: 7, CostUnknown: true},
		},
		"unlisted calls with more usage": {
			"the sum of the Turns is larger",
			v1alpha1.TurnStatus{
				SubAgentUsage: &v1alpha1.Usage{InputTokens: 3, TotalTokens: 3}, Steps: &v1alpha1.StepCounts{ToolCalls: 2},
			},
			[]*tool.Spent{spent("a", 3), spent("b", 4)},
			&v1alpha1.Usage{InputTokens: 7, TotalTokens: 7, CostUnknown: true},
		},
		"unlisted calls with less usage": {
			"a Turn that was counted has been deleted since",
			v1alpha1.TurnStatus{
				SubAgentUsage: &v1alpha1.Usage{InputTokens: 9, TotalTokens: 9}, Steps: &v1alpha1.StepCounts{ToolCalls: 2},
			},
			[]*tool.Spent{spent("b", 4)},
			&v1alpha1.Usage{InputTokens: 9, TotalTokens: 9},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := &v1alpha1.Turn{Status: tc.status}
			got.Status.Executor = &v1alpha1.ExecutorBinding{Name: "e", Epoch: 1}
			turnstatus.CutOff(got, nil, turnstatus.Cut{Stop: turn.StopInterrupted, SubAgents: tc.spent}, now)
			if diff := cmp.Diff(tc.want, got.Status.SubAgentUsage); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.why, diff)
			}
		})
	}
}

func TestLossMessages(t *testing.T) {
	const check = "the journal of the turn was lost: it is gone. The turn may have called tools after what its status shows, so it " +
		"does not start over. Check what these tools did; then create a new Turn, with spec.onJournalLoss set to Rerun if repeated " +
		"calls do no harm"
	for name, tc := range map[string]struct {
		loss            turnstatus.Loss
		status          v1alpha1.TurnStatus
		ends, startOver string
	}{
		"nothing is left": {
			turnstatus.Loss{Facts: "it is gone"},
			v1alpha1.TurnStatus{},
			"the journal of the turn was lost: it is gone. The status has everything that is known about the turn",
			"the journal of the turn was lost: it is gone. The turn starts over, and its status does not count its earlier usage",
		},
		"some entries are left": {
			turnstatus.Loss{Facts: "it is shorter", Entries: 7},
			v1alpha1.TurnStatus{},
			"the journal of the turn was lost: it is shorter. The status has everything that is known about the turn",
			"the journal of the turn was lost: it is shorter. The turn continues after entry 7, the last one " +
				"left, and its status does not count its usage after that entry",
		},
		"there were side effects": {
			turnstatus.Loss{Facts: "it is gone", SideEffects: true},
			v1alpha1.TurnStatus{},
			check,
			"the journal of the turn was lost: it is gone. The turn starts over, and its status does not count its earlier usage. " +
				"Earlier calls may be made again, because spec.onJournalLoss is Rerun",
		},
		"a call was pending": {
			turnstatus.Loss{Facts: "it is gone", SideEffects: true},
			v1alpha1.TurnStatus{PendingApprovals: []v1alpha1.PendingApproval{{CallID: "a"}}},
			check + ". The calls that were waiting for approval can no longer be approved; one that was approved before may have " +
				"been made", "",
		},
		"sub-agents were running": {
			turnstatus.Loss{Facts: "it is gone", SideEffects: true},
			v1alpha1.TurnStatus{AwaitedTurns: []string{"a", "b"}},
			check + ". The Turns of its sub-agents that had not ended were cancelled; see the status of each: " +
				"a, b", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.loss.Message(&v1alpha1.Turn{Status: tc.status}); got != tc.ends {
				t.Errorf("Message returns %q, want %q", got, tc.ends)
			}
			if got := tc.loss.StartOver(); tc.startOver != "" && got != tc.startOver {
				t.Errorf("StartOver returns %q, want %q", got, tc.startOver)
			}
		})
	}
}

// TestFinishRefused checks that the status keeps its facts and gets no stop reason, which the API server may reject.
func TestFinishRefused(t *testing.T) {
	got := bound()
	got.Status.Usage = &v1alpha1.Usage{TotalTokens: 9}
	turnstatus.FinishRefused(got, "the API server refused it", now)
	if diff := cmp.Diff([]string{"Succeeded=False/ModelFailed", "Stalled=True/ModelFailed"}, conditions(got)); diff != "" {
		t.Errorf("conditions: -want +got:\n%s", diff)
	}
	if s := got.Status; s.StopReason != "" || s.Usage.TotalTokens != 9 || !s.CompletionTime.Equal(new(metav1.NewMicroTime(now))) {
		t.Errorf("status %+v, want the earlier usage, the end now, and no stop reason", s)
	}
}

// TestEndWithPendingCalls checks which calls of a Turn that ends without a run count as unknown.
func TestEndWithPendingCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		why     string
		binding *v1alpha1.ExecutorBinding
		calls   []v1alpha1.ToolCallRecord
		want    *v1alpha1.StepCounts
	}{
		"never bound":     {"there were no calls", nil, nil, nil},
		"no side effects": {"the calls do not count", &v1alpha1.ExecutorBinding{}, nil, &v1alpha1.StepCounts{}},
		"handed back": {
			"the run has reported all calls", &v1alpha1.ExecutorBinding{SideEffects: true, JournalComplete: true}, nil,
			&v1alpha1.StepCounts{},
		},
		"handed back with pending calls": {
			"each may have been made", &v1alpha1.ExecutorBinding{SideEffects: true, JournalComplete: true},
			[]v1alpha1.ToolCallRecord{{Outcome: v1alpha1.ToolCallPending}, {Outcome: v1alpha1.ToolCallPending}},
			&v1alpha1.StepCounts{UnknownOutcomes: 2},
		},
		"lost": {
			"the run may have made calls since its last write", &v1alpha1.ExecutorBinding{SideEffects: true}, nil,
			&v1alpha1.StepCounts{UnknownOutcomes: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := &v1alpha1.Turn{Status: v1alpha1.TurnStatus{Executor: tc.binding, ToolCalls: tc.calls}}
			turnstatus.End(got, v1alpha1.TurnReasonCancelled, "so it ended", now)
			if diff := cmp.Diff(tc.want, got.Status.Steps); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.why, diff)
			}
		})
	}
}
