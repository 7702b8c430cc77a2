package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// StopReason is why the run of a Turn stopped.
// +kubebuilder:validation:Enum=Completed;Prepared;MaxOutputTokens;ContentFilter;ContextLength;ModelError;PreparationError;Deadline;Cancelled
type StopReason string

// The reasons a run stops for.
const (
	// StopCompleted means that the model finished its answer.
	StopCompleted StopReason = "Completed"
	// StopPrepared means that the Turn was to be prepared only.
	StopPrepared StopReason = "Prepared"
	// StopMaxOutputTokens means that the answer was cut off at a limit of its length.
	StopMaxOutputTokens StopReason = "MaxOutputTokens"
	// StopContentFilter means that the provider's content filter withheld the answer.
	StopContentFilter StopReason = "ContentFilter"
	// StopContextLength means that the prompt was longer than the model's context window.
	StopContextLength StopReason = "ContextLength"
	// StopModelError means no model of the chain gave a usable answer.
	StopModelError StopReason = "ModelError"
	// StopPreparationError means that the prompt could not be made.
	StopPreparationError StopReason = "PreparationError"
	// StopDeadline means that the time of the Turn was over.
	StopDeadline StopReason = "Deadline"
	// StopCancelled means that somebody cancelled the Turn.
	StopCancelled StopReason = "Cancelled"
)

// TurnSpec is one request to an agent. All of it is immutable but desiredState and ttlSecondsAfterFinished.
// +kubebuilder:validation:XValidation:rule="has(self.parameters) == has(oldSelf.parameters)",message="parameters must not change: create a new Turn instead",fieldPath=".parameters"
// +kubebuilder:validation:XValidation:rule="has(self.history) == has(oldSelf.history)",message="history must not change: create a new Turn instead",fieldPath=".history"
// +kubebuilder:validation:XValidation:rule="has(self.context) == has(oldSelf.context)",message="context must not change: create a new Turn instead",fieldPath=".context"
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

	// parameters are values of the variables that the agent's PromptProfile declares, at most 32.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="parameters must not change: create a new Turn instead"
	Parameters []Parameter `json:"parameters,omitempty"`

	// history is what was said before, oldest first, at most 64 messages.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="history must not change: create a new Turn instead"
	History []HistoryMessage `json:"history,omitempty"`

	// context is what the caller knows that bears on this request.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="context must not change: create a new Turn instead"
	Context *TurnContext `json:"context,omitempty"`

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

	// ttlSecondsAfterFinished is how long the Turn is kept after it finished, in seconds, from 0 (deleted at once) to
	// 31536000. Without it the Turn is kept until somebody deletes it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// Parameter is the value of a variable.
type Parameter struct {
	// name of the variable, as the PromptProfile declares it, at most 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_]*$`
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

// TurnContext is what the caller knows. All of it reaches the model as data that cannot instruct it.
// +kubebuilder:validation:MinProperties=1
type TurnContext struct {
	// facts that bear on the request, in the order they are shown to the model, at most 64.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=64
	Facts []Fact `json:"facts,omitempty"`
}

// Fact is a piece of text with a source.
type Fact struct {
	// id of the fact, unique in this Turn, at most 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="id must not hold the character U+0000"
	ID string `json:"id"`

	// text of the fact, 1 to 4096 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="text must not hold the character U+0000"
	Text string `json:"text"`

	// source the fact was taken from, such as notes/project.md, at most 512 characters. The result cites it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="source must not hold the character U+0000"
	Source string `json:"source,omitempty"`
}

// TurnStatus is the result of a Turn and its record.
type TurnStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the Turn. Succeeded is the main one: Unknown until the end, then True or False for ever.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// executor is the process this Turn is bound to, and the epoch of that binding.
	// +optional
	Executor *ExecutorBinding `json:"executor,omitempty"`

	// startTime is when the Turn was bound to an executor for the first time since it became Active. The deadline counts
	// from it.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`

	// completionTime is when the Turn ended.
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`

	// durationMilliseconds is the time from startTime to completionTime, in milliseconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DurationMilliseconds *int64 `json:"durationMilliseconds,omitempty"`

	// stopReason is why the run stopped.
	// +optional
	StopReason StopReason `json:"stopReason,omitempty"`

	// preparation says how the prompt came about.
	// +optional
	Preparation *Preparation `json:"preparation,omitempty"`

	// steps counts what the run did.
	// +optional
	Steps *StepCounts `json:"steps,omitempty"`

	// result is the answer.
	// +optional
	Result *TurnResult `json:"result,omitempty"`

	// usage is what the answer took and cost, over all attempts that the provider reported.
	// +optional
	Usage *Usage `json:"usage,omitempty"`

	// decision is the record of how the answer was reached.
	// +optional
	Decision *Decision `json:"decision,omitempty"`
}

// ExecutorBinding binds a Turn to an executor.
type ExecutorBinding struct {
	// name of the executor, which is the name of its pod. It is empty while the Turn is bound to none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// epoch grows by one with each binding. Writes of an older epoch are refused.
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
}

// Preparation says how the prompt of a Turn came about.
type Preparation struct {
	// promptProfile is the profile the prompt was made from.
	// +required
	PromptProfile PromptProfileRevision `json:"promptProfile"`

	// provider is the name of the ModelProvider the prompt was made for: the one that served, if any did.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Provider string `json:"provider"`

	// model the prompt was made for.
	// +required
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model"`

	// promptRenderHash is the SHA-256, in hexadecimal, of the stable part of the system prompt: the same for all Turns
	// that got the same instructions.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash"`

	// promptHash is the SHA-256, in hexadecimal, of the whole system prompt.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptHash string `json:"promptHash"`

	// contextHash is the first 16 hexadecimal digits of the SHA-256 of the context the Turn was given.
	// +required
	// +kubebuilder:validation:MaxLength=16
	ContextHash string `json:"contextHash"`

	// sections of the system prompt, in their order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Sections []string `json:"sections,omitempty"`

	// stableChars is the length of the system prompt's stable part, in Unicode code points.
	// +required
	// +kubebuilder:validation:Minimum=0
	StableChars int64 `json:"stableChars"`

	// dynamicChars is the length of the system prompt's dynamic part, in Unicode code points.
	// +required
	// +kubebuilder:validation:Minimum=0
	DynamicChars int64 `json:"dynamicChars"`

	// messageCount is the number of messages the model got.
	// +required
	// +kubebuilder:validation:Minimum=0
	MessageCount int32 `json:"messageCount"`
}

// PromptProfileRevision names one version of a profile.
type PromptProfileRevision struct {
	// name of the PromptProfile object.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// id of the logical prompt.
	// +required
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`

	// version of the prompt.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`

	// generation of the PromptProfile object; 0 where the Turn ran without a cluster.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Generation int64 `json:"generation,omitempty"`
}

// StepCounts counts what a run did.
type StepCounts struct {
	// count is the number of steps: model replies the run went on from.
	// +required
	// +kubebuilder:validation:Minimum=0
	Count int32 `json:"count"`

	// modelRequests is the number of requests sent to models, retries included.
	// +required
	// +kubebuilder:validation:Minimum=0
	ModelRequests int32 `json:"modelRequests"`

	// modelRetries is the number of requests that repeated a failed one.
	// +required
	// +kubebuilder:validation:Minimum=0
	ModelRetries int32 `json:"modelRetries"`

	// resumes is how often the Turn was taken up again after its executor went away or it was suspended.
	// +required
	// +kubebuilder:validation:Minimum=0
	Resumes int32 `json:"resumes"`
}

// TurnResult is the answer of a Turn.
type TurnResult struct {
	// text of the answer, at most 32768 bytes as JSON has it; of a longer one, its beginning.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Text string `json:"text,omitempty"`

	// truncated is true when text holds only the beginning of the answer.
	// +optional
	Truncated bool `json:"truncated,omitempty"`

	// bytes is the length of the whole answer, in bytes of UTF-8.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes,omitempty"`

	// preview is the beginning of the answer on one line, at most 80 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=80
	Preview string `json:"preview,omitempty"`

	// citations are the sources of the answer.
	// +optional
	Citations *Citations `json:"citations,omitempty"`
}

// Citations are the sources of an answer.
type Citations struct {
	// local are the sources of the facts that the Turn was given, at most 8, without repeats, in their order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=512
	Local []string `json:"local,omitempty"`
}

// Usage counts tokens, as the provider reports them.
type Usage struct {
	// inputTokens of all requests, cached ones included.
	// +required
	// +kubebuilder:validation:Minimum=0
	InputTokens int64 `json:"inputTokens"`

	// outputTokens of all replies, reasoning included.
	// +required
	// +kubebuilder:validation:Minimum=0
	OutputTokens int64 `json:"outputTokens"`

	// totalTokens is the sum of input and output.
	// +required
	// +kubebuilder:validation:Minimum=0
	TotalTokens int64 `json:"totalTokens"`

	// reasoningTokens is how many of the output tokens the model spent on reasoning.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReasoningTokens int64 `json:"reasoningTokens,omitempty"`

	// cacheReadTokens is how many of the input tokens were read from the provider's cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheReadTokens int64 `json:"cacheReadTokens,omitempty"`

	// cost of these tokens at the provider's prices. It is absent where a model that was used has no price.
	// +optional
	Cost *Cost `json:"cost,omitempty"`
}

// Cost is an amount of money.
type Cost struct {
	// amount as a decimal, such as 0.0123.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Amount string `json:"amount"`

	// currency as an ISO 4217 code.
	// +required
	// +kubebuilder:validation:MaxLength=3
	Currency string `json:"currency"`
}

// Strategy is the way an answer was reached.
// +kubebuilder:validation:Enum=DirectAnswer
type Strategy string

// StrategyDirectAnswer means that the model answered from its prompt, without tools.
const StrategyDirectAnswer Strategy = "DirectAnswer"

// Decision is the record of how an answer was reached.
type Decision struct {
	// key of the kind of decision, from the Agent's decisionKey.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Key string `json:"key"`

	// strategy is the way the answer was reached. DirectAnswer: from the prompt, without tools.
	// +required
	Strategy Strategy `json:"strategy"`

	// promptRenderHash of the prompt, as in preparation.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash"`

	// contextHash of the context, as in preparation.
	// +required
	// +kubebuilder:validation:MaxLength=16
	ContextHash string `json:"contextHash"`
}

// Turn is one request to an agent: bounded, recorded, and run to its end once.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=tn,categories=capstan
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
	Status TurnStatus `json:"status,omitzero"`
}

// TurnList is a list of Turns.
// +kubebuilder:object:root=true
type TurnList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Turn `json:"items"`
}
