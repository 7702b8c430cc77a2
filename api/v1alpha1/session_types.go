package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SessionSpec defines a conversation.
type SessionSpec struct {
	// subject is the subject of the conversation, such as "Order 1042", 1 to 32768 characters. The model receives
	// the first 20000 as data.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="subject must not contain the character U+0000"
	Subject string `json:"subject,omitempty"`

	// budget limits all Turns of the session together. When it is used up, further Turns end with reason
	// SessionClosed. A higher budget opens the session again.
	// +optional
	Budget *SessionBudget `json:"budget,omitempty"`

	// ttlSecondsAfterLastTurn is how long the session and its history are kept after its last Turn ended, in seconds,
	// from 1 to 31536000. If the session has no Turn, the time counts from its creation. Without this field, the
	// session is kept until it is deleted explicitly.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterLastTurn *int32 `json:"ttlSecondsAfterLastTurn,omitempty"`

	// onHistoryLoss says how the next Turn proceeds if the store of the journal has lost the history of earlier
	// Turns. Continue (the default): the Turn runs, and the model is informed that earlier history is missing.
	// Wait: the Turns of the session wait until its spec changes; the next Turn then checks the history again.
	// +optional
	// +kubebuilder:default=Continue
	OnHistoryLoss OnHistoryLoss `json:"onHistoryLoss,omitempty"`
}

// OnHistoryLoss says how the next Turn of a session proceeds if the history of earlier Turns is lost.
// +kubebuilder:validation:Enum=Continue;Wait
type OnHistoryLoss string

const (
	// OnHistoryLossContinue runs the Turn, and informs the model that earlier history is missing.
	OnHistoryLossContinue OnHistoryLoss = "Continue"
	// OnHistoryLossWait makes the Turns wait until the spec of the session changes.
	OnHistoryLossWait OnHistoryLoss = "Wait"
)

// SessionBudget limits all Turns of a session together.
// +kubebuilder:validation:MinProperties=1
type SessionBudget struct {
	// maxTurns is the maximum number of Turns of the session, from 1 to 1000000. Turns that ended without asking a
	// model do not count.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxTurns *int32 `json:"maxTurns,omitempty"`

	// maxTokens is the maximum number of tokens that the session's Turns may use together, input and output, from 1 to
	// 1000000000000. A Turn can use only the tokens that are left, even if its own limits are higher.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	MaxTokens *int64 `json:"maxTokens,omitempty"`

	// maxCost is the maximum cost of the session's Turns together, a decimal above 0 in the currency of the models'
	// prices. A Turn can use only the amount that is left, even if its own limits are higher. Requests to models
	// without a price do not count.
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,12}(\.[0-9]{1,10})?$")
	// +  && self.matches(r"[1-9]")`,message="maxCost must be a decimal above 0 with at most 12 digits before and 10
	// +  after the point, such as 0.50"
	MaxCost *string `json:"maxCost,omitempty"`
}

// SessionStatus is the progress of a conversation. It does not contain the messages: they are in the store of the
// journal.
type SessionStatus struct {
	// observedGeneration is the generation of the spec that this status describes. It is -1 before the first
	// reconciliation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the conditions of the session. Ready is False if the budget is used up, or if the history is lost
	// and onHistoryLoss is Wait; it is True otherwise. Stalled is True while Ready is False, and absent otherwise.
	// HistoryComplete is False if the history of Turns was lost, and True otherwise.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",
	// + message="each lastTransitionTime must be a time"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// turns is the number of Turns of this session that have ended after they asked a model.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Turns int64 `json:"turns,omitempty"`

	// missingTurns is the number of counted Turns whose history was lost. Their usage and cost still count.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MissingTurns int64 `json:"missingTurns,omitempty"`

	// lastTurnName is the name of the last Turn that the field turns counts.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	LastTurnName string `json:"lastTurnName,omitempty"`

	// lastTurnTime is the latest end of a Turn that the field turns counts. It may be that of another Turn than
	// lastTurnName, if that one was charged late.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}(Z|[+-][01][0-9]:[0-5][0-9])$`
	LastTurnTime *metav1.MicroTime `json:"lastTurnTime,omitempty"`

	// usage is the total token usage and cost of the counted Turns. The cost is absent if a model that was used has no
	// price, or if the prices are in several currencies.
	// +optional
	Usage *Usage `json:"usage,omitempty"`

	// knownCost is the sum of all costs that are known, as a decimal such as 0.0123. Requests to models without a price
	// add nothing. Amounts in several currencies are added without conversion. budget.maxCost limits this sum.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	KnownCost string `json:"knownCost,omitempty"`

	// contextTokens is the number of tokens of the last request, reply included, of the last Turn whose answer is in
	// the history. The next Turn starts with about the same number of tokens.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ContextTokens int64 `json:"contextTokens,omitempty"`
}

// Session is a conversation. The Turns that name it run one after another, and each sees the earlier messages.
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

	// spec defines the conversation.
	// +optional
	Spec SessionSpec `json:"spec,omitzero"`

	// status is the progress of the conversation.
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
