package turnstatus

import (
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// maxMessageBytes bounds the message of a condition, in bytes of JSON.
const maxMessageBytes = 2 << 10

// sizes matches numbers of bytes in a message.
var sizes = regexp.MustCompile(`[0-9]+(\.[0-9]+)? [KMGTP]iB`)

// differInSizes reports whether two messages differ only in their numbers of bytes.
func differInSizes(a, b string) bool {
	return a != b && sizes.ReplaceAllLiteralString(a, "") == sizes.ReplaceAllLiteralString(b, "")
}

// Wait writes that a Turn has not ended, and why, and reports whether the status changed. A message that differs
// only in its numbers of bytes is not a change: hundreds of Turns may wait for the same reason, and each would be
// written again whenever the controller looks at one of them.
func Wait(t *v1alpha1.Turn, reason, message string, now time.Time) bool {
	message = bounded(message)
	changed := t.Status.ObservedGeneration != t.Generation
	t.Status.ObservedGeneration = t.Generation
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded); !changed && c != nil &&
		c.Reason == reason && differInSizes(c.Message, message) {
		message = c.Message
	}
	since := now
	if t.StateReason() == "" && !t.CreationTimestamp.IsZero() {
		since = t.CreationTimestamp.Time // the Turn has waited since then, even if no manager was running
	}
	changed = setCondition(t, v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, reason, message, now) || changed
	if reason == v1alpha1.TurnReasonSuspended {
		return meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionReconciling) || changed
	}
	return setCondition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, message, since) || changed
}

func setCondition(t *v1alpha1.Turn, kind string, status metav1.ConditionStatus, reason, message string, now time.Time) bool {
	return meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: bounded(message),
		ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}

// bounded shortens the message of a condition.
func bounded(message string) string { return translate.TruncateJSON(message, maxMessageBytes) }
