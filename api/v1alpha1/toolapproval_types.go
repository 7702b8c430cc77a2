package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ApprovalDecision is the decision about a call.
// +kubebuilder:validation:Enum=Approved;Denied
type ApprovalDecision string

const (
	// ApprovalApproved allows the call.
	ApprovalApproved ApprovalDecision = "Approved"
	// ApprovalDenied refuses the call, and informs the model.
	ApprovalDenied ApprovalDecision = "Denied"
)

// ToolApprovalSpec is the decision about one call of one Turn. The decision is used only if all fields that identify
// the call have the same values as in the Turn's status.pendingApprovals. The spec is immutable.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec must not change: a decision is final"
type ToolApprovalSpec struct {
	// turnRef names the Turn with the pending call.
	// +required
	TurnRef ObjectReference `json:"turnRef"`

	// turnUID is the UID of the Turn in turnRef, 1 to 64 characters. The decision does not apply to a later Turn with
	// the same name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TurnUID string `json:"turnUID"`

	// requestID is the requestID of the call in the Turn's status.pendingApprovals, 1 to 64 characters. It is
	// random and is created with the request for approval, so no decision can be made before its request.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	RequestID string `json:"requestID"`

	// step is the step of the call in the Turn's status.pendingApprovals, from 1 to 1000.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Step int32 `json:"step"`

	// callID is the callID of the call in the Turn's status.pendingApprovals, 1 to 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	CallID string `json:"callID"`

	// toolName is the name of the tool in the Turn's status.pendingApprovals, 1 to 64 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ToolName string `json:"toolName"`

	// toolServerUID is the toolServerUID of the call in the Turn's status.pendingApprovals, at most 64 characters. It
	// must be absent if that call has none.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ToolServerUID string `json:"toolServerUID,omitempty"`

	// schemaHash is the schemaHash of the call in the Turn's status.pendingApprovals, 1 to 64 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	SchemaHash string `json:"schemaHash"`

	// argumentsHash is the argumentsHash of the call in the Turn's status.pendingApprovals, 1 to 64 characters. The
	// decision is valid for exactly these arguments.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ArgumentsHash string `json:"argumentsHash"`

	// decision is Approved, which allows the call, or Denied, which refuses it.
	// +required
	Decision ApprovalDecision `json:"decision"`

	// reason is the reason for the decision, at most 1024 characters. The model receives it, and the journal records
	// it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// decidedBy is the name of the user who decides, 1 to 256 characters. It must be the name of the user who creates
	// this object; the policy that Capstan installs enforces this.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	DecidedBy string `json:"decidedBy"`

	// decidedByGroups are 1 to 64 groups of the user in decidedBy. They are needed if the approval.approvers of the
	// Turn's Agent names groups. Each must be a group of the user who creates this object; the policy that Capstan
	// installs enforces this.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	DecidedByGroups []string `json:"decidedByGroups,omitempty"`
}

// ToolApproval is the decision of one person about one pending call of a Turn. A user who may create ToolApprovals may
// approve calls, and gains no other permission.
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
