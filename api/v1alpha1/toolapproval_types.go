package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ApprovalDecision is what somebody decided about a call.
// +kubebuilder:validation:Enum=Approved;Denied
type ApprovalDecision string

const (
	// ApprovalApproved lets the call be made.
	ApprovalApproved ApprovalDecision = "Approved"
	// ApprovalDenied has the model told that it may not be.
	ApprovalDenied ApprovalDecision = "Denied"
)

// ToolApprovalSpec decides about one call of one Turn. It releases the call only if all that it names is what the Turn's
// status.pendingApprovals lists. It is immutable.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec must not change: a decision is final"
type ToolApprovalSpec struct {
	// turnRef names the Turn that waits.
	// +required
	TurnRef ObjectReference `json:"turnRef"`

	// turnUID is the UID of that Turn, so that a decision never holds for another Turn of the same name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TurnUID string `json:"turnUID"`

	// requestID is the requestID of the call in the Turn's status.pendingApprovals, 1 to 64 characters. It is random and is made with
	// the request, so a decision that names it is younger than the request.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	RequestID string `json:"requestID"`

	// step of the call, as the Turn's status.pendingApprovals has it.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Step int32 `json:"step"`

	// callID of the call, as the Turn's status.pendingApprovals has it, 1 to 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	CallID string `json:"callID"`

	// toolName is the name of the tool in the Turn's status.pendingApprovals, 1 to 64 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ToolName string `json:"toolName"`

	// toolServerUID is the toolServerUID of the call in the Turn's status.pendingApprovals, at most 64 characters: the UID of the
	// ToolServer that has the tool, or of the Agent that is the tool. It is empty only where that one is.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ToolServerUID string `json:"toolServerUID,omitempty"`

	// schemaHash is the schemaHash of the call in the Turn's status.pendingApprovals, 1 to 64 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	SchemaHash string `json:"schemaHash"`

	// argumentsHash is that of the arguments that were looked at, as the Turn's status.pendingApprovals has it: the decision
	// holds for these and no others.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ArgumentsHash string `json:"argumentsHash"`

	// decision is Approved or Denied.
	// +required
	Decision ApprovalDecision `json:"decision"`

	// reason is told to the model and kept in the record, at most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// decidedBy is the name of the user who decides. The policy that is installed with Capstan refuses any but the name by which
	// the API server knows who creates this object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	DecidedBy string `json:"decidedBy"`
}

// ToolApproval is somebody's decision about a call of a tool that a Turn waits for. To be allowed to create one is to be
// allowed to approve, and nothing else.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=ta,categories=capstan
// +kubebuilder:printcolumn:name="Turn",type=string,JSONPath=`.spec.turnRef.name`
// +kubebuilder:printcolumn:name="Call",type=string,JSONPath=`.spec.callID`
// +kubebuilder:printcolumn:name="Decision",type=string,JSONPath=`.spec.decision`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.decidedBy`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.spec.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.turnRef.name`
type ToolApproval struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the decision.
	// +required
	Spec ToolApprovalSpec `json:"spec"`
}

// ToolApprovalList is a list of ToolApprovals.
// +kubebuilder:object:root=true
type ToolApprovalList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []ToolApproval `json:"items"`
}
