package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SessionSpec is a conversation as it should be.
type SessionSpec struct {
	// subject of the conversation, such as "Order 1042", 1 to 32768 characters. The model gets the first 20000, as data.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="subject must not hold the character U+0000"
	Subject string `json:"subject,omitempty"`

	// budget bounds all Turns of the session together. Once it is used up, further Turns end as SessionClosed; raising it
	// opens the session again.
	// +optional
	Budget *SessionBudget `json:"budget,omitempty"`

	// ttlSecondsAfterLastTurn is how long the session is kept after its last Turn ended (after its creation, where it has
	// none), in seconds, from 1 to 31536000. Without it the session is kept until somebody deletes it. Its history goes with
	// it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterLastTurn *int32 `json:"ttlSecondsAfterLastTurn,omitempty"`

	// onHistoryLoss is what the next Turn does when the store of the journal has lost the history of earlier Turns. Continue: it
	// runs, and the model is told that earlier history is missing. Wait: the Turns of the session wait until its spec changes; the
	// next one then looks again.
	// +optional
	// +kubebuilder:default=Continue
	OnHistoryLoss OnHistoryLoss `json:"onHistoryLoss,omitempty"`
}

// OnHistoryLoss is what the next Turn of a session does when the history of earlier ones was lost.
// +kubebuilder:validation:Enum=Continue;Wait
type OnHistoryLoss string

const (
	// OnHistoryLossContinue runs the Turn, which is told that earlier history is missing.
	OnHistoryLossContinue OnHistoryLoss = "Continue"
	// OnHistoryLossWait makes the Turns wait until the spec of the session changes.
	OnHistoryLossWait OnHistoryLoss = "Wait"
)

// SessionBudget bounds a session.
// +kubebuilder:validation:MinProperties=1
type SessionBudget struct {
	// maxTurns is how many Turns the session takes, from 1 to 1000000. Turns that ended without asking a model do not count.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxTurns *int32 `json:"maxTurns,omitempty"`

	// maxTokens is how many tokens its Turns may take, input and output together, from 1 to 1000000000000. A Turn gets what
	// is left of it, whatever its own limits say.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	MaxTokens *int64 `json:"maxTokens,omitempty"`

	// maxCost is what its Turns may cost, a decimal above 0 in the currency of the models' prices. A Turn gets what is left
	// of it, whatever its own limits say. What a model without a price is asked does not count.
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,12}(\.[0-9]{1,10})?$") && self.matches(r"[1-9]")`,message="maxCost must be a decimal above 0 with at most 12 digits before and 10 after the point, such as 0.50"
	MaxCost *string `json:"maxCost,omitempty"`
}

// SessionStatus is how far a conversation has got. The messages are not here: the store of the journal has them.
type SessionStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of; -1 before anybody has looked.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the session: Ready, which is False once the budget is used up, and HistoryComplete, which is False once the
	// history of Turns was lost.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// turns is how many Turns have ended in this session after they asked a model.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Turns int64 `json:"turns,omitempty"`

	// missingTurns is how many of these Turns have lost their history. Their usage and cost still count.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MissingTurns int64 `json:"missingTurns,omitempty"`

	// lastTurnName is the name of the last of them.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	LastTurnName string `json:"lastTurnName,omitempty"`

	// lastTurnTime is when it ended.
	// +optional
	LastTurnTime *metav1.MicroTime `json:"lastTurnTime,omitempty"`

	// usage is what all of them took and cost. cost is absent where a model that was used has no price, or prices are in
	// several currencies.
	// +optional
	Usage *Usage `json:"usage,omitempty"`

	// knownCost is what is known of the cost, as a decimal such as 0.0123: less than all where a model had no price. Costs in
	// several currencies are added as they are. It is what budget.maxCost is held against.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	KnownCost string `json:"knownCost,omitempty"`

	// contextTokens is how many tokens the last request of the last Turn that was answered had with its reply: about what the
	// next one begins with.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ContextTokens int64 `json:"contextTokens,omitempty"`
}

// Session is a conversation: Turns that name it run one after another, and each sees what was said before.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=sn,categories=capstan
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Turns",type=integer,JSONPath=`.status.turns`
// +kubebuilder:printcolumn:name="Tokens",type=integer,JSONPath=`.status.usage.totalTokens`
// +kubebuilder:printcolumn:name="Cost",type=string,JSONPath=`.status.usage.cost.amount`
// +kubebuilder:printcolumn:name="History",type=string,JSONPath=`.status.conditions[?(@.type=="HistoryComplete")].reason`
// +kubebuilder:printcolumn:name="Last",type=string,JSONPath=`.status.lastTurnName`
// +kubebuilder:printcolumn:name="Subject",type=string,priority=1,JSONPath=`.spec.subject`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Session struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the conversation as it should be.
	// +optional
	Spec SessionSpec `json:"spec,omitzero"`

	// status is how far it has got.
	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status SessionStatus `json:"status,omitzero"`
}

// SessionList is a list of Sessions.
// +kubebuilder:object:root=true
type SessionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Session `json:"items"`
}
