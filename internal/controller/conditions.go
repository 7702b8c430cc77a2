package controller

import (
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/translate"
)

// maxMessageBytes is the maximum length of the message of a condition, as JSON. The API server refuses a status with a
// message of more than 32768 characters. Messages contain those of other objects, so they are much shorter.
const maxMessageBytes = 8 << 10

// finding is the result of one check of an object: whether the checked condition holds, and why.
type finding struct {
	holds           bool
	reason, message string
	// inOwnText is true if the fault is in a text of the object itself: see translate.Stalls.
	inOwnText bool
	// failure is the error for which the check must be retried; nil if an event will start the next check.
	failure error
	// after is the time until the next check; 0 if an event will start the next check.
	after time.Duration
}

// set writes a finding as a condition.
func (f finding) set(conditions *[]metav1.Condition, kind string, generation int64, now time.Time) {
	status := metav1.ConditionFalse
	if f.holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, Reason: f.reason, Message: translate.TruncateJSON(f.message, maxMessageBytes),
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now),
	})
}

// setOrRemove writes a finding as a condition, or removes the condition if the finding is nil.
func (f *finding) setOrRemove(conditions *[]metav1.Condition, kind string, generation int64, now time.Time) {
	if f == nil {
		meta.RemoveStatusCondition(conditions, kind)
		return
	}
	f.set(conditions, kind, generation, now)
}

// setReady writes the finding as the condition Ready. It also writes the condition Stalled, or removes it: see
// translate.Stalls.
func (f finding) setReady(conditions *[]metav1.Condition, generation int64, now time.Time) {
	f.set(conditions, v1alpha1.ConditionReady, generation, now)
	if f.holds || !translate.Stalls(f.reason, f.inOwnText) {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionStalled)
		return
	}
	finding{holds: true, reason: f.reason, message: f.message}.set(conditions, v1alpha1.ConditionStalled, generation, now)
}

// ready returns the Ready condition if it is about the newest generation of its object, otherwise nil.
func ready(conditions []metav1.Condition, generation int64) *metav1.Condition {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if c == nil || c.ObservedGeneration != generation {
		return nil
	}
	return c
}

// secretFinding returns the finding for a header or a value from a Secret that cannot be used, so no request was sent.
func secretFinding(err *secrets.Error) finding {
	f := finding{reason: v1alpha1.ReasonSecretNotFound, message: err.Reason}
	switch err.Kind {
	case secrets.Missing:
	case secrets.OtherHost:
		f.reason = v1alpha1.ReasonHostNotAllowed
	case secrets.ReservedHeader:
		f.reason = v1alpha1.ReasonHeaderRefused
	case secrets.NoMemory:
		f.reason = v1alpha1.ReasonMemoryUsedUp
	}
	return f
}

// blocksRequests reports whether a reason means that neither checks nor Turns can send a request, because of the
// object's Secrets, hosts or headers, or because the cache has dropped the object's content. InvalidCompensation is not
// among these reasons: it stops the checks, but Turns send their requests.
func blocksRequests(reason string) bool {
	return reason == v1alpha1.ReasonSecretNotFound || reason == v1alpha1.ReasonHostNotAllowed ||
		reason == v1alpha1.ReasonHeaderRefused || reason == v1alpha1.ReasonTooManyObjects
}

// keepMessage replaces the message of a finding with the message in the condition if both report the same failure: they
// have the same reason, and differ only in details. The messages of an endpoint or a resolver contain request IDs,
// ports and addresses, so they differ from check to check. Each change would be written to this object, to every Agent
// that uses it, and to every Turn that waits for such an Agent.
func keepMessage(found finding, conditions []metav1.Condition, generation int64) finding {
	c := ready(conditions, generation)
	// A message about a Secret does not vary from check to check.
	varies := !found.holds && !blocksRequests(found.reason)
	if varies && c != nil && c.Reason == found.reason && withoutDetails(c.Message) == withoutDetails(found.message) {
		found.message = c.Message
	}
	return found
}

var (
	// details matches words with a digit, such as IDs, addresses, ports and times.
	details = regexp.MustCompile(`\S*\d\S*`)
	// httpStatus matches an HTTP status in a message of Capstan.
	httpStatus = regexp.MustCompile(`HTTP [1-5]\d\d\b`)
)

// withoutDetails returns a message without the words that may differ between two reports of the same failure. It keeps
// the first HTTP status, because another status is another failure.
func withoutDetails(message string) string {
	return httpStatus.FindString(message) + details.ReplaceAllString(message, "")
}

// emitEvent emits an Event when a condition of an object becomes True or ceases to be True, or when its reason changes
// while it is not True. It emits no Event while a failure lasts, or for a condition that is True at its first check.
func emitEvent(to events.EventRecorder, o client.Object, kind, action string, before, after []metav1.Condition) {
	was, is := meta.FindStatusCondition(before, kind), meta.FindStatusCondition(after, kind)
	if is == nil {
		return
	}
	switch broken := is.Status != metav1.ConditionTrue; {
	case was == nil && !broken, was != nil && was.Status == is.Status && was.Reason == is.Reason:
	case broken:
		to.Eventf(o, nil, corev1.EventTypeWarning, is.Reason, action, "%s", is.Message)
	case was.Status != is.Status:
		to.Eventf(o, nil, corev1.EventTypeNormal, is.Reason, action, "%s", is.Message)
	}
}
