package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PendingApproval is a call that requires approval. Only the Turn's journal has the arguments of the call.
type PendingApproval struct {
	// requestID identifies this request for approval, at most 64 characters. A decision must name it. It is random, so
	// no decision can be made before the request. It is absent if an older version of Capstan parked the Turn. Such a
	// call gets a new request when the Turn continues.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RequestID string `json:"requestID,omitempty"`

	// step is the step of the call, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Step int32 `json:"step"`

	// callID is the ID of the call, at most 128 characters, and unique within the Turn. The model assigns the ID, but
	// Capstan replaces an ID that is empty, too long or repeated.
	// +required
	// +kubebuilder:validation:MaxLength=128
	CallID string `json:"callID"`

	// name is the name of the tool, as the model knows it, at most 64 characters. A ToolApproval names it in toolName.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`

	// toolServerUID is the UID of the ToolServer that has the tool, at most 64 characters. For a sub-agent it is the
	// UID of the Agent. For any other tool it is absent. The call is made only if the object still has this UID.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ToolServerUID string `json:"toolServerUID,omitempty"`

	// schemaHash is the SHA-256 of the JSON Schema of the tool's arguments when the Turn began, in hexadecimal, at
	// most 64 characters. The call is made only if the tool still has this schema.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SchemaHash string `json:"schemaHash,omitempty"`

	// argumentsHash is the SHA-256 of the arguments, in hexadecimal.
	// +required
	// +kubebuilder:validation:MaxLength=64
	ArgumentsHash string `json:"argumentsHash"`

	// requestTime is the time at which the approval was requested.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][01][0-9]:[0-5][0-9])$`
	RequestTime metav1.Time `json:"requestTime"`

	// expiryTime is the time at which the request expires. A call that is not decided by then is denied.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][01][0-9]:[0-5][0-9])$`
	ExpiryTime metav1.Time `json:"expiryTime"`
}

// ToolCallOutcome is the outcome of a call.
// +kubebuilder:validation:Enum=Succeeded;Failed;Refused;Unknown;Reused;Pending
type ToolCallOutcome string

const (
	// ToolCallSucceeded means that the tool gave a result.
	ToolCallSucceeded ToolCallOutcome = "Succeeded"
	// ToolCallFailed means that the call was attempted and did not succeed: the tool could not be reached, gave no
	// result in time, or returned an error, or the Turn ended during the call.
	ToolCallFailed ToolCallOutcome = "Failed"
	// ToolCallRefused means that the tool was not called. The model received the reason, unless the Turn ended before.
	ToolCallRefused ToolCallOutcome = "Refused"
	// ToolCallUnknown means that the call may or may not have been made.
	ToolCallUnknown ToolCallOutcome = "Unknown"
	// ToolCallReused means that an identical read-only call had succeeded before, and that its result was used again.
	ToolCallReused ToolCallOutcome = "Reused"
	// ToolCallPending means that the call has not ended. After the end of a Turn, no call of the Turn is Pending.
	ToolCallPending ToolCallOutcome = "Pending"
)

// ToolCallRecord is a tool call of the Turn, with its outcome. The model requested the call, or Capstan made it by
// itself: it called a context pack, or undid a call.
type ToolCallRecord struct {
	// callID is the ID of the call, at most 128 characters, and unique within the Turn. The model assigns the ID, but
	// Capstan replaces an ID that is empty, too long or repeated.
	// +required
	// +kubebuilder:validation:MaxLength=128
	CallID string `json:"callID"`

	// name is the name of the tool, as the model wrote it, at most 64 characters.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`

	// step is the step of the call, from 1. It is 0 for a tool with the role ContextPack, which is called before the
	// first request to a model.
	// +required
	// +kubebuilder:validation:Minimum=0
	Step int32 `json:"step"`

	// outcome is the outcome of the call. Succeeded: the tool gave a result. Failed: the call was attempted and did not
	// succeed: the tool could not be reached, gave no result in time, or returned an error, or the Turn ended during
	// the call. Refused: the tool was not called, and the model received the reason, unless the Turn ended before.
	// Unknown: the call may or may not have been made. Reused: the result of an earlier read-only call with the same
	// arguments was used again. Pending: the call has not ended.
	// +required
	Outcome ToolCallOutcome `json:"outcome"`

	// durationMilliseconds is how long the call took, in milliseconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DurationMilliseconds int64 `json:"durationMilliseconds,omitempty"`

	// bytes is the length of the whole output of the call, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes,omitempty"`

	// artifact is the name of the artifact with the whole output, if the output was too long for the model. The model
	// reads the artifact with the tool read_artifact; people read it with capstan logs.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Artifact string `json:"artifact,omitempty"`

	// turn is the name of the Turn that the call created, if it called a sub-agent.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Turn string `json:"turn,omitempty"`

	// decidedBy is the name of the user who approved or denied the call. It is empty if the call required no
	// approval or was not decided in time.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	DecidedBy string `json:"decidedBy,omitempty"`
}
