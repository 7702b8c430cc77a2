package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StopReason says why the run of a Turn stopped.
// +kubebuilder:validation:Enum=Completed;ToolEnded;Prepared;Undone;UndoIncomplete;MaxSteps;Budget;MaxOutputTokens;OutputInvalid;
// + OutputPolicy;ContentFilter;ContextLength;ModelError;PreparationError;InvalidSpec;Deadline;SessionClosed;QueueFull;Interrupted;
// + Cancelled
type StopReason string

// The reasons for which a run stops.
const (
	// StopCompleted means that the model finished its answer.
	StopCompleted StopReason = "Completed"
	// StopToolEnded means that a tool that ends Turns has succeeded; the tool's result is the answer.
	StopToolEnded StopReason = "ToolEnded"
	// StopPrepared means that the prompt of a PrepareOnly Turn was made.
	StopPrepared StopReason = "Prepared"
	// StopUndone means that a Turn with undo has undone all calls that it had to undo.
	StopUndone StopReason = "Undone"
	// StopUndoIncomplete means that a Turn with undo has not undone all calls that it had to undo. Its result lists the
	// remaining calls, each with the reason.
	StopUndoIncomplete StopReason = "UndoIncomplete"
	// StopMaxSteps means that the Turn used all its steps. Its result is the best answer so far.
	StopMaxSteps StopReason = "MaxSteps"
	// StopBudget means that the limits of the Turn, its Session or a Budget do not allow the next request or call, or
	// that the conversation needs more memory than one Turn may have.
	StopBudget StopReason = "Budget"
	// StopMaxOutputTokens means that the answer was cut off at a limit of its length.
	StopMaxOutputTokens StopReason = "MaxOutputTokens"
	// StopOutputInvalid means that the answer still did not fit the Turn's schema after two corrections.
	StopOutputInvalid StopReason = "OutputInvalid"
	// StopOutputPolicy means that the answer violates an output policy of the profile. It is withheld.
	StopOutputPolicy StopReason = "OutputPolicy"
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
	// StopDeadline means that the Turn exceeded its time limit, or did not start within its starting deadline.
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
	// observedGeneration is the generation of the spec that this status describes. It is -1 before the first
	// reconciliation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the conditions of the Turn. The main one is Succeeded: it is Unknown until the Turn ends, and True
	// or False from then on.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",
	// + message="each lastTransitionTime must be a time"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// executor is the binding of this Turn to an executor, with its epoch. It also describes the journal of the Turn.
	// +optional
	// +structType=atomic
	Executor *ExecutorBinding `json:"executor,omitempty"`

	// traceID is the ID of the distributed trace that the Turn belongs to: 32 hexadecimal digits. If the Turn has the
	// annotation capstan.dev/traceparent, it belongs to that trace; the Turn of a sub-agent belongs to the trace of its
	// parent; any other Turn has a new trace. traceID is set when the Turn is first bound to an executor, and all runs
	// of the Turn have the same trace.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9a-f]{32}$")`,
	// + message="traceID must be 32 hexadecimal digits in lower case"
	TraceID string `json:"traceID,omitempty"`

	// startTime is the time at which the Turn was first bound to an executor. If the Turn was suspended, or waited for
	// a Budget before it sent its first request, startTime is the time of the first binding after that.
	// limits.timeoutSeconds counts from startTime, except in the Turn of a sub-agent.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}(Z|[+-][01][0-9]:[0-5][0-9])$`
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`

	// completionTime is the time at which the Turn ended.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}(Z|[+-][01][0-9]:[0-5][0-9])$`
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`

	// durationMilliseconds is the time from startTime to completionTime, in milliseconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DurationMilliseconds *int64 `json:"durationMilliseconds,omitempty"`

	// parkedTime is the time at which the current wait for an approval or for the reset of a Budget began. It is absent
	// while the Turn waits for neither. The wait does not count against limits.timeoutSeconds.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}(Z|[+-][01][0-9]:[0-5][0-9])$`
	ParkedTime *metav1.MicroTime `json:"parkedTime,omitempty"`

	// parkedMilliseconds is the total time of earlier waits for approvals and for resets of Budgets, in milliseconds.
	// These waits do not count against limits.timeoutSeconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ParkedMilliseconds int64 `json:"parkedMilliseconds,omitempty"`

	// pendingApprovals are the calls that require approval, at most 25. Create a ToolApproval for each, or use capstan
	// approve. A decision counts only for a call in this list. Further calls are added when others leave the list.
	// After a decision, the call may stay in the list for a moment while the Turn continues.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=25
	PendingApprovals []PendingApproval `json:"pendingApprovals,omitempty"`

	// awaitedTurns are the names of the sub-agents' Turns that this Turn waits for. After the wait, they stay in the
	// list until the Turn waits again or ends.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=25
	// +kubebuilder:validation:items:MaxLength=253
	AwaitedTurns []string `json:"awaitedTurns,omitempty"`

	// awaitedBudget is the Budget that this Turn waits for. It is absent if the Turn runs, is suspended or has ended.
	// +optional
	// +structType=atomic
	AwaitedBudget *AwaitedBudget `json:"awaitedBudget,omitempty"`

	// stopReason says why the run stopped. Completed: the model answered. ToolEnded: a tool that ends Turns succeeded.
	// Prepared: the prompt of a PrepareOnly Turn was made. Undone: a Turn with undo has undone all calls that it had to
	// undo. UndoIncomplete: some of these calls were not undone. MaxSteps: the steps are used up, and the result is the
	// best answer so far. Budget: the limits of the Turn, its Session or a Budget do not allow the next request or
	// call, or the conversation needs more memory than one Turn may have. MaxOutputTokens: the answer was cut off at a
	// length limit. OutputInvalid: the answer does not fit the schema, even after two corrections. OutputPolicy: the
	// answer violates an output policy of the profile. ContentFilter: the content filter or the model refused the
	// answer. ContextLength: the prompt is too long for the model. ModelError: no model gave a usable answer.
	// PreparationError: the prompt could not be made. InvalidSpec: the spec cannot be used. Deadline: a time limit was
	// exceeded. SessionClosed: the budget of the Session is used up. QueueFull: too many Turns of the namespace are
	// waiting. Interrupted: Capstan failed internally, or the journal is damaged or lost. Cancelled: desiredState
	// became Cancelled.
	// +optional
	StopReason StopReason `json:"stopReason,omitempty"`

	// sessionOrder is the position of the Turn among the Turns of its Session that were created within the same
	// second: lower numbers run first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SessionOrder int64 `json:"sessionOrder,omitempty"`

	// preparation describes how the prompt was made.
	// +optional
	// +structType=atomic
	Preparation *Preparation `json:"preparation,omitempty"`

	// steps counts the steps, requests and calls of all runs of the Turn.
	// +optional
	// +structType=atomic
	Steps *StepCounts `json:"steps,omitempty"`

	// toolCalls are the newest tool calls of the Turn, oldest first: at most 50, and at most 16 KiB. Calls that Capstan
	// made by itself, such as those of context packs, are listed, too. The journal has all calls.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	ToolCalls []ToolCallRecord `json:"toolCalls,omitempty"`

	// result is the answer of the Turn. It is absent if the answer violates an output policy of the profile with
	// onViolation Fail or Retry, or if such a policy could not be checked.
	// +optional
	// +structType=atomic
	Result *TurnResult `json:"result,omitempty"`

	// policyViolations are the output policies of the profile that the newest answer violates, or that could not be
	// checked against it, at most 8. They contain no part of the answer.
	// +optional
	// +listType=map
	// +listMapKey=policy
	// +kubebuilder:validation:MaxItems=8
	PolicyViolations []PolicyViolation `json:"policyViolations,omitempty"`

	// redactions say how many texts each rule of the Agent's spec.redaction has removed from the Turn. They cover the
	// 16 rules with the most matches, and contain none of the removed texts.
	// +optional
	// +listType=map
	// +listMapKey=rule
	// +kubebuilder:validation:MaxItems=16
	Redactions []RedactionCount `json:"redactions,omitempty"`

	// usage is the total token usage and cost of the Turn, across all attempts. Its figures are those that the provider
	// reports, or estimates if the provider reports none. While the Turn runs, they are as old as the last write of
	// this status. usage is absent if nothing was used.
	// +optional
	// +structType=atomic
	Usage *Usage `json:"usage,omitempty"`

	// prices are the prices from which usage.cost is computed, one entry for each model that was used, at most 8. The
	// list is written when the Turn ends.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Prices []UsedPrice `json:"prices,omitempty"`

	// subAgentUsage is the total token usage and cost of the Turns of sub-agents, at any depth. It counts against this
	// Turn's limits, but is not part of usage.
	// +optional
	// +structType=atomic
	SubAgentUsage *Usage `json:"subAgentUsage,omitempty"`

	// descendants is the number of Turns that count against limits.maxDescendants: all Turns of sub-agents, at any
	// depth. If a sub-agent was deleted or its journal is lost, the number of Turns that it created is unknown. In that
	// case, the number that it was allowed to create counts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Descendants int32 `json:"descendants,omitempty"`

	// decision records how the Turn reached its end. It does not describe approvals.
	// +optional
	// +structType=atomic
	Decision *Decision `json:"decision,omitempty"`

	// evaluations are the evaluations of the answer by the judges of the PromptProfile, at most 4. They are written
	// once, some time after the end of the Turn, if spec.evaluation of the Agent selects the Turn. Their usage is not
	// part of usage.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=4
	Evaluations []Evaluation `json:"evaluations,omitempty"`
}

// EvaluationResult is the outcome of an evaluation.
// +kubebuilder:validation:Enum=Passed;Failed;Error
type EvaluationResult string

const (
	// EvaluationPassed means that the score is not below the threshold of the judge.
	EvaluationPassed EvaluationResult = "Passed"
	// EvaluationFailed means that the score is below the threshold.
	EvaluationFailed EvaluationResult = "Failed"
	// EvaluationError means that there is no score, because the judge failed.
	EvaluationError EvaluationResult = "Error"
)

// Evaluation is the verdict of one judge about the answer of a Turn.
type Evaluation struct {
	// name is the name of the judge in the PromptProfile.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// type is the type of the judge.
	// +required
	Type JudgeType `json:"type"`

	// result is the outcome. Passed: the score is not below the threshold. Failed: the score is below the threshold.
	// Error: there is no score, because the judge failed; reason says why.
	// +required
	Result EvaluationResult `json:"result"`

	// score is the score, a decimal from 0 to 1. It is absent if result is Error.
	// +optional
	// +kubebuilder:validation:MaxLength=4
	Score *string `json:"score,omitempty"`

	// threshold is the lowest score that passes, a decimal from 0 to 1.
	// +optional
	// +kubebuilder:validation:MaxLength=4
	Threshold string `json:"threshold,omitempty"`

	// reason is the reason for the result, in one line of at most 300 characters and 600 bytes. Unless result is Error,
	// the model of the judge wrote the reason, so it may quote the answer.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	Reason string `json:"reason,omitempty"`

	// model is the model that was asked last, as PROVIDER/MODEL. It is absent if no model was asked.
	// +optional
	// +kubebuilder:validation:MaxLength=600
	Model string `json:"model,omitempty"`

	// usage is the token usage and the cost of all requests of this evaluation. It is absent if no request was sent.
	// +optional
	Usage *Usage `json:"usage,omitempty"`

	// time is the time of the evaluation.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][01][0-9]:[0-5][0-9])$`
	Time metav1.Time `json:"time"`
}

// PolicyViolation is an output policy that an answer violates, or that could not be checked against the answer.
type PolicyViolation struct {
	// policy is the name of the policy in the profile.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Policy string `json:"policy"`

	// onViolation is the action of the policy: Fail, Report or Retry.
	// +required
	OnViolation ViolationAction `json:"onViolation"`

	// unchecked is true if it is not known whether the answer violates the policy, because no model could check it.
	// +optional
	Unchecked bool `json:"unchecked,omitempty"`
}

// ExecutorBinding is the binding of a Turn to an executor.
type ExecutorBinding struct {
	// name is the name of the executor; with the Helm chart, it is the name of the Pod. It is empty while the Turn is
	// not bound.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// epoch is the number of the binding, from 1 to 9007199254740991. It grows by one with each binding. Writes with an
	// older epoch are refused.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Epoch int64 `json:"epoch"`

	// storeID is the ID of the store that has the Turn's journal, at most 64 characters. A run that finds another store
	// knows that the journal is lost. storeID is absent if an older version of Capstan bound the Turn.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StoreID string `json:"storeID,omitempty"`

	// storeIncarnation is the incarnation of that store at the time of the binding, at most 64 characters. A store gets
	// a new incarnation when it may have lost confirmed entries, because an older copy of it was restored, or
	// PostgreSQL failed over to an asynchronous standby.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StoreIncarnation string `json:"storeIncarnation,omitempty"`

	// journalEntries is the minimum number of entries of the Turn's journal, as of the last write of this field. If the
	// journal has fewer entries, it has lost some. The field is absent if the number is unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	JournalEntries *int64 `json:"journalEntries,omitempty"`

	// journalComplete is true if journalEntries was the exact number of entries when it was written, at the end of the
	// last run or at the current binding. If it is true and journalEntries is 0, no run had begun. It is absent if a
	// run may have written more entries since. It does not say whether the journal is lost.
	// +optional
	JournalComplete bool `json:"journalComplete,omitempty"`

	// sideEffects is true if a tool that is not ReadOnly may have been called: the Agent had such a tool when the Turn
	// was bound, or a run was about to call one. If the journal is lost, a Turn without side effects starts over.
	// +optional
	SideEffects bool `json:"sideEffects,omitempty"`

	// overdue is true if the executor must end the Turn with the result from the journal, and must not continue it: the
	// Turn had run, and then waited too long. It waited longer than limits.startingDeadlineSeconds after a suspension,
	// or for a Budget before its first request, or longer than its time limit while its Agent was missing.
	// +optional
	Overdue bool `json:"overdue,omitempty"`
}

// Preparation describes how the prompt of a Turn was made.
type Preparation struct {
	// promptProfile identifies the PromptProfile from which the prompt was made, and its version.
	// +required
	PromptProfile PromptProfileRevision `json:"promptProfile"`

	// provider is the ModelProvider for which the prompt was made: its name, or NAMESPACE/NAME if the Agent names its
	// namespace. If a model answered, it is the provider of that model.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Provider string `json:"provider"`

	// model is the name of the model for which the prompt was made.
	// +required
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model"`

	// promptRenderHash is the SHA-256 of the canonical JSON {"text": ...}, whose text is the stable part of the system
	// prompt, in hexadecimal. Turns with the same stable part have the same value.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash"`

	// promptHash is the SHA-256 of the whole system prompt, in hexadecimal.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PromptHash string `json:"promptHash"`

	// contextHash is the first 16 hexadecimal digits of the SHA-256 of the facts, preferences, enrichments, data and
	// conversation context in the prompt. Memories are not included.
	// +required
	// +kubebuilder:validation:MaxLength=16
	ContextHash string `json:"contextHash"`

	// mode is the mode of the system prompt: Full, Minimal, Task or None; see spec.promptMode.
	// +optional
	Mode PromptMode `json:"mode,omitempty"`

	// sections are the names of the sections of the system prompt, in the order of the prompt.
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

	// toolServersMissing are the Agent's ToolServers that no manager had reached when the Turn began, so that their
	// tools were unknown. The model was not offered their tools, and their context packs were not called. The list has
	// at most 16 names; the journal has all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	ToolServersMissing []string `json:"toolServersMissing,omitempty"`

	// messageCount is the number of messages that the model received.
	// +required
	// +kubebuilder:validation:Minimum=0
	MessageCount int32 `json:"messageCount"`

	// expression is the way in which the assistant was asked to speak. It follows from traits, shaping, the
	// conversation and guardrails.
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

	// droppedMemoryIDs are the IDs of the memories that are not in the prompt, because there were too many or their
	// text is blank. The most relevant ones come first; at most 64.
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

	// droppedEnrichmentIDs are the IDs of the enrichments that are not in the prompt, at most 64. First come those that
	// exceeded the maximum number, most important first; then those with the audience Product; then blank ones.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	DroppedEnrichmentIDs []string `json:"droppedEnrichmentIDs,omitempty"`

	// usedGuardrailIDs are the IDs of the guardrails in the prompt, at most 64. The guardrails of the PromptProfile
	// come first, then those of the Turn, each in the order of their lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	UsedGuardrailIDs []string `json:"usedGuardrailIDs,omitempty"`

	// usedOverlayIDs are the IDs of the overlays in the prompt, at most 96. The overlays of the PromptProfile come
	// first, then those of the Turn, each in the order of their lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=96
	// +kubebuilder:validation:items:MaxLength=64
	UsedOverlayIDs []string `json:"usedOverlayIDs,omitempty"`

	// truncated is true if the lists were cut: together to 20 KiB of JSON, or one of them to its maximum length. The
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

// StepCounts counts the steps, requests and calls of a Turn's runs.
type StepCounts struct {
	// count is the number of steps. A step is one reply of a model, together with the tool calls that the reply
	// requests.
	// +required
	// +kubebuilder:validation:Minimum=0
	Count int32 `json:"count"`

	// modelRequests is the number of requests that were sent to models. Retries count, and so do requests that were
	// interrupted by a restart.
	// +required
	// +kubebuilder:validation:Minimum=0
	ModelRequests int32 `json:"modelRequests"`

	// modelRetries is the number of requests that repeated a failed or interrupted request.
	// +required
	// +kubebuilder:validation:Minimum=0
	ModelRetries int32 `json:"modelRetries"`

	// toolCalls is the number of tool calls that were made, or were about to be made when a run was interrupted.
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

	// unknownOutcomes is the number of Destructive calls whose outcome is unknown: the run was interrupted or the Turn
	// ended during the call, the tool gave no result in time, the connection broke, or the server failed or sent a
	// response that cannot be read. If the model was asked again, it was informed. If the Turn ended without its
	// journal, and may have called a tool that is not ReadOnly, each call that had not ended counts, whatever its
	// effect. If there may be calls that the status does not list, the number is at least 1, and may be too low.
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnknownOutcomes int32 `json:"unknownOutcomes,omitempty"`

	// resumes is how often a run continued from the journal of an earlier run, after the executor was lost or stopped,
	// or the Turn was suspended. Waits for an approval, a sub-agent or a Budget do not count.
	// +required
	// +kubebuilder:validation:Minimum=0
	Resumes int32 `json:"resumes"`
}

// TurnResult is the answer of a Turn.
type TurnResult struct {
	// text is the answer, at most 32768 bytes when encoded as a JSON string. A longer answer is cut; the journal has
	// the whole answer.
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

	// data is the structured answer, if the Turn requests one. It is absent if the answer has more than 32768 bytes of
	// JSON. The field text also has the answer.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Data *apiextensionsv1.JSON `json:"data,omitempty"`

	// artifacts are the contents that are too large for this status, at most 8. The read API of the manager serves
	// them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	Artifacts []Artifact `json:"artifacts,omitempty"`

	// citations are the sources of the answer.
	// +optional
	Citations *Citations `json:"citations,omitempty"`
}

// Artifact names a text or JSON that is too large for a status.
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
	// local are the sources of the facts that the Turn received, and then the documents that tools with the role
	// LocalSearch found, at most 8, without repetitions, in their order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=512
	Local []string `json:"local,omitempty"`

	// web are the pages that tools with the role WebSearch found, at most 8, without repetitions, in their order.
	// Titles and URLs are from the results of the tools.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Web []WebCitation `json:"web,omitempty"`
}

// WebCitation is a page of the web that a tool found.
type WebCitation struct {
	// title is the title of the page, at most 256 characters. It is absent if the tool gave no title.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Title string `json:"title,omitempty"`

	// url is the URL of the page, http or https, at most 1024 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	URL string `json:"url"`
}

// Strategy classifies an answer by the tools that were called.
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

// Decision records how a Turn reached its end.
type Decision struct {
	// key is the kind of the decision, from the Agent's decisionKey.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Key string `json:"key"`

	// strategy classifies the answer by the tools that were called. DirectAnswer: no tool. WebAugmented: a tool with
	// the role WebSearch. RetrievalAugmented: a tool with the role LocalSearch or ContextPack, and none with the role
	// WebSearch. ToolAssisted: only tools with other roles. It is absent if the Turn has no answer.
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`

	// toolsUsed are the names of the tools that were called, sorted, at most 64.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	ToolsUsed []string `json:"toolsUsed,omitempty"`

	// promptRenderHash is the hash of the stable part of the prompt, as in preparation. It is empty if no prompt was
	// made. Deprecated: read preparation.promptRenderHash. A later version of Capstan does not write this copy.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash"`

	// contextHash is the hash of the context, as in preparation. It is empty if no prompt was made. Deprecated: read
	// preparation.contextHash. A later version of Capstan does not write this copy.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ContextHash string `json:"contextHash"`

	// sessionName is the name of the Turn's Session.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SessionName string `json:"sessionName,omitempty"`

	// turnNumber is the number of the Turn within its Session, from 1. It is absent if the Turn asked no model.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TurnNumber int64 `json:"turnNumber,omitempty"`
}

// AwaitedBudget is a Budget that refuses the next request of a Turn.
type AwaitedBudget struct {
	// name is the name of the Budget.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// uid is the UID of the Budget.
	// +required
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`

	// generation is the generation of the Budget that refused the request. The Turn continues when the Budget has
	// another generation.
	// +required
	// +kubebuilder:validation:Minimum=0
	Generation int64 `json:"generation"`

	// retryTime is the time at which the Turn continues: the reset of the Budget, or some seconds after the refusal if
	// requests of other Turns have reserved the rest of the Budget.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}(Z|[+-][01][0-9]:[0-5][0-9])$`
	RetryTime metav1.MicroTime `json:"retryTime"`

	// message says which limit refuses the request, what is spent, and when the next period begins.
	// +required
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message"`
}
