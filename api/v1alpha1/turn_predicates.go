package v1alpha1

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// IsFinished reports whether the Turn has ended, with success or failure. A finished Turn stays finished.
func (t *Turn) IsFinished() bool {
	c := t.succeeded()
	return c != nil && c.Status != metav1.ConditionUnknown
}

// IsCancelled reports whether the Turn is to end as cancelled: its desired state is Cancelled, or it was deleted and
// only a finalizer keeps it.
func (t *Turn) IsCancelled() bool {
	return t.Spec.DesiredState == DesiredStateCancelled || !t.DeletionTimestamp.IsZero()
}

// StateReason returns the reason of the main condition, or "" for a Turn that no controller has processed.
func (t *Turn) StateReason() string {
	if c := t.succeeded(); c != nil {
		return c.Reason
	}
	return ""
}

// BoundTo returns the name of the executor to which the Turn is bound, or "" if it is not bound or has finished.
func (t *Turn) BoundTo() string {
	if t.Status.Executor == nil || t.IsFinished() {
		return ""
	}
	return t.Status.Executor.Name
}

// EndedWithoutExecutor reports whether the Turn was bound to an executor at least once, but was not bound when it
// ended. The journal of such a Turn may have usage that the status lacks.
func (t *Turn) EndedWithoutExecutor() bool {
	return t.IsFinished() && t.Status.Executor != nil && t.Status.Executor.Name == ""
}

// Epoch returns the epoch of the newest binding, or 0 for a Turn that was never bound.
func (t *Turn) Epoch() int64 {
	if t.Status.Executor == nil {
		return 0
	}
	return t.Status.Executor.Epoch
}

// MaxEpoch is the highest epoch, which the schema sets, too: 2^53 - 1, the largest integer that every reader of JSON
// keeps exactly. No Turn reaches it by itself: a binding takes a write to the API server, and a million writes per
// second would take 285 years. Whoever edits a status can write it, and the next epoch must not overflow.
const MaxEpoch = 1<<53 - 1

// EpochsUsedUp reports whether the Turn cannot be bound again, because there is no next epoch.
func (t *Turn) EpochsUsedUp() bool { return t.Epoch() >= MaxEpoch }

// WaitingSince returns the time at which the Turn began to wait for its start: its creation, or the end of its last
// suspension.
func (t *Turn) WaitingSince() time.Time {
	if c := meta.FindStatusCondition(t.Status.Conditions, ConditionReconciling); c != nil {
		return c.LastTransitionTime.Time
	}
	return t.CreationTimestamp.Time
}

// ExpiryTime returns the time at which a finished Turn is deleted. ok is false if the Turn has not finished or has
// no TTL.
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

// Timeout returns the time limit of a Turn with these limits: the lowest value that is set, or
// DefaultTimeoutSeconds.
func Timeout(limits ...*Limits) time.Duration {
	return lowestSeconds(DefaultTimeoutSeconds, func(l *Limits) *int32 { return l.TimeoutSeconds }, limits)
}

// StartingDeadline returns how long a Turn with these limits may wait for its start: the lowest value that is set,
// or DefaultStartingDeadlineSeconds.
func StartingDeadline(limits ...*Limits) time.Duration {
	return lowestSeconds(DefaultStartingDeadlineSeconds, func(l *Limits) *int32 { return l.StartingDeadlineSeconds }, limits)
}

// MaxSteps returns how many steps a Turn with these limits may take: the lowest value that is set, or
// DefaultMaxSteps.
func MaxSteps(limits ...*Limits) int {
	return int(lowestOf(DefaultMaxSteps, func(l *Limits) *int32 { return l.MaxSteps }, limits))
}

// MaxToolCalls returns how many tool calls a Turn with these limits may make: the lowest value that is set, or
// DefaultMaxToolCalls.
func MaxToolCalls(limits ...*Limits) int {
	return int(lowestOf(DefaultMaxToolCalls, func(l *Limits) *int32 { return l.MaxToolCalls }, limits))
}

// MaxDepth returns the greatest depth of a sub-agent for a Turn with these limits: the lowest value that is set, or
// DefaultMaxDepth.
func MaxDepth(limits ...*Limits) int {
	return int(lowestOf(DefaultMaxDepth, func(l *Limits) *int32 { return l.MaxDepth }, limits))
}

// MaxDescendants returns how many Turns may be created for sub-agents below a Turn: the Agent's limit or
// DefaultMaxDescendants, or the Turn's limit if that is lower. Both arguments may be nil. A Turn cannot raise the
// default: the other limits are not low enough to protect the cluster. By default, they allow one request to create
// 16,275 Turns: 25 tool calls in each Turn, at three levels.
func MaxDescendants(turn, agent *Limits) int {
	most := lowestOf(DefaultMaxDescendants, func(l *Limits) *int32 { return l.MaxDescendants }, []*Limits{agent})
	if turn != nil && turn.MaxDescendants != nil {
		most = min(most, *turn.MaxDescendants)
	}
	return int(most)
}

// ApprovalTimeout returns how long a call may wait for an approval in a Turn with these limits: the lowest value
// that is set, or DefaultApprovalTimeoutSeconds.
func ApprovalTimeout(limits ...*Limits) time.Duration {
	return lowestSeconds(DefaultApprovalTimeoutSeconds, func(l *Limits) *int32 { return l.ApprovalTimeoutSeconds }, limits)
}

func lowestSeconds(defaultSeconds int32, field func(*Limits) *int32, limits []*Limits) time.Duration {
	return time.Duration(lowestOf(defaultSeconds, field, limits)) * time.Second
}

// MaxTokens returns how many tokens a Turn with these limits may use: the lowest value that is set, or
// DefaultMaxTokens.
func MaxTokens(limits ...*Limits) int64 {
	return lowestOf(DefaultMaxTokens, func(l *Limits) *int64 { return l.MaxTokens }, limits)
}

// lowestOf returns the lowest value of a field in limits, or defaultValue if the field is not set in any of them.
func lowestOf[T int32 | int64](defaultValue T, field func(*Limits) *T, limits []*Limits) T {
	var found *T
	for _, l := range limits {
		if l == nil {
			continue
		}
		if v := field(l); v != nil && (found == nil || *v < *found) {
			found = v
		}
	}
	if found == nil {
		found = &defaultValue
	}
	return *found
}

// MaxSpecBytes limits the JSON of a Turn's spec, because the limits of its fields allow more in total. A spec of this
// size and the largest status stay under 256 KiB. The copy of the spec that kubectl apply keeps in an annotation is not
// counted.
const MaxSpecBytes = 96 << 10

// CheckSize returns an error if the JSON of the spec exceeds MaxSpecBytes. The error says what to do.
func (s *TurnSpec) CheckSize() error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("failed to marshal the spec: %w", err)
	}
	return CheckSpecBytes(len(data))
}

// CheckSpecBytes returns an error if size, the length of a spec's JSON, exceeds MaxSpecBytes. The error says what
// to do.
func CheckSpecBytes(size int) error {
	if size > MaxSpecBytes {
		return fmt.Errorf("spec is %d bytes of JSON and must be at most %d: shorten message, history, context "+
			"or shaping, or put texts into a ConfigMap", size, MaxSpecBytes)
	}
	return nil
}

// MaxMetadataBytes limits the metadata of a Turn that has not been bound, because etcd stores at most 1.5 MiB for an
// object, and the result of the Turn must fit. The API server allows 256 KiB of annotations; owner references,
// finalizers and labels have no limit there.
const MaxMetadataBytes = 512 << 10

// CheckMetadataBytes returns an error if size, the size of a Turn's metadata, exceeds MaxMetadataBytes. The error says
// what to do.
func CheckMetadataBytes(size int) error {
	if size > MaxMetadataBytes {
		return fmt.Errorf("metadata is %d bytes and must be at most %d: remove labels, annotations, ownerReferences, "+
			"finalizers or managedFields", size, MaxMetadataBytes)
	}
	return nil
}

// Requester returns the name of the user who asked for the Turn. It is empty if the Turn names no requester.
func (t *Turn) Requester() string {
	if t.Spec.RequestedBy == nil {
		return ""
	}
	return t.Spec.RequestedBy.Username
}

// AsksModel reports whether the Turn may send a request to a model. A Turn that only makes its prompt, or that undoes
// calls, sends none.
func (t *Turn) AsksModel() bool {
	return t.Spec.Execution != ExecutionPrepareOnly && t.Spec.Undo == nil
}

// AgentKey returns the namespace and the name of the Turn's Agent.
func (t *Turn) AgentKey() types.NamespacedName { return t.Spec.AgentRef.Key(t.Namespace) }

// AgentName returns the name of the Turn's Agent: NAME if the Agent is in the namespace of the Turn, and NAMESPACE/NAME
// otherwise. Unlike the text of spec.agentRef, it does not depend on whether the reference names the Turn's own
// namespace. So whatever is counted, kept or compared by Agent must use this name, or AgentKey.
func (t *Turn) AgentName() string {
	if key := t.AgentKey(); t.IsOfForeignAgent() {
		return key.String()
	}
	return t.Spec.AgentRef.Name
}

// IsOfForeignAgent reports whether the Agent of the Turn is in another namespace. Only a sub-agent's Turn has such an
// Agent.
func (t *Turn) IsOfForeignAgent() bool { return t.AgentKey().Namespace != t.Namespace }

// CredentialNamespaces returns the namespaces whose credentials must not be in any text about the Turn: the namespaces
// of the Turn and of its Agent.
func (t *Turn) CredentialNamespaces() []string {
	all := []string{t.Namespace}
	if t.IsOfForeignAgent() {
		all = append(all, t.AgentKey().Namespace)
	}
	return all
}
