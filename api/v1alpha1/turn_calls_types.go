package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PendingApproval is a call that waits for somebody's decision. The arguments are in the Turn's journal alone.
type PendingApproval struct {
	// requestID names this request for a decision, at most 64 characters. It is random, so nobody can decide before the request is
	// made. A decision names it. It is absent in the status of a Turn that an older version has parked: that Turn asks again.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RequestID string `json:"requestID,omitempty"`

	// step of the call, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Step int32 `json:"step"`

	// callID that the model gave the call, or that Capstan gave it in place of one that was empty, too long or repeated, at most 128
	// characters. No other call of the Turn has it.
	// +required
	// +kubebuilder:validation:MaxLength=128
	CallID string `json:"callID"`

	// name of the tool, as the model knows it, at most 64 characters. A decision has it as toolName.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`

	// toolServerUID is the UID of the ToolServer that has the tool, at most 64 characters. For a sub-agent it is the UID of the Agent.
	// It is absent for a tool that has neither. The call is made only if the object still has this UID.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ToolServerUID string `json:"toolServerUID,omitempty"`

	// schemaHash is the SHA-256 of the JSON Schema of the tool's arguments, as the Turn has it since it began, in hexadecimal, at most
	// 64 characters. The call is made only if the tool still has this schema.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SchemaHash string `json:"schemaHash,omitempty"`

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
	// callID that the model gave the call, or that Capstan gave it in place of one that was empty, too long or repeated, at most 128
	// characters. No other call of the Turn has it.
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
