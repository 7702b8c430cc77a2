package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Execution says how far a Turn goes.
// +kubebuilder:validation:Enum=Run;PrepareOnly
type Execution string

const (
	// ExecutionRun prepares the prompt and asks the model.
	ExecutionRun Execution = "Run"
	// ExecutionPrepareOnly prepares the prompt, reports on it and asks no model.
	ExecutionPrepareOnly Execution = "PrepareOnly"
)

// DesiredState is what should become of a Turn.
// +kubebuilder:validation:Enum=Active;Suspended;Cancelled
type DesiredState string

const (
	// DesiredStateActive lets the Turn run.
	DesiredStateActive DesiredState = "Active"
	// DesiredStateSuspended stops the Turn at the next safe point; what it has done is kept, and Active takes it up again.
	DesiredStateSuspended DesiredState = "Suspended"
	// DesiredStateCancelled ends the Turn at the next safe point, for ever.
	DesiredStateCancelled DesiredState = "Cancelled"
)

// JournalLossPolicy says what becomes of a Turn whose journal is lost.
// +kubebuilder:validation:Enum=Interrupt;Rerun
type JournalLossPolicy string

const (
	// JournalLossInterrupt ends the Turn.
	JournalLossInterrupt JournalLossPolicy = "Interrupt"
	// JournalLossRerun starts it over.
	JournalLossRerun JournalLossPolicy = "Rerun"
)

// CitationMode says whether a result names its sources.
// +kubebuilder:validation:Enum=Show;Hide
type CitationMode string

const (
	// CitationsShow lists the sources in the result.
	CitationsShow CitationMode = "Show"
	// CitationsHide leaves them out.
	CitationsHide CitationMode = "Hide"
)

// HistoryRole is who said a message of the history.
// +kubebuilder:validation:Enum=User;Assistant
type HistoryRole string

const (
	// HistoryRoleUser marks a message of the user.
	HistoryRoleUser HistoryRole = "User"
	// HistoryRoleAssistant marks an answer of the model.
	HistoryRoleAssistant HistoryRole = "Assistant"
)

// TurnSpec is one request to an agent. All of it is immutable but desiredState and ttlSecondsAfterFinished.
// +kubebuilder:validation:XValidation:rule="has(self.parameters) == has(oldSelf.parameters)",message="parameters must not change: create a new Turn instead",fieldPath=".parameters"
// +kubebuilder:validation:XValidation:rule="!has(self.sessionRef) || !has(self.history)",message="history must be absent where sessionRef is given: the history is that of the Session",fieldPath=".history"
// +kubebuilder:validation:XValidation:rule="!has(self.sessionRef) || !has(self.context) || !has(self.context.session) || (!has(self.context.session.id) && !has(self.context.session.subject))",message="context.session must not have an id or a subject where sessionRef is given: they are those of the Session",fieldPath=".context.session"
// +kubebuilder:validation:XValidation:rule="has(self.sessionRef) == has(oldSelf.sessionRef)",message="sessionRef must not change: create a new Turn instead",fieldPath=".sessionRef"
// +kubebuilder:validation:XValidation:rule="has(self.history) == has(oldSelf.history)",message="history must not change: create a new Turn instead",fieldPath=".history"
// +kubebuilder:validation:XValidation:rule="has(self.context) == has(oldSelf.context)",message="context must not change: create a new Turn instead",fieldPath=".context"
// +kubebuilder:validation:XValidation:rule="has(self.model) == has(oldSelf.model)",message="model must not change: create a new Turn instead",fieldPath=".model"
// +kubebuilder:validation:XValidation:rule="has(self.promptMode) == has(oldSelf.promptMode)",message="promptMode must not change: create a new Turn instead",fieldPath=".promptMode"
// +kubebuilder:validation:XValidation:rule="has(self.depth) == has(oldSelf.depth)",message="depth must not change: create a new Turn instead",fieldPath=".depth"
// +kubebuilder:validation:XValidation:rule="has(self.shaping) == has(oldSelf.shaping)",message="shaping must not change: create a new Turn instead",fieldPath=".shaping"
// +kubebuilder:validation:XValidation:rule="has(self.guardrails) == has(oldSelf.guardrails)",message="guardrails must not change: create a new Turn instead",fieldPath=".guardrails"
// +kubebuilder:validation:XValidation:rule="has(self.webMode) == has(oldSelf.webMode)",message="webMode must not change: create a new Turn instead",fieldPath=".webMode"
// +kubebuilder:validation:XValidation:rule="has(self.topK) == has(oldSelf.topK)",message="topK must not change: create a new Turn instead",fieldPath=".topK"
// +kubebuilder:validation:XValidation:rule="has(self.output) == has(oldSelf.output)",message="output must not change: create a new Turn instead",fieldPath=".output"
// +kubebuilder:validation:XValidation:rule="has(self.limits) == has(oldSelf.limits)",message="limits must not change: create a new Turn instead",fieldPath=".limits"
type TurnSpec struct {
	// agentRef names the Agent that answers. A Turn may be created before its Agent.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="agentRef must not change: create a new Turn instead"
	AgentRef ObjectReference `json:"agentRef"`

	// message is what the user asks, 1 to 32768 characters. It must not be blank, nor hold the character U+0000; all
	// other characters reach the model as data.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="message must not change: create a new Turn instead"
	// +kubebuilder:validation:XValidation:rule="self.matches(r'[^\\pZ\\p{Cc}\\p{Cf}]')",message="message must not be blank: white space, control and zero-width characters alone say nothing"
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="message must not hold the character U+0000"
	Message string `json:"message"`

	// parameters are values of the variables that the agent's PromptProfile declares, 1 to 32.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="parameters must not change: create a new Turn instead"
	Parameters []Parameter `json:"parameters,omitempty"`

	// sessionRef names the Session that this Turn belongs to; it is made if it is not there. Turns of one session run one
	// after another in the order of their creation, and each sees what was said in all earlier ones.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="sessionRef must not change: create a new Turn instead"
	SessionRef *ObjectReference `json:"sessionRef,omitempty"`

	// history is what was said before, oldest first, 1 to 256 messages, for a conversation that is kept elsewhere. A Turn with
	// a sessionRef has that of its Session instead.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="history must not change: create a new Turn instead"
	History []HistoryMessage `json:"history,omitempty"`

	// context is what the caller knows that bears on this request.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="context must not change: create a new Turn instead"
	Context *TurnContext `json:"context,omitempty"`

	// shaping says how the answer should be, after what the profile says.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="shaping must not change: create a new Turn instead"
	Shaping *Shaping `json:"shaping,omitempty"`

	// guardrails constrain all other instructions, 1 to 32, after those of the profile. They are wishes unless the Agent's
	// contributionTrust is Trusted. The profile's hold in any case.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="guardrails must not change: create a new Turn instead"
	Guardrails []Guardrail `json:"guardrails,omitempty"`

	// promptMode of this Turn's system prompt: Full, Minimal, Task or None. Default: the profile's mode, else Minimal for
	// a sub-agent (a depth above 0), else Full. The profile's guardrails are in each.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="promptMode must not change: create a new Turn instead"
	PromptMode PromptMode `json:"promptMode,omitempty"`

	// depth is how many agents have handed this request on, from 0 (the default: it is a user's) to 8. Above 0 the agent
	// works as a sub-agent: its mode is Minimal where nothing else says, and its section sub_agent tells the model so.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=8
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="depth must not change: create a new Turn instead"
	Depth *int32 `json:"depth,omitempty"`

	// model of the Agent's chain that is asked first, as MODEL or PROVIDER:MODEL, which is split at the first colon; at
	// most 512 characters. The rest of the chain stands by in its order. Default: the first of the chain.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="model must not change: create a new Turn instead"
	Model string `json:"model,omitempty"`

	// webMode says whether tools of the role WebSearch may be called: Off (the default; in YAML "Off", in quotes) or On.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="webMode must not change: create a new Turn instead"
	WebMode WebMode `json:"webMode,omitempty"`

	// topK is how many results tools of the role ContextPack are asked for, from 1 to 100. Default 8.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="topK must not change: create a new Turn instead"
	TopK *int32 `json:"topK,omitempty"`

	// output asks for a structured answer.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="output must not change: create a new Turn instead"
	Output *TurnOutput `json:"output,omitempty"`

	// citations says whether the result lists the sources of the facts it was given. Default Show.
	// +optional
	// +kubebuilder:default=Show
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="citations must not change: create a new Turn instead"
	Citations CitationMode `json:"citations,omitempty"`

	// limits of this Turn. They may lower those of the Agent, never raise them.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="limits must not change: create a new Turn instead"
	Limits *Limits `json:"limits,omitempty"`

	// execution is Run (the default), or PrepareOnly: assemble the prompt and report on it, without asking a model.
	// +optional
	// +kubebuilder:default=Run
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="execution must not change: create a new Turn instead"
	Execution Execution `json:"execution,omitempty"`

	// desiredState is Active (the default); Suspended, which stops the Turn at the next safe point until it is Active
	// again (its time then starts anew); or Cancelled, which ends it and is final.
	// +optional
	// +kubebuilder:default=Active
	// +kubebuilder:validation:XValidation:rule="oldSelf != 'Cancelled' || self == 'Cancelled'",message="desiredState must stay Cancelled: cancelling is final, create a new Turn instead"
	DesiredState DesiredState `json:"desiredState,omitempty"`

	// onJournalLoss says what becomes of the Turn when its journal is lost after a tool that is not ReadOnly may have been
	// called: Interrupt (the default), which ends the Turn as Interrupted and makes no call twice; or Rerun, which starts it over,
	// so that calls of before may be made again. A Turn that could call ReadOnly tools only, or none, starts over in any case.
	// +optional
	// +kubebuilder:default=Interrupt
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="onJournalLoss must not change: create a new Turn instead"
	OnJournalLoss JournalLossPolicy `json:"onJournalLoss,omitempty"`

	// ttlSecondsAfterFinished is how long the Turn is kept after it finished, in seconds, from 0 (deleted at once) to
	// 31536000. Without it the Turn is kept until somebody deletes it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// WebMode says whether the web may be searched.
// +kubebuilder:validation:Enum=Off;On
type WebMode string

const (
	// WebModeOff refuses calls of tools of the role WebSearch.
	WebModeOff WebMode = "Off"
	// WebModeOn allows them.
	WebModeOn WebMode = "On"
)

// TurnOutput asks for a structured answer.
type TurnOutput struct {
	// schema is the JSON Schema (2020-12) of the answer, which is then JSON and is in status.result.data. References to
	// other documents are not followed. An answer that does not fit is sent back to the model with what is wrong, at most twice;
	// then the Turn ends with reason OutputInvalid.
	// +required
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Schema apiextensionsv1.JSON `json:"schema"`
}

// DefaultTopK is how many results tools of the role ContextPack are asked for where a Turn does not say.
const DefaultTopK = 8

// Parameter is the value of a variable.
type Parameter struct {
	// name of the variable, as the PromptProfile declares it, at most 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z][A-Za-z0-9_]*$")`,message="name must be a letter followed by letters, digits and '_'"
	Name string `json:"name"`

	// value of the variable, at most 4096 characters. It is escaped and fenced as data, unless the profile declares the
	// variable Trusted.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="value must not hold the character U+0000"
	Value string `json:"value"`
}

// HistoryMessage is something that was said before this Turn.
type HistoryMessage struct {
	// role is who said it: User or Assistant.
	// +required
	Role HistoryRole `json:"role"`

	// content is what was said, 1 to 16384 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="content must not hold the character U+0000"
	Content string `json:"content"`
}

// Turn is one request to an agent: bounded, recorded, and run to its end once.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=tn,categories=capstan
// +kubebuilder:selectablefield:JSONPath=`.spec.agentRef.name`
// +kubebuilder:selectablefield:JSONPath=`.spec.sessionRef.name`
// +kubebuilder:selectablefield:JSONPath=`.status.executor.name`
// +kubebuilder:selectablefield:JSONPath=`.status.completionTime`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.spec.agentRef.name`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Succeeded")].reason`
// +kubebuilder:printcolumn:name="Steps",type=integer,JSONPath=`.status.steps.count`
// +kubebuilder:printcolumn:name="Tokens",type=integer,JSONPath=`.status.usage.totalTokens`
// +kubebuilder:printcolumn:name="Cost",type=string,JSONPath=`.status.usage.cost.amount`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Model",type=string,priority=1,JSONPath=`.status.preparation.model`
// +kubebuilder:printcolumn:name="Strategy",type=string,priority=1,JSONPath=`.status.decision.strategy`
// +kubebuilder:printcolumn:name="Stop",type=string,priority=1,JSONPath=`.status.stopReason`
// +kubebuilder:printcolumn:name="Answer",type=string,priority=1,JSONPath=`.status.result.preview`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Succeeded")].message`
type Turn struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the request.
	// +required
	Spec TurnSpec `json:"spec"`

	// status is the result and the record.
	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status TurnStatus `json:"status,omitzero"`
}

// TurnList is a list of Turns.
// +kubebuilder:object:root=true
type TurnList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Turn `json:"items"`
}
