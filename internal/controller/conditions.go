package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// finding is what one look at an object found: whether something about it holds, and why.
type finding struct {
	holds           bool
	reason, message string
	// failure is why the look is to be tried again, nil if an event will tell when.
	failure error
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

// ready returns the Ready condition if it speaks of the newest generation of its object, else nil.
func ready(conditions []metav1.Condition, generation int64) *metav1.Condition {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if c == nil || c.ObservedGeneration != generation {
		return nil
	}
	return c
}
