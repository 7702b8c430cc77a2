package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StopReason is the exact cause for which the run of a Turn stopped.
// +kubebuilder:validation:Enum=Completed;ToolEnded;Prepared;MaxSteps;Budget;MaxOutputTokens;OutputInvalid;ContentFilter;ContextLength;ModelError;PreparationError;InvalidSpec;Deadline;SessionClosed;QueueFull;Interrupted;Cancelled
type StopReason string

// The causes for which a run stops.
const (
	// StopCompleted means that the model finished its answer.
	StopCompleted StopReason = "Completed"
	// StopToolEnded means that a tool that ends Turns has succeeded; the tool's result is the answer.
	StopToolEnded StopReason = "ToolEnded"
	// StopPrepared means that the prompt of a PrepareOnly Turn was made.
	StopPrepared StopReason = "Prepared"
	// StopMaxSteps means that the Turn used all its steps; its result is the best answer from the facts known until
	// then.
	StopMaxSteps StopReason = "MaxSteps"
	// StopBudget means that the next request would have exceeded the tokens or the cost that the Turn or its
	// Session may use.
	StopBudget StopReason = "Budget"
	// StopMaxOutputTokens means that the answer was cut off at a limit of its length.
	StopMaxOutputTokens StopReason = "MaxOutputTokens"
	// StopOutputInvalid means that the answer still did not fit the Turn's schema after two corrections.
	StopOutputInvalid StopReason = "OutputInvalid"
	// StopContentFilter means that the provider's content filter withheld the answer, or that the model refused to
	// answer.
	StopContentFilter StopReason = "ContentFilter"
	// StopContextLength means that the prompt was longer than the model's context window.
	StopContextLength StopReason = "ContextLength"
	// StopModelError means that no model of the chain gave a usable answer.
	StopModelError StopReason = "ModelError"
	// StopPreparationError means that the prompt could not be made.
	StopPreparationError StopReason = "PreparationError"
	// StopInvalidSpec means that the spec passed the schema but cannot be used.
	StopInvalidSpec StopReason = "InvalidSpec"
	// StopDeadline means that the Turn exceeded its time limit, or its time limit for the start.
	StopDeadline StopReason = "Deadline"
	// StopSessionClosed means that the budget of the Turn's Session was used up before the Turn began.
	StopSessionClosed StopReason = "SessionClosed"
	// StopQueueFull means that too many Turns of the namespace waited for a slot.
	StopQueueFull StopReason = "QueueFull"
	// StopInterrupted means that the run cannot continue, because of a fault within Capstan or because its journal
	// is damaged or lost.
	StopInterrupted StopReason = "Interrupted"
	// StopCancelled means that desiredState became Cancelled.
	StopCancelled StopReason = "Cancelled"
)

// TurnStatus is the result of a Turn and the record of its run.
type TurnStatus struct {
	// observedGeneration is the generation of the spec that this status describes; -1 until the controller has
	// looked at the Turn.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the Turn. The main one is Succeeded: it is Unknown until the Turn ends, and True or False from
	// then on.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// executor is the process to which this Turn is bound, the epoch of that binding, and the record of the Turn's
	// journal.
	// +optional
	Executor *ExecutorBinding `json:"executor,omitempty"`

	// startTime is the time at which the Turn was first bound to an executor since it became Active.
	// limits.timeoutSeconds counts from it.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`

	// completionTime is the time at which the Turn ended.
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`

	// durationMilliseconds is the time from startTime to completionTime, in milliseconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DurationMilliseconds *int64 `json:"durationMilliseconds,omitempty"`

	// parkedTime is the time since which the Turn has been waiting for an approval. It is absent while the Turn
	// waits for none. The Turn's deadline does not run during the wait.
	// +optional
	ParkedTime *metav1.MicroTime `json:"parkedTime,omitempty"`

	// parkedMilliseconds is the total time of earlier waits for approvals, in milliseconds. The Turn's deadline is
	// later by this time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ParkedMilliseconds int64 `json:"parkedMilliseconds,omitempty"`

	// pendingApprovals are the calls that require approval, at most 25. Create a ToolApproval for each, or use
	// capstan approve. A decision counts only for a call in this list; further calls are added as soon as there is
	// room. When the Turn continues after a decision, the decided call may stay in the list for a moment.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=25
	PendingApprovals []PendingApproval `json:"pendingApprovals,omitempty"`

	// awaitedTurns are the names of the sub-agents' Turns for which this Turn waits, or waited last. The list is
	// empty after the end of the Turn.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=25
	// +kubebuilder:validation:items:MaxLength=253
	AwaitedTurns []string `json:"awaitedTurns,omitempty"`

	// stopReason is the exact cause for which the run stopped. Completed: the model answered. ToolEnded: a tool
	// that ends Turns succeeded. Prepared: the prompt of a PrepareOnly Turn was made. MaxSteps: the steps are used
	// up, and the result is the best answer until then. Budget: the tokens or the cost are used up.
	// MaxOutputTokens: the answer was cut off. OutputInvalid: the answer does not fit the schema. ContentFilter:
	// the content filter or the model refused the answer. ContextLength: the prompt is too long for the model.
	// ModelError: no model gave a usable answer. PreparationError: the prompt could not be made. InvalidSpec: the
	// spec cannot be used. Deadline: a time limit was exceeded. SessionClosed: the budget of the Session is used
	// up. QueueFull: too many Turns of the namespace wait. Interrupted: a fault of Capstan, or a damaged or lost
	// journal. Cancelled: desiredState became Cancelled.
	// +optional
	StopReason StopReason `json:"stopReason,omitempty"`

	// sessionOrder is the position of the Turn among the Turns of its Session that were created within the same
	// second: lower numbers run first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SessionOrder int64 `json:"sessionOrder,omitempty"`

	// preparation is the report on how the prompt was made.
	// +optional
	Preparation *Preparation `json:"preparation,omitempty"`

	// steps counts the actions of all runs of the Turn.
	// +optional
	Steps *StepCounts `json:"steps,omitempty"`

	// toolCalls are the newest calls for which the model has asked, oldest first: 50, or as many as fit into 16
	// KiB. The journal has all calls.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	ToolCalls []ToolCallRecord `json:"toolCalls,omitempty"`

	// result is the answer of the Turn.
	// +optional
	Result *TurnResult `json:"result,omitempty"`

	// usage is the total token usage and cost of the Turn, across all attempts. It has the provider's figures, or
	// estimates where the provider reports none. During a run it has the figures of the last status write. It is
	// absent if nothing was used.
	// +optional
	Usage *Usage `json:"usage,omitempty"`

	// subAgentUsage is the total token usage and cost of the Turns of sub-agents, their own sub-agents included. It
	// counts against this Turn's budget, and is not part of usage.
	// +optional
	SubAgentUsage *Usage `json:"subAgentUsage,omitempty"`

	// descendants is the number of Turns that count against limits.maxDescendants: all Turns of sub-agents, at any
	// depth. If it is unknown how many Turns a sub-agent created, because it was deleted or its journal is lost,
	// the number that it was allowed to create counts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Descendants int32 `json:"descendants,omitempty"`

	// decision is the record of how the answer was reached. It does not concern approvals.
	// +optional
	Decision *Decision `json:"decision,omitempty"`
}

// ExecutorBinding is the binding of a Turn to an executor.
type ExecutorBinding struct {
	// name is the name of the executor, which is the name of its Pod. It is empty while the Turn is not bound.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// epoch is the number of the binding; it grows by one with each. Writes with an older epoch are refused.
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`

	// storeID is the ID of the store with the Turn's journal, at most 64 characters: the store of the first run
	// that may have begun something. A later run that finds another store knows from it that the journal is lost.
	// It is absent if the Turn was bound by a version of Capstan that did not record it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StoreID string `json:"storeID,omitempty"`

	// storeIncarnation is the incarnation of that store at the time of the binding, at most 64 characters. A store
	// gets a new incarnation when it may have lost confirmed entries: an older copy of it was restored, or
	// PostgreSQL failed over to a standby for which commits had not waited.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StoreIncarnation string `json:"storeIncarnation,omitempty"`

	// journalEntries is the number of entries that the Turn's journal has at least, as of the last status write
	// that recorded it. It is absent if that is unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	JournalEntries *int64 `json:"journalEntries,omitempty"`

	// journalComplete is true if the journal had exactly journalEntries when the last run handed the Turn back, or
	// when the current run was bound. With 0 journalEntries it means that no run has begun anything. It is absent
	// if a run may have written more entries.
	// +optional
	JournalComplete bool `json:"journalComplete,omitempty"`

	// sideEffects is true if a tool that is not ReadOnly may have been called: the Agent had such a tool when the
	// Turn was bound, or a run was about to call one. A Turn without side effects starts over if its journal is
	// lost.
	// +optional
	SideEffects bool `json:"sideEffects,omitempty"`

	// overdue is true if the Turn is bound only to end it from its journal: it had run, was suspended, and then
	// waited for longer than limits.startingDeadlineSeconds.
	// +optional
	Overdue bool `json:"overdue,omitempty"`
}

// Preparation is the report on how the prompt of a Turn was made.
type Preparation struct {
	// promptProfile is the version of the PromptProfile from which the prompt was made.
	// +required
	PromptProfile PromptProfileRevision `json:"promptProfile"`

	// provider is the name of the ModelProvider for which the prompt was made: the one that answered, if one did.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Provider string `json:"provider"`

	// model is the model for which the prompt was made.
	// +required
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model"`

	// promptRenderHash is the SHA-256 of the stable part of the system prompt, in hexadecimal. All Turns with the
	// same instructions have the same value.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash"`

	// promptHash is the SHA-256 of the whole system prompt, in hexadecimal.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptHash string `json:"promptHash"`

	// contextHash is the first 16 hexadecimal digits of the SHA-256 of the context that the Turn received, without
	// memories.
	// +required
	// +kubebuilder:validation:MaxLength=16
	ContextHash string `json:"contextHash"`

	// mode is the mode of the system prompt: Full, Minimal, Task or None; see spec.promptMode.
	// +optional
	Mode PromptMode `json:"mode,omitempty"`

	// sections are the names of the sections of the system prompt, in their order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Sections []string `json:"sections,omitempty"`

	// stableChars is the length of the stable part of the system prompt, in Unicode code points.
	// +required
	// +kubebuilder:validation:Minimum=0
	StableChars int64 `json:"stableChars"`

	// dynamicChars is the length of the dynamic part of the system prompt, in Unicode code points.
	// +required
	// +kubebuilder:validation:Minimum=0
	DynamicChars int64 `json:"dynamicChars"`

	// toolCount is the number of tools that were offered to the model.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolCount int32 `json:"toolCount"`

	// toolsLeftOut is the number of tools that were not offered to the model, because the Agent has more tools than
	// toolPolicy.maxToolsPerTurn.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolsLeftOut int32 `json:"toolsLeftOut,omitempty"`

	// toolServersMissing are the Agent's ToolServers whose tools were unknown when the Turn began, because no
	// manager had ever reached them. None of their tools were offered to the model, and their context packs were
	// not called. At most 16; the journal has all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	ToolServersMissing []string `json:"toolServersMissing,omitempty"`

	// messageCount is the number of messages that the model received.
	// +required
	// +kubebuilder:validation:Minimum=0
	MessageCount int32 `json:"messageCount"`

	// expression is the way in which the assistant was asked to speak: the result of traits, shaping, conversation
	// and guardrails.
	// +optional
	Expression *Expression `json:"expression,omitempty"`

	// provenance lists the IDs of the texts from which the prompt was made, at most 20 KiB of JSON. The journal has
	// all.
	// +optional
	Provenance *Provenance `json:"provenance,omitempty"`
}

// Provenance lists the IDs of the texts from which a prompt was made.
type Provenance struct {
	// usedMemoryIDs are the IDs of the memories in the prompt, in their order there, at most 10.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=64
	UsedMemoryIDs []string `json:"usedMemoryIDs,omitempty"`

	// droppedMemoryIDs are the IDs of the memories for which there was no room in the prompt, most relevant first,
	// at most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	DroppedMemoryIDs []string `json:"droppedMemoryIDs,omitempty"`

	// usedEnrichmentIDs are the IDs of the enrichments in the prompt, in their order there, at most 8.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	UsedEnrichmentIDs []string `json:"usedEnrichmentIDs,omitempty"`

	// droppedEnrichmentIDs are the IDs of the enrichments for which there was no room in the prompt, most important
	// first, and then those with the audience Product; at most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	DroppedEnrichmentIDs []string `json:"droppedEnrichmentIDs,omitempty"`

	// usedGuardrailIDs are the IDs of the guardrails in the prompt, at most 64: those of the PromptProfile and then
	// those of the Turn, each in the order in which they were given.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	UsedGuardrailIDs []string `json:"usedGuardrailIDs,omitempty"`

	// usedOverlayIDs are the IDs of the overlays in the prompt, at most 96: those of the PromptProfile and then
	// those of the Turn, each in the order in which they were given.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=96
	// +kubebuilder:validation:items:MaxLength=64
	UsedOverlayIDs []string `json:"usedOverlayIDs,omitempty"`

	// truncated is true if the lists together exceeded 20 KiB of JSON, or one exceeded its bound, and were cut. The
	// journal has the complete lists.
	// +optional
	Truncated bool `json:"truncated,omitempty"`
}

// PromptProfileRevision is one version of a PromptProfile.
type PromptProfileRevision struct {
	// name is the name of the PromptProfile object.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// id is the ID of the logical prompt, as in the profile's spec.id.
	// +required
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`

	// version is the version of the prompt, as in the profile's spec.version.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`

	// generation is the generation of the PromptProfile object; 0 if the Turn ran without a cluster.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Generation int64 `json:"generation,omitempty"`
}

// StepCounts counts the actions of a Turn's runs.
type StepCounts struct {
	// count is the number of steps. A step is one reply of a model with the tool calls that it asks for.
	// +required
	// +kubebuilder:validation:Minimum=0
	Count int32 `json:"count"`

	// modelRequests is the number of requests that were sent to models. It includes retries and requests that a
	// restart interrupted.
	// +required
	// +kubebuilder:validation:Minimum=0
	ModelRequests int32 `json:"modelRequests"`

	// modelRetries is the number of requests that repeated a failed or interrupted one.
	// +required
	// +kubebuilder:validation:Minimum=0
	ModelRetries int32 `json:"modelRetries"`

	// toolCalls is the number of tool calls that were made, or that were about to be made when a run was
	// interrupted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolCalls int32 `json:"toolCalls,omitempty"`

	// toolRepairs is the number of calls whose arguments were repaired.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolRepairs int32 `json:"toolRepairs,omitempty"`

	// toolRetries is the number of calls that were repeated after a time-out.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolRetries int32 `json:"toolRetries,omitempty"`

	// compactions is how often older messages were replaced by a summary.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Compactions int32 `json:"compactions,omitempty"`

	// reflections is how often the model checked its draft.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Reflections int32 `json:"reflections,omitempty"`

	// unknownOutcomes is the number of calls with an unknown outcome of tools that must not be called twice: the
	// run was interrupted between intent and result, or the tool gave no result in time. The model was informed of
	// each. If the journal was lost, this is the lowest number that is possible.
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnknownOutcomes int32 `json:"unknownOutcomes,omitempty"`

	// resumes is how often a run continued from the journal of an earlier one, after its executor had disappeared
	// or the Turn had been suspended. Waits for an approval or a sub-agent do not count.
	// +required
	// +kubebuilder:validation:Minimum=0
	Resumes int32 `json:"resumes"`
}

// TurnResult is the answer of a Turn.
type TurnResult struct {
	// text is the answer, at most 32768 bytes as a JSON string. A longer answer is cut; the journal has all of it.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Text string `json:"text,omitempty"`

	// truncated is true if text holds only the beginning of the answer.
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

	// data is the structured answer, if the Turn requests one and it has at most 32768 bytes of JSON. text has it,
	// too.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Data *apiextensionsv1.JSON `json:"data,omitempty"`

	// artifacts are the artifacts with the content that this status cannot hold, at most 8. The read API of the
	// manager serves them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	Artifacts []Artifact `json:"artifacts,omitempty"`

	// citations are the sources of the answer.
	// +optional
	Citations *Citations `json:"citations,omitempty"`
}

// Artifact is content that is too large for a status.
type Artifact struct {
	// name is the name of the artifact, such as answer.txt.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// bytes is the length of the artifact, in bytes.
	// +required
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes"`

	// sha256 is the SHA-256 of the content, in hexadecimal.
	// +required
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
}

// Citations are the sources of an answer.
type Citations struct {
	// local are the sources of the facts that the Turn received, at most 8, without repetitions, in the order of
	// the facts.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=512
	Local []string `json:"local,omitempty"`
}

// Usage counts tokens and their cost. The counts are the provider's figures, or estimates where it reports none.
type Usage struct {
	// inputTokens is the number of tokens in all requests, including those read from a cache.
	// +required
	// +kubebuilder:validation:Minimum=0
	InputTokens int64 `json:"inputTokens"`

	// outputTokens is the number of tokens in all replies, including reasoning.
	// +required
	// +kubebuilder:validation:Minimum=0
	OutputTokens int64 `json:"outputTokens"`

	// totalTokens is the sum of inputTokens and outputTokens.
	// +required
	// +kubebuilder:validation:Minimum=0
	TotalTokens int64 `json:"totalTokens"`

	// reasoningTokens is the part of outputTokens that the model used for reasoning.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReasoningTokens int64 `json:"reasoningTokens,omitempty"`

	// cacheReadTokens is the part of inputTokens that was read from the provider's cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheReadTokens int64 `json:"cacheReadTokens,omitempty"`

	// estimated is true if some of the tokens, and so of the cost, are an estimate, because an endpoint did not
	// report them.
	// +optional
	Estimated bool `json:"estimated,omitempty"`

	// cost is the cost of these tokens at the provider's prices. It is absent if a model that was used has no
	// price.
	// +optional
	Cost *Cost `json:"cost,omitempty"`
}

// Cost is an amount of money.
type Cost struct {
	// amount is the amount as a decimal, such as 0.0123.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Amount string `json:"amount"`

	// currency is the currency as an ISO 4217 code, such as USD.
	// +required
	// +kubebuilder:validation:MaxLength=3
	Currency string `json:"currency"`
}

// Strategy is the way to an answer, by the tools that were called.
// +kubebuilder:validation:Enum=DirectAnswer;WebAugmented;RetrievalAugmented;ToolAssisted
type Strategy string

// The strategies.
const (
	// StrategyDirectAnswer means that the model answered from its prompt, without tools.
	StrategyDirectAnswer Strategy = "DirectAnswer"
	// StrategyWebAugmented means that a tool with the role WebSearch was called.
	StrategyWebAugmented Strategy = "WebAugmented"
	// StrategyRetrievalAugmented means that a tool with the role LocalSearch or ContextPack was called, and none
	// with the role WebSearch.
	StrategyRetrievalAugmented Strategy = "RetrievalAugmented"
	// StrategyToolAssisted means that only tools with other roles were called.
	StrategyToolAssisted Strategy = "ToolAssisted"
)

// Decision is the record of how an answer was reached.
type Decision struct {
	// key is the kind of the decision, from the Agent's decisionKey.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Key string `json:"key"`

	// strategy is the way to the answer, by the tools that were called. DirectAnswer: no tool. WebAugmented: a tool
	// with the role WebSearch. RetrievalAugmented: none with that role, but one with the role LocalSearch or
	// ContextPack. ToolAssisted: only tools with other roles.
	// +required
	Strategy Strategy `json:"strategy"`

	// toolsUsed are the names of the tools that were called, sorted, at most 64.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	ToolsUsed []string `json:"toolsUsed,omitempty"`

	// promptRenderHash is the hash of the stable part of the prompt, as in preparation.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash"`

	// contextHash is the hash of the context, as in preparation.
	// +required
	// +kubebuilder:validation:MaxLength=16
	ContextHash string `json:"contextHash"`

	// sessionName is the name of the Turn's Session.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SessionName string `json:"sessionName,omitempty"`

	// turnNumber is the number of the Turn within its Session, from 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TurnNumber int64 `json:"turnNumber,omitempty"`
}
