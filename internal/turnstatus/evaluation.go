package turnstatus

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Evaluate writes the evaluations of the answer into the status of a Turn that has ended, and reports whether the
// status changed. A judge that failed sets the condition Finalized to False, unless the record was incomplete before.
func Evaluate(t *v1alpha1.Turn, all []task.Evaluation, now time.Time) (changed bool) {
	evaluations := translate.Evaluations(all)
	if equality.Semantic.DeepEqual(t.Status.Evaluations, evaluations) {
		return false
	}
	t.Status.Evaluations = evaluations
	var failed []string
	for i := range evaluations {
		if e := &evaluations[i]; e.Result == v1alpha1.EvaluationError {
			failed = append(failed, e.Name+": "+e.Reason)
		}
	}
	if len(failed) > 0 {
		markIncomplete(t, v1alpha1.TurnReasonEvaluationFailed, "these judges failed: "+strings.Join(failed, "; "), now)
	}
	return true
}

// LearningFailed sets the condition Finalized of a Turn that has ended to False, with the reasons why the learning from
// the Turn failed, unless the condition is False already. It reports whether the status changed.
func LearningFailed(t *v1alpha1.Turn, why []string, now time.Time) (changed bool) {
	return markIncomplete(t, v1alpha1.TurnReasonLearningFailed, "learning from the Turn failed: "+strings.Join(why, "; "), now)
}

// markIncomplete sets the condition Finalized to False, unless it is False already: the first failure explains the
// rest.
func markIncomplete(t *v1alpha1.Turn, reason, message string, now time.Time) (changed bool) {
	return !meta.IsStatusConditionFalse(t.Status.Conditions, v1alpha1.ConditionFinalized) &&
		setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionFalse, reason, message, now)
}
