package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PendingApproval is a call that waits for somebody's decision. The arguments are in the Turn's journal alone.
type PendingApproval struct {
	// step of the call, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Step int32 `json:"step"`

	// callID that the model gave the call, at most 128 characters.
	// +required
	// +kubebuilder:validation:MaxLength=128
	CallID string `json:"callID"`

	// name of the tool, as the model knows it.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`

	// argumentsHash is the SHA-256 of the arguments, in hexadecimal.
	// +required
	// +kubebuilder:validation:MaxLength=64
	ArgumentsHash string `json:"argumentsHash"`

	// requestTime is when the decision was asked for.
	// +required
	RequestTime metav1.Time `json:"requestTime"`

	// expiryTime is when the call counts as denied if nobody has decided.
	// +required
	ExpiryTime metav1.Time `json:"expiryTime"`
}

// ToolCallOutcome is what became of a call.
// +kubebuilder:validation:Enum=Succeeded;Failed;Refused;Unknown;Reused;Pending
type ToolCallOutcome string

const (
	// ToolCallSucceeded means that the tool gave a result.
	ToolCallSucceeded ToolCallOutcome = "Succeeded"
	// ToolCallFailed means that the tool was called and gave none.
	ToolCallFailed ToolCallOutcome = "Failed"
	// ToolCallRefused means that the tool was not called; the model was told why, unless the turn ended before.
	ToolCallRefused ToolCallOutcome = "Refused"
	// ToolCallUnknown means that nobody knows whether the call was done.
	ToolCallUnknown ToolCallOutcome = "Unknown"
	// ToolCallReused means that the same read-only call had succeeded before, and its result was given again.
	ToolCallReused ToolCallOutcome = "Reused"
	// ToolCallPending means that the call has not ended. When a Turn ends, none of its calls is pending.
	ToolCallPending ToolCallOutcome = "Pending"
)

// ToolCallRecord is a call that the model asked for, and what became of it.
type ToolCallRecord struct {
	// callID that the model gave the call, at most 128 characters.
	// +required
	// +kubebuilder:validation:MaxLength=128
	CallID string `json:"callID"`

	// name of the tool, as the model wrote it, at most 64 characters.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`

	// step of the call, from 1; 0 for a tool that was called before the model was asked.
	// +required
	// +kubebuilder:validation:Minimum=0
	Step int32 `json:"step"`

	// outcome of the call. Succeeded; Failed: the tool gave no result; Refused: the tool was not called, and the model was told
	// why; Unknown: nobody knows whether the call was done; Reused: the result of the same read-only call was given again;
	// Pending: it has not ended.
	// +required
	Outcome ToolCallOutcome `json:"outcome"`

	// durationMilliseconds is how long the call took, in milliseconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DurationMilliseconds int64 `json:"durationMilliseconds,omitempty"`

	// bytes of the whole output of the call.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes,omitempty"`

	// artifact that has the output where it was too long for the model: its name, for the model's read_artifact and for capstan
	// logs.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Artifact string `json:"artifact,omitempty"`

	// turn is the name of the child Turn that a call of a sub-agent is.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Turn string `json:"turn,omitempty"`

	// decidedBy is who approved or denied the call, where it took that; empty where nobody did in time.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	DecidedBy string `json:"decidedBy,omitempty"`
}
