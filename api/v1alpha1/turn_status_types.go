package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StopReason is why the run of a Turn stopped.
// +kubebuilder:validation:Enum=Completed;ToolEnded;Prepared;MaxSteps;Budget;MaxOutputTokens;OutputInvalid;ContentFilter;ContextLength;ModelError;PreparationError;InvalidSpec;Deadline;SessionClosed;QueueFull;Interrupted;Cancelled
type StopReason string

// The reasons a run stops for.
const (
	// StopCompleted means that the model finished its answer.
	StopCompleted StopReason = "Completed"
	// StopToolEnded means that a tool that ends Turns has succeeded; its result is the answer.
	StopToolEnded StopReason = "ToolEnded"
	// StopPrepared means that the Turn was to be prepared only.
	StopPrepared StopReason = "Prepared"
	// StopMaxSteps means that the Turn was out of steps; its result is the best answer from what was known.
	StopMaxSteps StopReason = "MaxSteps"
	// StopBudget means that the next request would have gone beyond the tokens or the cost that the Turn or its Session may take.
	StopBudget StopReason = "Budget"
	// StopMaxOutputTokens means that the answer was cut off at a limit of its length.
	StopMaxOutputTokens StopReason = "MaxOutputTokens"
	// StopOutputInvalid means that the answer did not fit the Turn's schema, also after it was sent back twice.
	StopOutputInvalid StopReason = "OutputInvalid"
	// StopContentFilter means that the provider's content filter withheld the answer.
	StopContentFilter StopReason = "ContentFilter"
	// StopContextLength means that the prompt was longer than the model's context window.
	StopContextLength StopReason = "ContextLength"
	// StopModelError means no model of the chain gave a usable answer.
	StopModelError StopReason = "ModelError"
	// StopPreparationError means that the prompt could not be made.
	StopPreparationError StopReason = "PreparationError"
	// StopInvalidSpec means that the spec passed the schema and still cannot be worked on.
	StopInvalidSpec StopReason = "InvalidSpec"
	// StopDeadline means that the time of the Turn was over.
	StopDeadline StopReason = "Deadline"
	// StopSessionClosed means that the budget of the Turn's Session was used up.
	StopSessionClosed StopReason = "SessionClosed"
	// StopQueueFull means that too many Turns of the namespace waited for a slot.
	StopQueueFull StopReason = "QueueFull"
	// StopInterrupted means that the run cannot go on, because of a fault within Capstan or because its journal is damaged or lost.
	StopInterrupted StopReason = "Interrupted"
	// StopCancelled means that somebody cancelled the Turn.
	StopCancelled StopReason = "Cancelled"
)

// TurnStatus is the result of a Turn and its record.
type TurnStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of; -1 before anybody has looked.
	// +optional
	// +kubebuilder:validation:Minimum=-1
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

	// parkedTime is when the Turn began to wait for somebody's decision; absent while it does not. Its deadline does not run.
	// +optional
	ParkedTime *metav1.MicroTime `json:"parkedTime,omitempty"`

	// parkedMilliseconds is how long it has waited for decisions before, in milliseconds. The deadline is later by it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ParkedMilliseconds int64 `json:"parkedMilliseconds,omitempty"`

	// pendingApprovals are the calls that require approval, at most 25: create a ToolApproval for each, or use capstan approve. A
	// decision counts only about a call that is listed here. Further calls are listed when there is room for them. While the Turn
	// runs on after a decision, calls that were decided about may still be listed for a moment.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=25
	PendingApprovals []PendingApproval `json:"pendingApprovals,omitempty"`

	// awaitedTurns are the names of the Turns of sub-agents that this one waits for, or waited for last, until it ends.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=25
	// +kubebuilder:validation:items:MaxLength=253
	AwaitedTurns []string `json:"awaitedTurns,omitempty"`

	// stopReason is why the run stopped: Completed, ToolEnded (a tool that ends Turns has succeeded), Prepared, MaxSteps (the
	// result is the best answer by then), Budget (of tokens or cost), MaxOutputTokens (the answer was cut off), OutputInvalid
	// (the answer does not fit the schema), ContentFilter, ContextLength (the prompt is too long for the
	// model), ModelError (no model gave a usable answer), PreparationError, InvalidSpec, Deadline, SessionClosed,
	// Interrupted (by a fault of Capstan, or because the journal is damaged or lost) or Cancelled.
	// +optional
	StopReason StopReason `json:"stopReason,omitempty"`

	// sessionOrder is the place of the Turn among those of its Session that were created within the same second: lower ones
	// run first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SessionOrder int64 `json:"sessionOrder,omitempty"`

	// preparation says how the prompt came about.
	// +optional
	Preparation *Preparation `json:"preparation,omitempty"`

	// steps counts what the run did.
	// +optional
	Steps *StepCounts `json:"steps,omitempty"`

	// toolCalls are the newest calls that the model has asked for, oldest first: 50, or as many as fit into 16 KiB. The journal
	// has them all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	ToolCalls []ToolCallRecord `json:"toolCalls,omitempty"`

	// result is the answer.
	// +optional
	Result *TurnResult `json:"result,omitempty"`

	// usage is what the answer took and cost, over all attempts: as the provider reported it, and by estimate where it did not.
	// While the Turn goes on, it is what was known when the status was last written. It is absent where there are none.
	// +optional
	Usage *Usage `json:"usage,omitempty"`

	// subAgentUsage is what the Turns of sub-agents took and cost, theirs included. It counts against this Turn's budget, and is
	// not part of usage.
	// +optional
	SubAgentUsage *Usage `json:"subAgentUsage,omitempty"`

	// descendants is the number of Turns that count against limits.maxDescendants: those of sub-agents, theirs included. Where
	// nobody knows how many Turns a sub-agent created, because it was deleted or its journal is lost, all that it could have
	// created count.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Descendants int32 `json:"descendants,omitempty"`

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

	// storeID is the ID of the store that holds the Turn's journal: the store of the first run that may have begun something,
	// at most 64 characters. A later run that finds another store knows by it that the journal is lost. It is absent where a
	// version of Capstan bound the Turn that did not record it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StoreID string `json:"storeID,omitempty"`

	// storeIncarnation is the incarnation that this store had, at most 64 characters. It changes when the store may have lost
	// entries that it had confirmed: an older copy of it was restored, or PostgreSQL failed over to a standby that commits had not
	// waited for.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StoreIncarnation string `json:"storeIncarnation,omitempty"`

	// journalEntries is how many entries the Turn's journal has at least, as of the last write of this status that said so.
	// It is absent where this is not known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	JournalEntries *int64 `json:"journalEntries,omitempty"`

	// journalComplete is true when journalEntries are all that the journal had when the last run handed the Turn back, or when the
	// current one was bound. With a journalEntries of 0, nothing was begun before. It is absent where a run may have
	// written more.
	// +optional
	JournalComplete bool `json:"journalComplete,omitempty"`

	// sideEffects is true when a tool that is not ReadOnly may have been called: such a tool was among the Agent's when the Turn
	// was bound, or a run was about to call one. A Turn without side effects starts over where its journal is lost.
	// +optional
	SideEffects bool `json:"sideEffects,omitempty"`

	// overdue is true when the Turn is bound only to be ended from its journal: it had run, was suspended, and then waited for longer
	// than limits.startingDeadlineSeconds.
	// +optional
	Overdue bool `json:"overdue,omitempty"`
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

	// mode of the system prompt: Full, Minimal, Task or None.
	// +optional
	Mode PromptMode `json:"mode,omitempty"`

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

	// toolCount is the number of tools the model was offered.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolCount int32 `json:"toolCount"`

	// toolsLeftOut is the number of tools that the model was not offered, because there are more than
	// toolPolicy.maxToolsPerTurn.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolsLeftOut int32 `json:"toolsLeftOut,omitempty"`

	// toolServersMissing are the ToolServers of the agent of whose tools nothing was known when the Turn began, because nobody
	// had ever reached them: the model was offered none of their tools, and their context packs were not asked. At most 16; the journal
	// has all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	ToolServersMissing []string `json:"toolServersMissing,omitempty"`

	// messageCount is the number of messages the model got.
	// +required
	// +kubebuilder:validation:Minimum=0
	MessageCount int32 `json:"messageCount"`

	// expression is how the assistant was asked to speak: what became of traits, shaping, conversation and guardrails.
	// +optional
	Expression *Expression `json:"expression,omitempty"`

	// provenance lists what the prompt was made of, by id; at most 8 KiB of ids. The journal has them all.
	// +optional
	Provenance *Provenance `json:"provenance,omitempty"`
}

// Provenance lists what a prompt was made of, by id.
type Provenance struct {
	// usedMemoryIDs are the memories in the prompt, in their order there, at most 10.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=64
	UsedMemoryIDs []string `json:"usedMemoryIDs,omitempty"`

	// droppedMemoryIDs are the memories over the cap, most relevant first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	DroppedMemoryIDs []string `json:"droppedMemoryIDs,omitempty"`

	// usedEnrichmentIDs are the enrichments in the prompt, in their order there, at most 8.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	UsedEnrichmentIDs []string `json:"usedEnrichmentIDs,omitempty"`

	// droppedEnrichmentIDs are the enrichments over the cap, most important first, then those of audience Product.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	DroppedEnrichmentIDs []string `json:"droppedEnrichmentIDs,omitempty"`

	// usedGuardrailIDs are the guardrails in the prompt: the profile's, then the Turn's, each as they were given.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	UsedGuardrailIDs []string `json:"usedGuardrailIDs,omitempty"`

	// usedOverlayIDs are the overlays in the prompt: the profile's, then the Turn's, each as they were given.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=96
	// +kubebuilder:validation:items:MaxLength=64
	UsedOverlayIDs []string `json:"usedOverlayIDs,omitempty"`

	// truncated is true where the lists together were longer than 20 KiB of JSON and are cut; the journal has them whole.
	// +optional
	Truncated bool `json:"truncated,omitempty"`
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

	// modelRequests is the number of requests sent to models, retries included, and those that a restart cut off.
	// +required
	// +kubebuilder:validation:Minimum=0
	ModelRequests int32 `json:"modelRequests"`

	// modelRetries is the number of requests that repeated one that failed or was cut off.
	// +required
	// +kubebuilder:validation:Minimum=0
	ModelRetries int32 `json:"modelRetries"`

	// toolCalls is the number of calls of tools that were made, or were about to be made when a run was cut off.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolCalls int32 `json:"toolCalls,omitempty"`

	// toolRepairs is the number of calls whose arguments were repaired.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolRepairs int32 `json:"toolRepairs,omitempty"`

	// toolRetries is the number of calls that were made once more after a time-out.
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

	// unknownOutcomes is the number of calls of which nobody knows whether they were done, of tools that may not be called
	// twice: the run was cut off between intent and result, or the tool gave none in time. The model was told so. Where the
	// journal was lost it is the least number that there may be.
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnknownOutcomes int32 `json:"unknownOutcomes,omitempty"`

	// resumes is how often a run went on from what an earlier one had done, after its executor went away or the Turn was
	// suspended. Waiting for a decision or for a sub-agent does not count.
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

	// data is the structured answer, where the Turn asks for one and it is at most 32768 bytes of JSON; text has it, too.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Data *apiextensionsv1.JSON `json:"data,omitempty"`

	// artifacts are what the result holds beyond this status, at most 8. The manager's read API has them.
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
	// name of the artifact, such as answer.txt.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// bytes is its length, in bytes.
	// +required
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes"`

	// sha256 of its content, in hexadecimal.
	// +required
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
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

// Usage counts tokens, as the provider reports them, and by estimate where it does not.
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

	// estimated is true where a part of the tokens, and so of the cost, is estimated, because an endpoint did not report it.
	// +optional
	Estimated bool `json:"estimated,omitempty"`

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
// +kubebuilder:validation:Enum=DirectAnswer;WebAugmented;RetrievalAugmented;ToolAssisted
type Strategy string

// The ways to an answer.
const (
	// StrategyDirectAnswer means that the model answered from its prompt, without tools.
	StrategyDirectAnswer Strategy = "DirectAnswer"
	// StrategyWebAugmented means that a tool of the role WebSearch was called.
	StrategyWebAugmented Strategy = "WebAugmented"
	// StrategyRetrievalAugmented means that a tool of the role LocalSearch or ContextPack was called, and none that searches the web.
	StrategyRetrievalAugmented Strategy = "RetrievalAugmented"
	// StrategyToolAssisted means that other tools were called.
	StrategyToolAssisted Strategy = "ToolAssisted"
)

// Decision is the record of how an answer was reached.
type Decision struct {
	// key of the kind of decision, from the Agent's decisionKey.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Key string `json:"key"`

	// strategy is the way the answer was reached, by the tools that were called. DirectAnswer: none; WebAugmented: one of the
	// role WebSearch; RetrievalAugmented: else one of the role LocalSearch or ContextPack; ToolAssisted: others.
	// +required
	Strategy Strategy `json:"strategy"`

	// toolsUsed are the names of the tools that were called, sorted, at most 64.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	ToolsUsed []string `json:"toolsUsed,omitempty"`

	// promptRenderHash of the prompt, as in preparation.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash"`

	// contextHash of the context, as in preparation.
	// +required
	// +kubebuilder:validation:MaxLength=16
	ContextHash string `json:"contextHash"`

	// sessionName is the name of the Turn's Session.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SessionName string `json:"sessionName,omitempty"`

	// turnNumber is the place of the Turn in its Session, from 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TurnNumber int64 `json:"turnNumber,omitempty"`
}
