package v1alpha1

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsFinished reports whether the Turn has ended, well or not. A finished Turn stays finished.
func (t *Turn) IsFinished() bool {
	c := t.succeeded()
	return c != nil && c.Status != metav1.ConditionUnknown
}

// StateReason returns the reason of the main condition, empty for a Turn that nobody has looked at.
func (t *Turn) StateReason() string {
	if c := t.succeeded(); c != nil {
		return c.Reason
	}
	return ""
}

// BoundTo returns the name of the executor the Turn is bound to, empty if it is bound to none or has finished.
func (t *Turn) BoundTo() string {
	if t.Status.Executor == nil || t.IsFinished() {
		return ""
	}
	return t.Status.Executor.Name
}

// Epoch returns the epoch of the newest binding, 0 for a Turn that was never bound.
func (t *Turn) Epoch() int64 {
	if t.Status.Executor == nil {
		return 0
	}
	return t.Status.Executor.Epoch
}

// WaitingSince returns when the Turn began to wait for its start: its creation, or the end of its last suspension.
func (t *Turn) WaitingSince() time.Time {
	if c := meta.FindStatusCondition(t.Status.Conditions, ConditionReconciling); c != nil {
		return c.LastTransitionTime.Time
	}
	return t.CreationTimestamp.Time
}

// ExpiryTime returns when a finished Turn is to be deleted; ok is false for one that is kept or has not finished.
func (t *Turn) ExpiryTime() (expiry time.Time, ok bool) {
	if !t.IsFinished() || t.Spec.TTLSecondsAfterFinished == nil {
		return time.Time{}, false
	}
	end := t.succeeded().LastTransitionTime.Time
	if t.Status.CompletionTime != nil {
		end = t.Status.CompletionTime.Time
	}
	return end.Add(time.Duration(*t.Spec.TTLSecondsAfterFinished) * time.Second), true
}

func (t *Turn) succeeded() *metav1.Condition {
	return meta.FindStatusCondition(t.Status.Conditions, ConditionSucceeded)
}

// Timeout returns the wall time of a Turn of these limits: the lowest that is given, else DefaultTimeoutSeconds.
func Timeout(limits ...*Limits) time.Duration {
	return lowest(DefaultTimeoutSeconds, func(l *Limits) *int32 { return l.TimeoutSeconds }, limits)
}

// StartingDeadline returns how long a Turn of these limits may wait to start: the lowest that is given, else
// DefaultStartingDeadlineSeconds.
func StartingDeadline(limits ...*Limits) time.Duration {
	return lowest(DefaultStartingDeadlineSeconds, func(l *Limits) *int32 { return l.StartingDeadlineSeconds }, limits)
}

// MaxSteps returns how many replies a Turn of these limits goes on from: the lowest that is given, else DefaultMaxSteps.
func MaxSteps(limits ...*Limits) int {
	return int(lowestOf(DefaultMaxSteps, func(l *Limits) *int32 { return l.MaxSteps }, limits))
}

// MaxToolCalls returns how many calls of tools a Turn of these limits makes: the lowest that is given, else
// DefaultMaxToolCalls.
func MaxToolCalls(limits ...*Limits) int {
	return int(lowestOf(DefaultMaxToolCalls, func(l *Limits) *int32 { return l.MaxToolCalls }, limits))
}

// MaxDepth returns how many agents deep a Turn of these limits hands work on: the lowest that is given, else DefaultMaxDepth.
func MaxDepth(limits ...*Limits) int {
	return int(lowestOf(DefaultMaxDepth, func(l *Limits) *int32 { return l.MaxDepth }, limits))
}

// MaxDescendants returns how many Turns the tree of sub-agents below a Turn may have: what its Agent says, else
// DefaultMaxDescendants, or what the Turn says if that is less. Both limits may be nil. Whoever creates a Turn cannot raise the
// default, because nothing but this number bounds how many Turns one request can create.
func MaxDescendants(turn, agent *Limits) int {
	most := lowestOf(DefaultMaxDescendants, func(l *Limits) *int32 { return l.MaxDescendants }, []*Limits{agent})
	if turn != nil && turn.MaxDescendants != nil {
		most = min(most, *turn.MaxDescendants)
	}
	return int(most)
}

// ApprovalTimeout returns how long a call of a Turn of these limits waits for a decision: the lowest that is given, else
// DefaultApprovalTimeoutSeconds.
func ApprovalTimeout(limits ...*Limits) time.Duration {
	return lowest(DefaultApprovalTimeoutSeconds, func(l *Limits) *int32 { return l.ApprovalTimeoutSeconds }, limits)
}

func lowest(otherwise int32, of func(*Limits) *int32, limits []*Limits) time.Duration {
	return time.Duration(lowestOf(otherwise, of, limits)) * time.Second
}

// MaxTokens returns how many tokens a Turn of these limits takes: the lowest that is given, else DefaultMaxTokens.
func MaxTokens(limits ...*Limits) int64 {
	return lowestOf(DefaultMaxTokens, func(l *Limits) *int64 { return l.MaxTokens }, limits)
}

func lowestOf[T int32 | int64](otherwise T, of func(*Limits) *T, limits []*Limits) T {
	var found *T
	for _, l := range limits {
		if l == nil {
			continue
		}
		if v := of(l); v != nil && (found == nil || *v < *found) {
			found = v
		}
	}
	if found == nil {
		found = &otherwise
	}
	return *found
}

// MaxSpecBytes bounds the JSON of a Turn's spec; the bounds of its fields allow more in all. kubectl apply keeps a second
// copy of the spec in an annotation, so that twice this and the largest status keep a Turn under 256 KiB.
const MaxSpecBytes = 96 << 10

// CheckSize returns an error that says what to do if the JSON of the spec is over MaxSpecBytes.
func (s *TurnSpec) CheckSize() error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("failed to marshal the spec: %w", err)
	}
	return CheckSpecBytes(len(data))
}

// CheckSpecBytes returns an error that says what to do if a spec whose JSON has this length is over MaxSpecBytes.
func CheckSpecBytes(size int) error {
	if size > MaxSpecBytes {
		return fmt.Errorf("spec is %d bytes of JSON and must be at most %d: shorten message, history, context or shaping, or put texts into a ConfigMap", size, MaxSpecBytes)
	}
	return nil
}
