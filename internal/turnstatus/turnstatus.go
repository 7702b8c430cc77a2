// Package turnstatus writes the status of Turns, for the controller, the executor and the command line. No function
// does I/O or reads the clock: each changes the status of the given Turn from its arguments alone, and the caller sends
// the status to the API server.
package turnstatus

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// outcomes maps each stop reason to the status and the reason of the condition Succeeded. A Turn that ends without a
// run gets the stop reason of the first row with its reason.
var outcomes = []struct {
	stop   v1alpha1.StopReason
	status metav1.ConditionStatus
	reason string
}{
	{v1alpha1.StopCompleted, metav1.ConditionTrue, v1alpha1.TurnReasonCompleted},
	{v1alpha1.StopToolEnded, metav1.ConditionTrue, v1alpha1.TurnReasonCompleted},
	{v1alpha1.StopPrepared, metav1.ConditionTrue, v1alpha1.TurnReasonPrepared},
	{v1alpha1.StopUndone, metav1.ConditionTrue, v1alpha1.TurnReasonUndone},
	{v1alpha1.StopUndoIncomplete, metav1.ConditionFalse, v1alpha1.TurnReasonUndoIncomplete},
	{v1alpha1.StopPreparationError, metav1.ConditionFalse, v1alpha1.TurnReasonPreparationFailed},
	{v1alpha1.StopModelError, metav1.ConditionFalse, v1alpha1.TurnReasonModelFailed},
	{v1alpha1.StopMaxSteps, metav1.ConditionFalse, v1alpha1.TurnReasonStepLimitExceeded},
	{v1alpha1.StopBudget, metav1.ConditionFalse, v1alpha1.TurnReasonBudgetExceeded},
	{v1alpha1.StopMaxOutputTokens, metav1.ConditionFalse, v1alpha1.TurnReasonOutputInvalid},
	{v1alpha1.StopOutputInvalid, metav1.ConditionFalse, v1alpha1.TurnReasonOutputInvalid},
	{v1alpha1.StopOutputPolicy, metav1.ConditionFalse, v1alpha1.TurnReasonPolicyViolated},
	{v1alpha1.StopContentFilter, metav1.ConditionFalse, v1alpha1.TurnReasonPolicyViolated},
	{v1alpha1.StopContextLength, metav1.ConditionFalse, v1alpha1.TurnReasonContextLimitExceeded},
	{v1alpha1.StopDeadline, metav1.ConditionFalse, v1alpha1.TurnReasonDeadlineExceeded},
	{v1alpha1.StopCancelled, metav1.ConditionFalse, v1alpha1.TurnReasonCancelled},
	{v1alpha1.StopInterrupted, metav1.ConditionFalse, v1alpha1.TurnReasonInterrupted},
	{v1alpha1.StopInvalidSpec, metav1.ConditionFalse, v1alpha1.TurnReasonInvalidSpec},
	{v1alpha1.StopSessionClosed, metav1.ConditionFalse, v1alpha1.TurnReasonSessionClosed},
	{v1alpha1.StopQueueFull, metav1.ConditionFalse, v1alpha1.TurnReasonQueueFull},
}

// succeeded returns the status and the reason of the condition Succeeded for a stop reason.
func succeeded(s turn.Stop) (metav1.ConditionStatus, string) {
	for _, o := range outcomes {
		if o.stop == v1alpha1.StopReason(s) {
			return o.status, o.reason
		}
	}
	return metav1.ConditionFalse, v1alpha1.TurnReasonModelFailed
}

// ReasonOf returns the reason of the condition Succeeded for a stop reason.
func ReasonOf(s turn.Stop) string {
	_, reason := succeeded(s)
	return reason
}

// stopReason returns the stop reason for a reason of the condition Succeeded, or "" if the table does not have it.
func stopReason(reason string) v1alpha1.StopReason {
	for _, o := range outcomes {
		if o.reason == reason {
			return o.stop
		}
	}
	return ""
}

// Observe writes that a status describes the newest spec, and reports whether the status changed.
func Observe(t *v1alpha1.Turn) (changed bool) {
	changed = t.Status.ObservedGeneration != t.Generation
	t.Status.ObservedGeneration = t.Generation
	return changed
}

// IsWritten reports whether the API server has the last status of a run, or the end of a Turn without a run, which this
// process has sent before or has just sent again. The response to the first write was lost: either this process has
// seen an error, or its client has repeated the request by itself. The Turn must have ended at exactly this time, or
// have been handed back in this epoch, and for exactly this reason. If the Turn is still as it was before the write,
// IsWritten returns false, and the caller can make the change again.
func IsWritten(stored, sent *v1alpha1.Turn) bool {
	if stored.UID != sent.UID || stored.Epoch() != sent.Epoch() || stored.BoundTo() != "" || sent.BoundTo() != "" ||
		stored.IsFinished() != sent.IsFinished() {
		return false
	}
	if ended := sent.Status.CompletionTime; ended != nil {
		sameTime := metav1.NewMicroTime(ended.Truncate(time.Microsecond)) // the precision of the API server
		if !stored.Status.CompletionTime.Equal(&sameTime) {
			return false
		}
	}
	was := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.ConditionSucceeded)
	is := meta.FindStatusCondition(sent.Status.Conditions, v1alpha1.ConditionSucceeded)
	return was != nil && is != nil && was.Reason == is.Reason && was.Message == is.Message
}

// maxMessageBytes limits the message of a condition, in bytes of JSON.
const maxMessageBytes = 2 << 10

func setCondition(
	t *v1alpha1.Turn, conditionType string, status metav1.ConditionStatus, reason, message string, now time.Time,
) (changed bool) {
	return meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: shortened(message),
		ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}

// shortened returns the message of a condition, cut to maxMessageBytes.
func shortened(message string) string { return translate.TruncateJSON(message, maxMessageBytes) }
