package turnstatus_test

import (
	"encoding/json"
	"strings"
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
	why := []string{"memories of the scope User: the endpoint is overloaded", "the observation of the Turn could not be stored"}
	says := "learning from the Turn failed: " + why[0] + "; " + why[1]
	for before, want := range map[string]string{
		v1alpha1.TurnReasonFinalized:          says,
		v1alpha1.TurnReasonPartiallyFinalized: "before; " + says,
		v1alpha1.TurnReasonEvaluationFailed:   "before; " + says,
	} {
		turn := &v1alpha1.Turn{}
		status, reason := metav1.ConditionFalse, before
		if before == v1alpha1.TurnReasonFinalized {
			status, reason = metav1.ConditionTrue, v1alpha1.TurnReasonLearningFailed
		}
		meta.SetStatusCondition(&turn.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionFinalized, Status: status, Reason: before, Message: "before",
		})
		if !turnstatus.LearningFailed(turn, why, now) || turnstatus.LearningFailed(turn, why, now) {
			t.Errorf("after %s, the status must change once", before)
		}
		if c := meta.FindStatusCondition(turn.Status.Conditions, v1alpha1.ConditionFinalized); c.Message != want || c.Reason != reason {
			t.Errorf("after %s, the condition is %s (%s), want %s (%s)", before, c.Reason, c.Message, reason, want)
		}
	}
}

// TestLaterFailureIsAppended checks that a Turn whose judge and whose learning fail keeps the reason of the first
// failure and the messages of both, within the limit of a message. Each task may report its failure again.
func TestLaterFailureIsAppended(t *testing.T) {
	now := time.Date(2026, 6, 11, 12, 0, 0, 0, time.UTC)
	const maxBytes, judges, learning = 2 << 10, "these judges failed: ", "learning from the Turn failed: "
	for name, why := range map[string]string{
		"short": "the endpoint is overloaded", "long": strings.Repeat("x", 3*maxBytes), "escaped": strings.Repeat("<\"ö", maxBytes),
	} {
		failed := []task.Evaluation{{Reason: why, Evaluation: turnrecord.Evaluation{Judge: "a", Verdict: "Failed", Time: now}}}
		for range 3 { // the status keeps a part of each reason
			failed = append(failed, failed[0])
		}
		report := map[string]func(*v1alpha1.Turn) bool{
			v1alpha1.TurnReasonEvaluationFailed: func(turn *v1alpha1.Turn) bool { return turnstatus.Evaluate(turn, failed, now) },
			v1alpha1.TurnReasonLearningFailed: func(turn *v1alpha1.Turn) bool {
				return turnstatus.LearningFailed(turn, []string{why}, now)
			},
		}
		for first, later := range map[string]string{
			v1alpha1.TurnReasonEvaluationFailed: v1alpha1.TurnReasonLearningFailed,
			v1alpha1.TurnReasonLearningFailed:   v1alpha1.TurnReasonEvaluationFailed,
		} {
			t.Run(name+", "+first+" first", func(t *testing.T) {
				turn := &v1alpha1.Turn{}
				if !report[first](turn) || !report[later](turn) || report[first](turn) || report[later](turn) {
					t.Error("the status must change once for each failure")
				}
				turn.Status.Evaluations = nil // the judges have reported before a crash
				report[v1alpha1.TurnReasonEvaluationFailed](turn)
				c := meta.FindStatusCondition(turn.Status.Conditions, v1alpha1.ConditionFinalized)
				if c.Status != metav1.ConditionFalse || c.Reason != first {
					t.Errorf("Finalized is %s with the reason %s, want False with the first reason", c.Status, c.Reason)
				}
				if strings.Count(c.Message, judges) != 1 || strings.Count(c.Message, learning) != 1 {
					t.Errorf("the message is %q, want both failures once", c.Message)
				}
				data, err := json.Marshal(c.Message)
				if bytes := len(data) - len(`""`); err != nil || bytes > maxBytes || name != "short" && bytes < maxBytes-6 {
					t.Errorf("the message has %d bytes, %v; want at most %d, and almost as many if it was cut", bytes, err, maxBytes)
				}
			})
		}
	}
}
