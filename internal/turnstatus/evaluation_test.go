package turnstatus_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

func TestEvaluate(t *testing.T) {
	now := time.Date(2026, 6, 11, 12, 0, 0, 0, time.UTC)
	passed := task.Evaluation{Evaluation: turnrecord.Evaluation{
		Judge: "relevant", Kind: "Relevance", Verdict: "Passed", Score: "0.9", Threshold: "0.7", Time: now,
	}}
	failed := task.Evaluation{
		Evaluation: turnrecord.Evaluation{Judge: "faithful", Kind: "Faithfulness", Verdict: "Failed", Threshold: "0.7", Time: now},
		Reason:     "the endpoint is overloaded",
	}
	for name, tc := range map[string]struct {
		before string
		all    []task.Evaluation
		want   string
	}{
		"passed":            {v1alpha1.TurnReasonFinalized, []task.Evaluation{passed}, v1alpha1.TurnReasonFinalized},
		"failed":            {v1alpha1.TurnReasonFinalized, []task.Evaluation{passed, failed}, v1alpha1.TurnReasonEvaluationFailed},
		"incomplete before": {v1alpha1.TurnReasonPartiallyFinalized, []task.Evaluation{failed}, v1alpha1.TurnReasonPartiallyFinalized},
	} {
		t.Run(name, func(t *testing.T) {
			turn := &v1alpha1.Turn{}
			status := metav1.ConditionTrue
			if tc.before != v1alpha1.TurnReasonFinalized {
				status = metav1.ConditionFalse
			}
			meta.SetStatusCondition(&turn.Status.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionFinalized, Status: status, Reason: tc.before, LastTransitionTime: metav1.NewTime(now),
			})
			if !turnstatus.Evaluate(turn, tc.all, now) || turnstatus.Evaluate(turn, tc.all, now) {
				t.Error("the status must change once")
			}
			c := meta.FindStatusCondition(turn.Status.Conditions, v1alpha1.ConditionFinalized)
			if len(turn.Status.Evaluations) != len(tc.all) || c.Reason != tc.want {
				t.Errorf("%d evaluations, Finalized is %s (%s); want %d and %s", len(turn.Status.Evaluations), c.Reason, c.Message,
					len(tc.all), tc.want)
			}
		})
	}
}

func TestLearningFailed(t *testing.T) {
	now := time.Date(2026, 6, 11, 12, 0, 0, 0, time.UTC)
	why := []string{"memories of the scope User: the endpoint is overloaded", "the learner failed"}
	for before, want := range map[string]string{
		v1alpha1.TurnReasonFinalized: "learning from the Turn failed: " + why[0] + "; " + why[1],
		// The message of the first failure is kept.
		v1alpha1.TurnReasonPartiallyFinalized: "before",
		v1alpha1.TurnReasonEvaluationFailed:   "before",
	} {
		turn := &v1alpha1.Turn{}
		status := metav1.ConditionFalse
		if before == v1alpha1.TurnReasonFinalized {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&turn.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionFinalized, Status: status, Reason: before, Message: "before",
		})
		changed := turnstatus.LearningFailed(turn, why, now)
		if changed != (want != "before") || turnstatus.LearningFailed(turn, why, now) {
			t.Errorf("after %s, the status changes: %t", before, changed)
		}
		if c := meta.FindStatusCondition(turn.Status.Conditions, v1alpha1.ConditionFinalized); c.Message != want {
			t.Errorf("after %s, the message is %q, want %q", before, c.Message, want)
		}
	}
}
