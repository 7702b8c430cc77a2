package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Execution says whether a Turn asks a model or only prepares the prompt.
// +kubebuilder:validation:Enum=Run;PrepareOnly
type Execution string

const (
	// ExecutionRun prepares the prompt and asks the model.
	ExecutionRun Execution = "Run"
	// ExecutionPrepareOnly prepares the prompt and reports on it, without asking a model.
	ExecutionPrepareOnly Execution = "PrepareOnly"
)

// DesiredState is the state that a user wants for a Turn.
// +kubebuilder:validation:Enum=Active;Suspended;Cancelled
type DesiredState string

const (
	// DesiredStateActive lets the Turn run.
	DesiredStateActive DesiredState = "Active"
	// DesiredStateSuspended stops the Turn at the next safe point. Its progress is kept, and Active continues it.
	DesiredStateSuspended DesiredState = "Suspended"
	// DesiredStateCancelled ends the Turn immediately: a run that is in progress aborts its request. It cannot be
	// undone.
	DesiredStateCancelled DesiredState = "Cancelled"
)

// JournalLossPolicy says how a Turn continues if its journal is lost.
// +kubebuilder:validation:Enum=Interrupt;Rerun
type JournalLossPolicy string

const (
	// JournalLossInterrupt ends the Turn.
	JournalLossInterrupt JournalLossPolicy = "Interrupt"
	// JournalLossRerun starts the Turn over.
	JournalLossRerun JournalLossPolicy = "Rerun"
)

// CitationMode says whether a result lists its sources.
// +kubebuilder:validation:Enum=Show;Hide;Append
type CitationMode string

const (
	// CitationsShow lists the sources in the result.
	CitationsShow CitationMode = "Show"
	// CitationsHide omits the sources.
	CitationsHide CitationMode = "Hide"
	// CitationsAppend lists the sources in the result, and at the end of the text.
	CitationsAppend CitationMode = "Append"
)

// HistoryRole is the author of a message in the history.
// +kubebuilder:validation:Enum=User;Assistant
type HistoryRole string

const (
	// HistoryRoleUser marks a message of the user.
	HistoryRoleUser HistoryRole = "User"
	// HistoryRoleAssistant marks an answer of the model.
	HistoryRoleAssistant HistoryRole = "Assistant"
)

// TurnSpec is one request to an agent. It is immutable, except for desiredState and ttlSecondsAfterFinished.
// +kubebuilder:validation:XValidation:rule="!has(self.sessionRef) || !has(self.history)",
// + message="history must be absent if sessionRef is given: the Session has the history",fieldPath=".history"
// +kubebuilder:validation:XValidation:rule="!has(self.sessionRef) || !has(self.context) || !has(self.context.session)
// +  || (!has(self.context.session.id) && !has(self.context.session.subject))",
// + message="context.session must not have an id or a subject if sessionRef is given: the Session has both",
// + fieldPath=".context.session"
// +kubebuilder:validation:XValidation:rule="has(self.sessionRef) || !has(self.attachments)
// +  || self.attachments.all(a, !has(a.artifactRef) || a.artifactRef.scope == 'Namespace')",
// + message="artifactRef.scope must be Namespace in a Turn without sessionRef",fieldPath=".attachments"
// +kubebuilder:validation:XValidation:rule="!has(self.output) || !has(self.citations) || self.citations != 'Append'",
// + message="citations must not be Append with output, because the answer is then JSON: use Show"
// +kubebuilder:validation:XValidation:rule="has(self.message) ? !has(self.messageFrom) && !has(self.undo)
// +  : has(self.messageFrom) != has(self.undo)",
// + message="exactly one of message, messageFrom and undo must be given",fieldPath=".message"
// +kubebuilder:validation:XValidation:rule="!has(self.undo) || (!has(self.sessionRef) && !has(self.history) && !has(self.context)
// +  && !has(self.attachments) && !has(self.parameters) && !has(self.shaping) && !has(self.guardrails) && !has(self.promptMode)
// +  && !has(self.model) && !has(self.output) && !has(self.topK) && !has(self.depth)
// +  && (!has(self.execution) || self.execution == 'Run'))",
// + message="undo must not be combined with sessionRef, history, context, attachments, parameters, shaping, guardrails, promptMode,
// +  model, output, topK, depth or execution: PrepareOnly, because a Turn with undo asks no model: remove these fields",
// + fieldPath=".undo"
// +kubebuilder:validation:XValidation:rule="!has(self.undo) || !has(self.onJournalLoss) || self.onJournalLoss == 'Interrupt'",
// + message="onJournalLoss must be Interrupt with undo: a compensation must not run twice",fieldPath=".onJournalLoss"
// +kubebuilder:validation:XValidation:rule="!has(self.agentRef.namespace) || has(self.depth) && self.depth > 0
// +  && !has(self.messageFrom) && !has(self.sessionRef) && !has(self.history) && !has(self.context) && !has(self.attachments)
// +  && !has(self.parameters)
// +  && !has(self.shaping) && !has(self.guardrails) && !has(self.promptMode) && !has(self.model) && !has(self.output)
// +  && !has(self.topK)",
// + message="agentRef.namespace must be absent: only Capstan creates Turns of Agents of other namespaces, for calls of sub-agents",
// + fieldPath=".agentRef"
type TurnSpec struct {
	// agentRef names the Agent that answers. The Turn may be created before its Agent. Only the Turn of a sub-agent may
	// name an Agent of another namespace: Capstan creates it for a call. Users must leave out the namespace.
	// +required
	AgentRef SharedReference `json:"agentRef"`

	// requestedBy is the user who asked for this Turn. If the API server supports MutatingAdmissionPolicy and Capstan's
	// policies are installed, it sets this field to the user who creates the Turn. Otherwise the field must be absent,
	// or name that user. The Turn of a sub-agent has the requestedBy of the Turn that called the sub-agent.
	// +optional
	RequestedBy *Requester `json:"requestedBy,omitempty"`

	// message is the user's request, 1 to 32768 characters. It must not be blank and must not contain the character
	// U+0000. All other characters reach the model as data. Exactly one of message, messageFrom and undo must be given.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	// +kubebuilder:validation:XValidation:rule="self.matches(r'[^\\pZ\\p{Cc}\\p{Cf}]')",
	// + message="message must not be blank: it must have more than white space, control and zero-width characters"
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="message must not contain the character U+0000"
	Message string `json:"message,omitempty"`

	// messageFrom refers to the text of the message, for a message that another program writes or that is too long for
	// a Turn. The rules of the field message apply to the text. It is read once, when the prompt is prepared, and kept
	// in the journal. The Turn waits until the ConfigMap exists.
	// +optional
	MessageFrom *ContentSource `json:"messageFrom,omitempty"`

	// undo makes the Turn undo calls of another Turn of the same namespace and the same Agent. A Turn with undo asks no
	// model: it runs the compensations in the journal of the other Turn, in the reverse order of the calls. Each
	// compensation requires approval. Fields that only concern a model must be absent.
	// +optional
	Undo *TurnUndo `json:"undo,omitempty"`

	// attachments are 1 to 8 images and files that belong to the message. Later Turns of the Session see their names,
	// and not their contents. At least one model of the Agent must accept them; models that do not accept them are
	// skipped.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Attachments []Attachment `json:"attachments,omitempty"`

	// parameters are the values of 1 to 32 variables that the PromptProfile of the Agent declares.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Parameters []Parameter `json:"parameters,omitempty"`

	// sessionRef names the Session to which this Turn belongs. The Session is created if it does not exist. The Turns
	// of a Session run one after another, in the order of their creation. Each Turn sees the messages of all earlier
	// Turns.
	// +optional
	SessionRef *ObjectReference `json:"sessionRef,omitempty"`

	// history is the conversation before this Turn, 1 to 256 messages, oldest first. Use it if the conversation is
	// kept outside Capstan. It must be absent if sessionRef is given, because the Session then has the history.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	History []HistoryMessage `json:"history,omitempty"`

	// context is the data that the caller adds to the request, such as facts and memories.
	// +optional
	Context *TurnContext `json:"context,omitempty"`

	// shaping says how the assistant should answer. Its fields add to the shaping of the PromptProfile, or replace it,
	// as each field describes.
	// +optional
	Shaping *Shaping `json:"shaping,omitempty"`

	// guardrails are 1 to 32 rules that constrain all other instructions. Unless the Agent's contributionTrust is
	// Trusted, they are wishes: data that does not instruct the model. If they are trusted, the prompt has them in the
	// order of their priority, together with those of the PromptProfile. Among guardrails of the same priority, those
	// of the PromptProfile come first. The guardrails of the PromptProfile always apply.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Guardrails []Guardrail `json:"guardrails,omitempty"`

	// promptMode selects the sections of this Turn's system prompt. Full: all sections except sub_agent, for a
	// conversation. Task: the same sections, for a task that is done without questions to the user. Minimal: the
	// sections that a sub-agent needs. None: no sections, only one fixed line. In each mode, the prompt has the
	// guardrails of the PromptProfile. Default: the profile's mode; if the profile has none, Minimal for a sub-agent (a
	// depth above 0) and Full otherwise.
	// +optional
	PromptMode PromptMode `json:"promptMode,omitempty"`

	// depth is the number of Agents through which the request has come, from 0 to 8. It is 0 (the default) for the
	// request of a user, and 1 for the Turn of a sub-agent that such a Turn calls. With a depth above 0 the Agent works
	// as a sub-agent: promptMode defaults to Minimal, and the section sub_agent of the prompt explains this role to the
	// model.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=8
	Depth *int32 `json:"depth,omitempty"`

	// model is the model of the Agent's chain to ask first, written as MODEL or PROVIDER:MODEL, at most 512
	// characters. The text is split at the first colon. The other models of the chain stay as fallbacks, in their
	// order. Default: the first model of the chain.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Model string `json:"model,omitempty"`

	// webMode says whether tools with the role WebSearch may be called: Off (the default) or On. In YAML, write
	// both in quotes.
	// +optional
	WebMode WebMode `json:"webMode,omitempty"`

	// topK is the number of results that Capstan requests from each tool with the role ContextPack, from 1 to 100.
	// Default 8.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	TopK *int32 `json:"topK,omitempty"`

	// output requests a structured answer. Without it the answer is text.
	// +optional
	Output *TurnOutput `json:"output,omitempty"`

	// citations says whether the result lists the sources of the answer: Show (the default), Hide, or Append. Append
	// also adds the list to the end of the text, and cannot be combined with output.
	// +optional
	// +kubebuilder:default=Show
	Citations CitationMode `json:"citations,omitempty"`

	// limits apply to this Turn. The lowest limit of Turn, Agent and manager applies: a Turn can lower a limit of its
	// Agent and never raise it.
	// +optional
	Limits *Limits `json:"limits,omitempty"`

	// execution is Run (the default) or PrepareOnly. Run prepares the prompt and asks the model. PrepareOnly prepares
	// the prompt and reports on it, without asking a model.
	// +optional
	// +kubebuilder:default=Run
	Execution Execution `json:"execution,omitempty"`

	// desiredState is Active (the default), Suspended or Cancelled. Suspended stops the Turn at the next safe point,
	// until desiredState is Active again; the Turn's time limits then start again from zero. Cancelled ends the Turn
	// and cannot be undone.
	// +optional
	// +kubebuilder:default=Active
	// +kubebuilder:validation:XValidation:rule="oldSelf != 'Cancelled' || self == 'Cancelled'",
	// + message="desiredState must stay Cancelled: cancelling is final, create a new Turn instead"
	DesiredState DesiredState `json:"desiredState,omitempty"`

	// onJournalLoss says what happens if the Turn's journal is lost after a tool that is not ReadOnly may have been
	// called. Interrupt (the default) ends the Turn with reason Interrupted, and makes no call twice. Rerun starts
	// the Turn over, and earlier calls may be made again. A Turn that could call only ReadOnly tools, or no tools,
	// starts over in any case.
	// +optional
	// +kubebuilder:default=Interrupt
	OnJournalLoss JournalLossPolicy `json:"onJournalLoss,omitempty"`

	// ttlSecondsAfterFinished is how long the Turn is kept after it finished, in seconds, from 0 (deleted immediately)
	// to 31536000. Without this field, the Turn is kept until it is deleted explicitly.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// TurnUndo names the calls of another Turn to undo.
type TurnUndo struct {
	// turnUID is the UID of the other Turn, 1 to 64 characters. The other Turn must be in the same namespace and must
	// have ended. Its Agent must be the Agent in agentRef. Its journal must still exist; its object may be deleted.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9.-]+$")`,
	// + message="turnUID must have only letters, digits, '-' and '.'"
	TurnUID string `json:"turnUID"`

	// calls are the IDs of the calls to undo, 1 to 100, each at most 128 characters. Default: all calls that may have
	// changed something and can be undone. If there are more than 100 of these, the default is the newest 100.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	Calls []string `json:"calls,omitempty"`
}

// Requester is the user who asked for a Turn.
type Requester struct {
	// username is the name of the user, as the API server authenticated it, 1 to 512 characters. Examples:
	// ada@example.com, system:serviceaccount:support:desk.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",
	// + message="username must not contain the character U+0000"
	Username string `json:"username"`
}

// WebMode says whether a Turn may search the web.
// +kubebuilder:validation:Enum=Off;On
type WebMode string

const (
	// WebModeOff refuses calls of tools with the role WebSearch.
	WebModeOff WebMode = "Off"
	// WebModeOn allows such calls.
	WebModeOn WebMode = "On"
)

// TurnOutput requests a structured answer.
type TurnOutput struct {
	// schema is the JSON Schema (2020-12) of the answer. status.result.data has the answer as JSON. References to other
	// documents are not followed. If an answer does not fit, the model receives the violations and must answer again,
	// at most twice. After that the Turn ends with reason OutputInvalid.
	// +required
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Schema apiextensionsv1.JSON `json:"schema"`
}

// DefaultTopK is the default of TurnSpec.TopK.
const DefaultTopK = 8

// Parameter is the value of a variable.
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.valueFrom)",
// + message="exactly one of value and valueFrom must be given"
type Parameter struct {
	// name is the name of the variable, as the PromptProfile declares it, at most 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z][A-Za-z0-9_]*$")`,
	// + message="name must be a letter followed by letters, digits and '_'"
	Name string `json:"name"`

	// value is the value of the variable, at most 4096 characters. It is escaped and fenced as data, unless the
	// PromptProfile declares the variable as Trusted. Exactly one of value and valueFrom must be given.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="value must not contain the character U+0000"
	Value *string `json:"value,omitempty"`

	// valueFrom refers to the value. The bounds of the field value apply to it. It is read once, when the prompt is
	// prepared. The Turn waits until the ConfigMap exists.
	// +optional
	ValueFrom *ContentSource `json:"valueFrom,omitempty"`
}

// HistoryMessage is a message of the conversation before this Turn.
type HistoryMessage struct {
	// role is the author of the message: User or Assistant. An Assistant message is an earlier answer.
	// +required
	Role HistoryRole `json:"role"`

	// content is the text of the message, 1 to 16384 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="content must not contain the character U+0000"
	Content string `json:"content"`
}

// The validation rule of a Turn makes its spec immutable. The rule belongs to the whole Turn, and not to the spec, so
// that it can look at the status first, and accept the writes that start or end a Turn without looking at the spec.
// Otherwise each status write would be slow: the API server copies the schema of a structure for each field that a rule
// looks up, and would compare a large context. Accepting these writes is safe: a status write cannot change the spec,
// and a write of the spec cannot change the status.

// Turn is one request to an Agent: limited in time and cost, recorded, and run to its end once.
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
// +kubebuilder:printcolumn:name="Requester",type=string,priority=1,JSONPath=`.spec.requestedBy.username`
// +kubebuilder:printcolumn:name="Model",type=string,priority=1,JSONPath=`.status.preparation.model`
// +kubebuilder:printcolumn:name="Strategy",type=string,priority=1,JSONPath=`.status.decision.strategy`
// +kubebuilder:printcolumn:name="Stop",type=string,priority=1,JSONPath=`.status.stopReason`
// +kubebuilder:printcolumn:name="Answer",type=string,priority=1,JSONPath=`.status.result.preview`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Succeeded")].message`
// +kubebuilder:validation:XValidation:rule="has(self.status) != has(oldSelf.status) || has(self.status)
// +  && (has(self.status.completionTime) != has(oldSelf.status.completionTime)
// +  || has(self.status.startTime) != has(oldSelf.status.startTime))
// +  || self.spec.agentRef == oldSelf.spec.agentRef
// +  && (has(self.spec.requestedBy) ? has(oldSelf.spec.requestedBy) && self.spec.requestedBy == oldSelf.spec.requestedBy
// +  : !has(oldSelf.spec.requestedBy))
// +  && (has(self.spec.message) ? has(oldSelf.spec.message) && self.spec.message == oldSelf.spec.message
// +  : !has(oldSelf.spec.message))
// +  && (has(self.spec.messageFrom) ? has(oldSelf.spec.messageFrom) && self.spec.messageFrom == oldSelf.spec.messageFrom
// +  : !has(oldSelf.spec.messageFrom))
// +  && (has(self.spec.undo) ? has(oldSelf.spec.undo) && self.spec.undo == oldSelf.spec.undo
// +  : !has(oldSelf.spec.undo))
// +  && (has(self.spec.attachments) ? has(oldSelf.spec.attachments) && self.spec.attachments == oldSelf.spec.attachments
// +  : !has(oldSelf.spec.attachments))
// +  && (has(self.spec.parameters) ? has(oldSelf.spec.parameters) && self.spec.parameters == oldSelf.spec.parameters
// +  : !has(oldSelf.spec.parameters))
// +  && (has(self.spec.sessionRef) ? has(oldSelf.spec.sessionRef) && self.spec.sessionRef == oldSelf.spec.sessionRef
// +  : !has(oldSelf.spec.sessionRef))
// +  && (has(self.spec.history) ? has(oldSelf.spec.history) && self.spec.history == oldSelf.spec.history
// +  : !has(oldSelf.spec.history))
// +  && (has(self.spec.context) ? has(oldSelf.spec.context) && self.spec.context == oldSelf.spec.context
// +  : !has(oldSelf.spec.context))
// +  && (has(self.spec.shaping) ? has(oldSelf.spec.shaping) && self.spec.shaping == oldSelf.spec.shaping
// +  : !has(oldSelf.spec.shaping))
// +  && (has(self.spec.guardrails) ? has(oldSelf.spec.guardrails) && self.spec.guardrails == oldSelf.spec.guardrails
// +  : !has(oldSelf.spec.guardrails))
// +  && (has(self.spec.promptMode) ? has(oldSelf.spec.promptMode) && self.spec.promptMode == oldSelf.spec.promptMode
// +  : !has(oldSelf.spec.promptMode))
// +  && (has(self.spec.depth) ? has(oldSelf.spec.depth) && self.spec.depth == oldSelf.spec.depth
// +  : !has(oldSelf.spec.depth))
// +  && (has(self.spec.model) ? has(oldSelf.spec.model) && self.spec.model == oldSelf.spec.model
// +  : !has(oldSelf.spec.model))
// +  && (has(self.spec.webMode) ? has(oldSelf.spec.webMode) && self.spec.webMode == oldSelf.spec.webMode
// +  : !has(oldSelf.spec.webMode))
// +  && (has(self.spec.topK) ? has(oldSelf.spec.topK) && self.spec.topK == oldSelf.spec.topK
// +  : !has(oldSelf.spec.topK))
// +  && (has(self.spec.output) ? has(oldSelf.spec.output) && self.spec.output == oldSelf.spec.output
// +  : !has(oldSelf.spec.output))
// +  && (has(self.spec.citations) ? has(oldSelf.spec.citations) && self.spec.citations == oldSelf.spec.citations
// +  : !has(oldSelf.spec.citations))
// +  && (has(self.spec.limits) ? has(oldSelf.spec.limits) && self.spec.limits == oldSelf.spec.limits
// +  : !has(oldSelf.spec.limits))
// +  && (has(self.spec.execution) ? has(oldSelf.spec.execution) && self.spec.execution == oldSelf.spec.execution
// +  : !has(oldSelf.spec.execution))
// +  && (has(self.spec.onJournalLoss) ? has(oldSelf.spec.onJournalLoss) && self.spec.onJournalLoss == oldSelf.spec.onJournalLoss
// +  : !has(oldSelf.spec.onJournalLoss))",
// + messageExpression=`((self.spec.agentRef == oldSelf.spec.agentRef ? "" : "agentRef ")
// +  + (has(self.spec.requestedBy) != has(oldSelf.spec.requestedBy)
// +  || has(self.spec.requestedBy) && self.spec.requestedBy != oldSelf.spec.requestedBy ? "requestedBy " : "")
// +  + (has(self.spec.message) != has(oldSelf.spec.message)
// +  || has(self.spec.message) && self.spec.message != oldSelf.spec.message ? "message " : "")
// +  + (has(self.spec.messageFrom) != has(oldSelf.spec.messageFrom)
// +  || has(self.spec.messageFrom) && self.spec.messageFrom != oldSelf.spec.messageFrom ? "messageFrom " : "")
// +  + (has(self.spec.undo) != has(oldSelf.spec.undo)
// +  || has(self.spec.undo) && self.spec.undo != oldSelf.spec.undo ? "undo " : "")
// +  + (has(self.spec.attachments) != has(oldSelf.spec.attachments)
// +  || has(self.spec.attachments) && self.spec.attachments != oldSelf.spec.attachments ? "attachments " : "")
// +  + (has(self.spec.parameters) != has(oldSelf.spec.parameters)
// +  || has(self.spec.parameters) && self.spec.parameters != oldSelf.spec.parameters ? "parameters " : "")
// +  + (has(self.spec.sessionRef) != has(oldSelf.spec.sessionRef)
// +  || has(self.spec.sessionRef) && self.spec.sessionRef != oldSelf.spec.sessionRef ? "sessionRef " : "")
// +  + (has(self.spec.history) != has(oldSelf.spec.history)
// +  || has(self.spec.history) && self.spec.history != oldSelf.spec.history ? "history " : "")
// +  + (has(self.spec.context) != has(oldSelf.spec.context)
// +  || has(self.spec.context) && self.spec.context != oldSelf.spec.context ? "context " : "")
// +  + (has(self.spec.shaping) != has(oldSelf.spec.shaping)
// +  || has(self.spec.shaping) && self.spec.shaping != oldSelf.spec.shaping ? "shaping " : "")
// +  + (has(self.spec.guardrails) != has(oldSelf.spec.guardrails)
// +  || has(self.spec.guardrails) && self.spec.guardrails != oldSelf.spec.guardrails ? "guardrails " : "")
// +  + (has(self.spec.promptMode) != has(oldSelf.spec.promptMode)
// +  || has(self.spec.promptMode) && self.spec.promptMode != oldSelf.spec.promptMode ? "promptMode " : "")
// +  + (has(self.spec.depth) != has(oldSelf.spec.depth)
// +  || has(self.spec.depth) && self.spec.depth != oldSelf.spec.depth ? "depth " : "")
// +  + (has(self.spec.model) != has(oldSelf.spec.model)
// +  || has(self.spec.model) && self.spec.model != oldSelf.spec.model ? "model " : "")
// +  + (has(self.spec.webMode) != has(oldSelf.spec.webMode)
// +  || has(self.spec.webMode) && self.spec.webMode != oldSelf.spec.webMode ? "webMode " : "")
// +  + (has(self.spec.topK) != has(oldSelf.spec.topK)
// +  || has(self.spec.topK) && self.spec.topK != oldSelf.spec.topK ? "topK " : "")
// +  + (has(self.spec.output) != has(oldSelf.spec.output)
// +  || has(self.spec.output) && self.spec.output != oldSelf.spec.output ? "output " : "")
// +  + (has(self.spec.citations) != has(oldSelf.spec.citations)
// +  || has(self.spec.citations) && self.spec.citations != oldSelf.spec.citations ? "citations " : "")
// +  + (has(self.spec.limits) != has(oldSelf.spec.limits)
// +  || has(self.spec.limits) && self.spec.limits != oldSelf.spec.limits ? "limits " : "")
// +  + (has(self.spec.execution) != has(oldSelf.spec.execution)
// +  || has(self.spec.execution) && self.spec.execution != oldSelf.spec.execution ? "execution " : "")
// +  + (has(self.spec.onJournalLoss) != has(oldSelf.spec.onJournalLoss)
// +  || has(self.spec.onJournalLoss) && self.spec.onJournalLoss != oldSelf.spec.onJournalLoss ? "onJournalLoss " : ""))
// +  .trim().replace(" ", ", ")
// +  + " must not change: create a new Turn instead"`,fieldPath=".spec"
type Turn struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the request.
	// +required
	Spec TurnSpec `json:"spec"`

	// status is the result of the Turn and the record of its run.
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
