package controller

import (
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

// finding is what one look at an object found: whether something about it holds, and why.
type finding struct {
	holds           bool
	reason, message string
	// failure is why the look is to be tried again, nil if an event will tell when.
	failure error
	// after is when to look again, 0 if an event will tell.
	after time.Duration
}

// set writes a finding as a condition.
func (f finding) set(conditions *[]metav1.Condition, kind string, generation int64, now time.Time) {
	status := metav1.ConditionFalse
	if f.holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, Reason: f.reason, Message: f.message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now),
	})
}

// stall writes the condition Stalled with what the finding says, or removes it. An object is stalled if nothing but a change of its own spec
// helps: GitOps tools then report failure at once. One that waits for another object is not, because the same sync may bring that.
func (f finding) stall(conditions *[]metav1.Condition, generation int64, now time.Time, stalled bool) {
	if !stalled {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionStalled)
		return
	}
	finding{holds: true, reason: f.reason, message: f.message}.set(conditions, v1alpha1.ConditionStalled, generation, now)
}

// ready returns the Ready condition if it speaks of the newest generation of its object, else nil.
func ready(conditions []metav1.Condition, generation int64) *metav1.Condition {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if c == nil || c.ObservedGeneration != generation {
		return nil
	}
	return c
}

// unsendable says what is wrong with a value that an object takes from a Secret, or with a header. Nobody was asked.
func unsendable(err *secrets.Error) finding {
	f := finding{reason: v1alpha1.ReasonSecretNotFound, message: err.Reason}
	switch err.Kind {
	case secrets.Missing:
	case secrets.OtherHost:
		f.reason = v1alpha1.ReasonHostNotAllowed
	case secrets.ReservedHeader:
		f.reason = v1alpha1.ReasonHeaderRefused
	}
	return f
}

// asksNobody reports whether a reason means that nobody was asked, because of the object or its Secrets.
func asksNobody(reason string) bool {
	return reason == v1alpha1.ReasonSecretNotFound || reason == v1alpha1.ReasonHostNotAllowed || reason == v1alpha1.ReasonHeaderRefused
}

// steady keeps the message of a failure that lasts: what an endpoint or a resolver says differs from look to look (request
// ids, ports, addresses), and each change would be written here, to every Agent and to every Turn that waits for one.
func steady(found finding, conditions []metav1.Condition, generation int64) finding {
	c := ready(conditions, generation)
	// What is said of a Secret changes only with the Secret.
	lasting := !found.holds && !asksNobody(found.reason)
	if lasting && c != nil && c.Reason == found.reason {
		found.message = c.Message
	}
	return found
}

// announceReady emits an Event when an object stops or begins to be ready, or is not ready for another reason than before. A failure that lasts
// is no news, and neither is an object that is ready from its first look on.
func announceReady(to events.EventRecorder, o client.Object, action string, before, after []metav1.Condition) {
	was, is := meta.FindStatusCondition(before, v1alpha1.ConditionReady), meta.FindStatusCondition(after, v1alpha1.ConditionReady)
	switch broken := is.Status != metav1.ConditionTrue; {
	case was == nil && !broken, was != nil && was.Status == is.Status && was.Reason == is.Reason:
	case broken:
		to.Eventf(o, nil, corev1.EventTypeWarning, is.Reason, action, "%s", translate.Note(is.Message))
	case was.Status != is.Status:
		to.Eventf(o, nil, corev1.EventTypeNormal, is.Reason, action, "%s", translate.Note(is.Message))
	}
}
