package turnstatus

import (
	"encoding/json"
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
// status changed. A judge that failed sets the condition Finalized to False.
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
// the Turn failed. It reports whether the status changed.
func LearningFailed(t *v1alpha1.Turn, why []string, now time.Time) (changed bool) {
	return markIncomplete(t, v1alpha1.TurnReasonLearningFailed, "learning from the Turn failed: "+strings.Join(why, "; "), now)
}

// betweenFailures separates the messages of failures in one condition.
const betweenFailures = "; "

// markIncomplete sets the condition Finalized to False. If it is False already, the first reason stays, and the message
// is appended once: a task that is repeated after a crash reports its failure again.
func markIncomplete(t *v1alpha1.Turn, reason, message string, now time.Time) (changed bool) {
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionFinalized); c != nil && c.Status == metav1.ConditionFalse {
		// Each of two messages has room for this part of it, so a repeated message is found even if it was cut.
		part := translate.TruncateJSON(message, (maxMessageBytes-len(betweenFailures))/2)
		if strings.Contains(c.Message, part) {
			return false
		}
		before := translate.TruncateJSON(c.Message, maxMessageBytes-len(betweenFailures)-jsonBytes(part))
		reason, message = c.Reason, before+betweenFailures+part
	}
	return setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionFalse, reason, message, now)
}

// jsonBytes returns the size of a text within a JSON string.
func jsonBytes(text string) int {
	data, _ := json.Marshal(text) // a string can always be encoded
	return len(data) - len(`""`)
}
