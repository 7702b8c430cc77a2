package translate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TestEndOfHasWhatRecordsNeed checks that the copy of a Turn that EndOf returns leads to the same record, the same end,
// the same charge and the same trace as the Turn itself, and that it has none of the large fields.
func TestEndOfHasWhatRecordsNeed(t *testing.T) {
	start := metav1.NewMicroTime(time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC))
	large := strings.Repeat("x", 1000)
	whole := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "helpdesk", Name: "one", UID: "uid-one", Labels: map[string]string{"team": "red", "x": large},
			Annotations: map[string]string{
				"x": large, span.Annotation: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			},
		},
		Spec: v1alpha1.TurnSpec{
			AgentRef: v1alpha1.SharedReference{Name: "desk", Namespace: "shared"}, SessionRef: &v1alpha1.ObjectReference{Name: "talk"},
			RequestedBy: &v1alpha1.Requester{Username: "ann"}, Message: large, Depth: new(int32(1)),
		},
		Status: v1alpha1.TurnStatus{
			Executor:  &v1alpha1.ExecutorBinding{Epoch: 3, JournalEntries: new(int64(7))},
			StartTime: &start, CompletionTime: new(metav1.NewMicroTime(start.Add(time.Minute))),
			DurationMilliseconds: new(int64(60_000)), StopReason: v1alpha1.StopDeadline,
			Steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 2},
			Usage: &v1alpha1.Usage{
				InputTokens: 10, OutputTokens: 5, TotalTokens: 15, Cost: &v1alpha1.Cost{Amount: "1", Currency: "USD"},
			},
			SubAgentUsage: &v1alpha1.Usage{InputTokens: 4, OutputTokens: 3, TotalTokens: 7, KnownCost: "0.5"},
			Preparation: &v1alpha1.Preparation{
				PromptProfile:    v1alpha1.PromptProfileRevision{Name: "house", ID: "house", Version: "1"},
				PromptRenderHash: "a", ContextHash: "b",
			},
			Decision: &v1alpha1.Decision{Key: "answer", ToolsUsed: []string{"look"}, TurnNumber: 2},
			Result:   &v1alpha1.TurnResult{Text: large}, ToolCalls: []v1alpha1.ToolCallRecord{{CallID: large}},
			Conditions: []metav1.Condition{
				{
					Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionFalse, Reason: v1alpha1.TurnReasonDeadlineExceeded,
					Message: "late",
				},
				{Type: v1alpha1.ConditionFinalized, Message: large},
			},
		},
	}
	facts := func(one *v1alpha1.Turn) []any {
		record, recorded := translate.Record(one, []string{"team"})
		in, end, ended := translate.ObjectEnd(one, []string{"team"})
		if !recorded || !ended {
			t.Fatal("the Turn has no record or no end")
		}
		last := &v1alpha1.Session{Status: v1alpha1.SessionStatus{LastTurnName: one.Name, LastTurnTime: one.Status.CompletionTime}}
		return []any{
			record, in, end, translate.SessionTurn(one), one.EndedWithoutExecutor(), translate.HasCounted(last, one),
			span.Kept(one.Annotations),
		}
	}
	kept := translate.EndOf(whole, []string{"team"})
	if diff := cmp.Diff(facts(whole), facts(kept), cmpopts.IgnoreUnexported(turn.Input{})); diff != "" {
		t.Errorf("facts (-of the Turn +of its copy):\n%s", diff)
	}
	if text := cmp.Diff(&v1alpha1.Turn{}, kept); strings.Contains(text, large) {
		t.Errorf("the copy has a large field: %s", text)
	}
}
