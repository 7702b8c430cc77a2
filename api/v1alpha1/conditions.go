package v1alpha1

// The condition Ready, which all kinds except Turn and ToolApproval have.
const (
	// ConditionReady is the main condition of Agent, Budget, PromptProfile, ModelProvider, ToolServer and Session.
	ConditionReady = "Ready"

	// ReasonReady means that the object can be used.
	ReasonReady = "Ready"
)

// Conditions as kstatus defines them, which several kinds have. Flux and kubectl wait read them; examples/gitops has a
// script for Argo CD.
const (
	// ConditionReconciling is set on Turns only. It is True while the Turn waits or runs. It is absent while the Turn
	// is suspended, and after its end.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when the object has failed, and neither time nor a change of another object can help. It
	// is absent otherwise.
	ConditionStalled = "Stalled"
)

// Reasons of a ModelProvider's Ready condition.
const (
	// ReasonSecretNotFound means that a Secret that the object names does not exist, may not be read by the manager,
	// lacks the key, or holds a value that cannot be used. On a ModelProvider, it also means that its workload token is
	// not offered to the namespace, or cannot be read.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonHostNotAllowed is set on ModelProvider and ToolServer. It means that the annotation
	// capstan.dev/allowed-hosts of a Secret, or the operator's list for a workload token, does not allow the object's
	// host. Nothing was sent.
	ReasonHostNotAllowed = "HostNotAllowed"
	// ReasonMemoryUsedUp is set on ModelProvider and ToolServer. It means that the manager has no memory for the
	// credentials and certificates of the object or, on a ToolServer, for its list of tools, because the objects of the
	// namespace use all memory that one namespace may use for them.
	ReasonMemoryUsedUp = "MemoryUsedUp"
	// ReasonHeaderRefused is set on ModelProvider and ToolServer. It means that the object sets a header that it must
	// not set, and was stored before the schema rejected that header. Nothing was sent.
	ReasonHeaderRefused = "HeaderRefused"
	// ReasonCredentialsRejected means that the endpoint refused the credentials or, for a ModelProvider, that the quota
	// of the account is used up; the message says which.
	ReasonCredentialsRejected = "CredentialsRejected"
	// ReasonEndpointUnreachable means that the endpoint could not be reached, or answered with an error that has no
	// reason of its own. While a ModelProvider is new, its Agents are not Ready unless another model of the chain
	// answers. While a ToolServer is new, its Agents are not Ready until its tools are known. After that, Agents stay
	// Ready, and each Turn sends its requests anyway, with its retries and its chain of models.
	ReasonEndpointUnreachable = "EndpointUnreachable"
	// ReasonAddressRefused is set on ModelProvider and ToolServer. It means that the manager must not connect to the
	// address. Agents stay Ready, even while the object is new, and each Turn tries the address itself.
	ReasonAddressRefused = "AddressRefused"
)

// The conditions of a Budget with their reasons, which are also the reasons of its Events, and one further Event.
const (
	// ConditionExceeded is True if a limit of the current period is reached.
	ConditionExceeded = "Exceeded"
	// ReasonLimitReached is set on Exceeded=True. The message names the limit, the amount that is spent,
	// and the time of the reset.
	ReasonLimitReached = "LimitReached"
	// ReasonWithinLimits is set on Exceeded=False.
	ReasonWithinLimits = "WithinLimits"
	// ConditionWarning is True if warnPercent of a limit of the current period is spent.
	ConditionWarning = "Warning"
	// ReasonWarnPercentReached is set on Warning=True.
	ReasonWarnPercentReached = "WarnPercentReached"
	// ReasonBelowWarnPercent is set on Warning=False.
	ReasonBelowWarnPercent = "BelowWarnPercent"
	// ReasonTooManyBudgets is set on Ready=False. It means that the Budget does not apply, because its namespace has 64
	// older Budgets.
	ReasonTooManyBudgets = "TooManyBudgets"
	// ReasonInvalidBudget is set on Ready=False. It means that a part of the spec cannot be used; the message says how
	// the Budget applies until it is corrected.
	ReasonInvalidBudget = "InvalidBudget"
	// ReasonRequestersNotChecked is set on Ready=False. It means that the Budget selects requesters, but the API server
	// does not check the requesters of Turns, so the Budget applies to the Turns of all requesters.
	ReasonRequestersNotChecked = "RequestersNotChecked"
	// EventStoreLostAmounts is emitted on a Budget. It means that the store of the journals had less for the current
	// period than the status of the Budget, and that the store was raised to the higher amounts of both.
	EventStoreLostAmounts = "StoreLostAmounts"
)

// The condition Available of a ModelProvider, and its reasons.
const (
	// ConditionAvailable says whether requests to the models are sent. It is absent until a circuit breaker has opened
	// for the first time.
	ConditionAvailable = "Available"
	// ReasonCircuitOpen is set on Available=False. It means that the circuit breaker of a model is open in at least one
	// executor, because several requests in a row failed. The message names the models.
	ReasonCircuitOpen = "CircuitOpen"
	// ReasonCircuitClosed is set on Available=True. It means that all circuit breakers have closed again.
	ReasonCircuitClosed = "CircuitClosed"
)

// Reasons of a ToolServer's Ready condition, in addition to those of a ModelProvider. With SecretNotFound,
// HostNotAllowed and HeaderRefused, its Agents are not Ready if none of the server's tools are known. With
// EndpointUnreachable, its Agents are not Ready while the server is new and none of its tools are known. With
// TooManyObjects, its Agents are never Ready, because the cache has dropped the known tools. With all other reasons,
// including InvalidCompensation, Agents stay Ready. Each Turn then asks the server itself, and calls that do not reach
// it fail as unavailable.
const (
	// ReasonInvalidCompensation means that an expression of spec.tools[].compensation cannot be used; the message names
	// its line and column. The server is not checked, so Capstan does not update its list of tools. Turns use its tools
	// as usual.
	ReasonInvalidCompensation = "InvalidCompensation"
	// ReasonProtocolError means that the server answered, but not as an MCP server.
	ReasonProtocolError = "ProtocolError"
)

// Reasons of a PromptProfile's Ready condition.
const (
	// ReasonRenderFailed means that the profile cannot be rendered. The message names the field and, for a text,
	// the line and the column. The profile is Stalled if the fault is in the profile itself, and not in a ConfigMap.
	ReasonRenderFailed = "RenderFailed"
	// ReasonConfigMapNotFound is set on PromptProfile and Agent. It means that a ConfigMap that the object names
	// does not exist or lacks the key. The object is not Stalled, because it is checked again when the ConfigMap
	// appears.
	ReasonConfigMapNotFound = "ConfigMapNotFound"
	// ReasonTooManyObjects is set on Agent, PromptProfile, ModelProvider and ToolServer. It means that the manager has
	// no memory for the object, because the objects of these kinds in its namespace use all memory that one namespace
	// may use for them. The manager checks again every 15 seconds.
	ReasonTooManyObjects = "TooManyObjects"
	// ReasonConfigMapUnreadable is set on PromptProfile and Agent. It means that a ConfigMap that the object names
	// could not be read: the manager lacks the permission, or the API server did not answer. The manager tries again,
	// at least every 30 seconds.
	ReasonConfigMapUnreadable = "ConfigMapUnreadable"
)

// Conditions and reasons of an Agent.
const (
	// ConditionProfileResolved is True when the Agent's PromptProfile exists, is Ready and has the Agent's skills, the
	// Agent's instructions render with it, the Agent's contributions can be read, and its time zone is known.
	ConditionProfileResolved = "ProfileResolved"
	// ConditionModelsResolved is True while at least one model of the Agent's chain can be used. The message names the
	// ModelProviders that cannot be used, with the causes. It is also True if no endpoint answers, at least one
	// ModelProvider cannot be reached, and none is new or unchecked, because each Turn then tries the endpoints itself.
	ConditionModelsResolved = "ModelsResolved"

	// ConditionToolsResolved is True when all ToolServers and sub-agents that the Agent names exist, and no ToolServer
	// is a reason for ToolServerNotReady. It stays True if a server cannot be reached, unless that server is new and
	// none of its tools are known.
	ConditionToolsResolved = "ToolsResolved"
	// ReasonToolServerNotFound means that a ToolServer does not exist.
	ReasonToolServerNotFound = "ToolServerNotFound"
	// ReasonToolServerNotReady means that none of a ToolServer's tools are known. The ToolServer was not asked for its
	// tools yet, nothing can be sent to it (SecretNotFound, HostNotAllowed or HeaderRefused), it is new and could not
	// be reached, or it does not fit into the manager's memory (TooManyObjects).
	ReasonToolServerNotReady = "ToolServerNotReady"
	// ReasonSubAgentNotFound means that a sub-agent does not exist.
	ReasonSubAgentNotFound = "SubAgentNotFound"
	// ConditionJudgesResolved says whether the answers of an Agent with spec.evaluation can be evaluated as its
	// PromptProfile asks. It is absent without spec.evaluation, and not part of Ready.
	ConditionJudgesResolved = "JudgesResolved"
	// ConditionLearningResolved says whether the models that extract memories for an Agent with spec.memory.learning
	// can be used. It is not part of Ready.
	ConditionLearningResolved = "LearningResolved"
	// ConditionEmbeddingsResolved says whether the model of an Agent with spec.embeddings can be used. It is not part
	// of Ready, because Turns run without it.
	ConditionEmbeddingsResolved = "EmbeddingsResolved"
	// ReasonNoEmbeddings is set on EmbeddingsResolved. It means that the protocol of the ModelProvider does not support
	// embeddings.
	ReasonNoEmbeddings = "NoEmbeddings"
	// ReasonNoJudges is set on JudgesResolved. It means that the PromptProfile has no judges or cannot be used, so no
	// answer is evaluated.
	ReasonNoJudges = "NoJudges"
	// ReasonJudgeModelNotAllowed is set on JudgesResolved. It means that the modelRef of a judge is not one of the
	// models that spec.evaluation allows, so the judge asks these models instead. The message names the judge.
	ReasonJudgeModelNotAllowed = "JudgeModelNotAllowed"
	// ReasonResolved is set on ProfileResolved, ModelsResolved, ToolsResolved, JudgesResolved, LearningResolved and
	// EmbeddingsResolved. It means that all referenced objects exist and may be used. With conditions other than
	// ProfileResolved and ModelsResolved, an endpoint may still fail. On ToolsResolved, the message names ToolServers
	// that are not Ready.
	ReasonResolved = "Resolved"
	// ReasonPartiallyResolved is set on ModelsResolved=True. It means that Turns run, but not all models of the chain
	// can be used now. The message names the ModelProviders that cannot be used, with the causes.
	ReasonPartiallyResolved = "PartiallyResolved"
	// ReasonProfileNotFound means that the PromptProfile does not exist.
	ReasonProfileNotFound = "ProfileNotFound"
	// ReasonProfileNotReady means that the PromptProfile is not Ready, or does not render for this Agent.
	ReasonProfileNotReady = "ProfileNotReady"
	// ReasonProfileNotRendered means that the newest spec of the PromptProfile was not processed yet.
	ReasonProfileNotRendered = "ProfileNotRendered"
	// ReasonInvalidInstructions means that the Agent's own instructions do not render, or that one of its texts in
	// ConfigMaps is too long. The Agent is Stalled if the instructions are in the Agent itself, and no variable of the
	// profile could make them render.
	ReasonInvalidInstructions = "InvalidInstructions"
	// ReasonSkillNotFound means that the Agent names a skill that its PromptProfile does not have.
	ReasonSkillNotFound = "SkillNotFound"
	// ReasonInvalidRedaction means that a rule of the Agent's spec.redaction cannot be used.
	ReasonInvalidRedaction = "InvalidRedaction"
	// ReasonInvalidTimeZone means that the Agent's time zone is unknown.
	ReasonInvalidTimeZone = "InvalidTimeZone"
	// ReasonProviderNotFound means on ModelsResolved that no model of the chain can be used, and that a ModelProvider
	// does not exist. On JudgesResolved, LearningResolved and EmbeddingsResolved it means that a ModelProvider does not
	// exist.
	ReasonProviderNotFound = "ProviderNotFound"
	// ReasonReferenceNotAllowed means that an object of another namespace does not exist or does not allow the Agent's
	// namespace: the PromptProfile, a ToolServer, a sub-agent, a ModelProvider of the chain if no model of the chain
	// can be used, or a ModelProvider for judges, learning or embeddings.
	ReasonReferenceNotAllowed = "ReferenceNotAllowed"
	// ReasonProviderNotReady means that no model of the chain can be used: each ModelProvider lacks usable credentials,
	// was not checked yet, is new and could not be reached, does not fit into the manager's memory (TooManyObjects), or
	// has only models that cannot fulfill their parameters. On JudgesResolved, LearningResolved and EmbeddingsResolved
	// it means that a ModelProvider does not fit into the manager's memory.
	ReasonProviderNotReady = "ProviderNotReady"
	// ReasonUnsupportedParameter means on ModelsResolved that no model of the chain whose ModelProvider exists and may
	// be used can fulfill its parameters, and on JudgesResolved and LearningResolved that a model cannot.
	ReasonUnsupportedParameter = "UnsupportedParameter"
)

// Reasons of a Session's Ready condition.
const (
	// ReasonOpen is set on Ready=True. It means that the Session accepts Turns.
	ReasonOpen = "Open"
	// ReasonBudgetUsed is set on Ready=False. It means that the budget is used up: further Turns end with reason
	// SessionClosed.
	ReasonBudgetUsed = "BudgetUsed"
)

// The condition HistoryComplete of a Session and of its Turns, and its reasons.
const (
	// ConditionHistoryComplete says whether the journal has the whole conversation. A Turn has this condition only if
	// it is False.
	ConditionHistoryComplete = "HistoryComplete"
	// ReasonHistoryComplete is set on HistoryComplete=True of a Session. It means that the history is complete.
	ReasonHistoryComplete = "Complete"
	// ReasonHistoryLost is set on HistoryComplete=False of a Session and of a Turn. It means that the store of the
	// journal has lost the history of earlier Turns. If the Session's onHistoryLoss is Wait, it is also set on
	// Ready=False of the Session until the spec changes.
	ReasonHistoryLost = "HistoryLost"
)

// Conditions of a Turn.
const (
	// ConditionSucceeded is the main condition of a Turn: Unknown until the Turn ends, and True or False from then
	// on.
	ConditionSucceeded = "Succeeded"
	// ConditionPrepared says whether the prompt was made.
	ConditionPrepared = "Prepared"
	// ConditionExecuted says whether the model gave a usable answer.
	ConditionExecuted = "Executed"
	// ConditionFinalized says whether usage, cost, citations and decision record of the Turn are complete. It becomes
	// False if an evaluation or the learning fails after the end.
	ConditionFinalized = "Finalized"
	// ConditionJournalLost is True after a run found that the journal of earlier runs was lost, even if the Turn
	// started over. Without such a loss it is absent.
	ConditionJournalLost = "JournalLost"
)

// Reasons of Succeeded=Unknown.
const (
	// TurnReasonPending means that no executor has taken the Turn yet, or that a ConfigMap that the Turn names does
	// not exist or cannot be read. The message says which.
	TurnReasonPending = "Pending"
	// TurnReasonWaitingForAgent means that the Agent does not exist or is not Ready.
	TurnReasonWaitingForAgent = "WaitingForAgent"
	// TurnReasonWaitingForSession means that an earlier Turn of the same Session has not finished, that the Session is
	// being deleted or may not be created, or that its history was lost and its onHistoryLoss is Wait.
	TurnReasonWaitingForSession = "WaitingForSession"
	// TurnReasonQueued means that the Agent, the namespace or the executors already run as many Turns as they may, or
	// that the next request of the Turn waits for a ModelProvider. The message says which.
	TurnReasonQueued = "Queued"
	// TurnReasonWaitingForJournalSpace means that the journals of the Turn's namespace, or of all namespaces, use
	// 80 % of their quota. A Turn that has already run continues until the whole quota is used.
	TurnReasonWaitingForJournalSpace = "WaitingForJournalSpace"
	// TurnReasonWaitingForBudget means that the next request of the Turn would exceed a Budget whose onExceeded is
	// Queue, or that requests of other Turns have reserved the rest of a Budget. The message names the Budget and its
	// reset: see status.awaitedBudget. The Turn has no slot.
	TurnReasonWaitingForBudget = "WaitingForBudget"
	// TurnReasonRunning means that the Turn is bound to an executor.
	TurnReasonRunning = "Running"
	// TurnReasonAwaitingApproval means that a call requires approval: see status.pendingApprovals. During the wait
	// nothing runs, and the Turn's time does not count.
	TurnReasonAwaitingApproval = "AwaitingApproval"
	// TurnReasonWaitingForSubAgent means that the Turn of a sub-agent has not ended: see status.awaitedTurns.
	TurnReasonWaitingForSubAgent = "WaitingForSubAgent"
	// TurnReasonSuspended means that desiredState is Suspended and the run has stopped.
	TurnReasonSuspended = "Suspended"
)

// Reasons of Succeeded=True.
const (
	// TurnReasonCompleted means that the model answered, or that a tool that ends Turns succeeded.
	TurnReasonCompleted = "Completed"
	// TurnReasonPrepared means that the prompt of a PrepareOnly Turn was made.
	TurnReasonPrepared = "Prepared"
	// TurnReasonUndone is set on a Turn with undo. It means that no call of the other Turn is left that may have
	// changed something.
	TurnReasonUndone = "Undone"
)

// Reasons of Succeeded=False.
const (
	// TurnReasonUndoIncomplete is set on a Turn with undo. It means that at least one call of the other Turn is left
	// that may have changed something, possibly because it was not selected. status.result lists each call with the
	// reason.
	TurnReasonUndoIncomplete = "UndoIncomplete"
	// TurnReasonInvalidSpec means that the spec passed the schema but cannot be used.
	TurnReasonInvalidSpec = "InvalidSpec"
	// TurnReasonPreparationFailed means that the prompt could not be made, for example because a required parameter
	// is missing.
	TurnReasonPreparationFailed = "PreparationFailed"
	// TurnReasonModelFailed means that no model of the chain gave a usable answer, or that the API server refused the
	// result; the message says which.
	TurnReasonModelFailed = "ModelFailed"
	// TurnReasonStepLimitExceeded means that the Turn used all its steps; the result is the best answer so far.
	TurnReasonStepLimitExceeded = "StepLimitExceeded"
	// TurnReasonBudgetExceeded means that the limits of the Turn, its Session or a Budget do not allow the next request
	// or call, or that the conversation needs more memory than one Turn may have. The message says which.
	TurnReasonBudgetExceeded = "BudgetExceeded"
	// TurnReasonSessionClosed means that the budget of the Turn's Session was used up before the Turn began.
	TurnReasonSessionClosed = "SessionClosed"
	// TurnReasonQueueFull means that as many Turns of the namespace already waited for a slot as the manager
	// allows.
	TurnReasonQueueFull = "QueueFull"
	// TurnReasonDeadlineExceeded means that the Turn exceeded its time limit or its starting deadline.
	TurnReasonDeadlineExceeded = "DeadlineExceeded"
	// TurnReasonContextLimitExceeded means that the prompt is longer than the model's context window.
	TurnReasonContextLimitExceeded = "ContextLimitExceeded"
	// TurnReasonOutputInvalid means that the model's answer was cut off at a limit of its length, or does not fit
	// the Turn's schema.
	TurnReasonOutputInvalid = "OutputInvalid"
	// TurnReasonPolicyViolated means that the answer violates an output policy of the profile, that the provider's
	// content filter withheld the answer, or that the model refused to answer.
	TurnReasonPolicyViolated = "PolicyViolated"
	// TurnReasonInterrupted means that the run cannot continue, because of a fault within Capstan, because its journal
	// is damaged or lost, or because the Turn cannot be bound again.
	TurnReasonInterrupted = "Interrupted"
	// TurnReasonCancelled means that desiredState became Cancelled before the end.
	TurnReasonCancelled = "Cancelled"
)

// Reasons of a Turn's other conditions, in addition to the terminal reason of Succeeded.
const (
	// TurnReasonNotPrepared is set on Prepared=Unknown. It means that an executor handed the Turn back without a
	// prompt, because an object that the prompt needs does not exist or is not ready. Succeeded says which. The
	// condition disappears when the Turn is bound again.
	TurnReasonNotPrepared = "NotPrepared"
	// TurnReasonFinalized is set on Finalized=True. It means that usage, cost, sources and decision record are
	// complete, and that nothing has failed since the end of the Turn.
	TurnReasonFinalized = "Finalized"
	// TurnReasonPartiallyFinalized is set on Finalized=False. It means that a step of the finalization failed, which
	// the message names, or that the run reached no result.
	TurnReasonPartiallyFinalized = "PartiallyFinalized"
	// TurnReasonEvaluationFailed is set on Finalized=False. It means that a judge failed after the Turn had ended, so
	// an evaluation of the answer is missing. The answer and the decision record are complete.
	TurnReasonEvaluationFailed = "EvaluationFailed"
	// TurnReasonLearningFailed is set on Finalized=False. It means that the extraction of memories failed after the
	// Turn had ended, or that the observation of the Turn could not be stored. The message says why. The answer and the
	// decision record are complete.
	TurnReasonLearningFailed = "LearningFailed"
	// TurnReasonOtherStore is set on JournalLost. It means that the executor uses another store than the earlier
	// runs. For example, an emptyDir is replaced together with its Pod.
	TurnReasonOtherStore = "OtherStore"
	// TurnReasonEntriesMissing is set on JournalLost. It means that the store has fewer entries of the Turn than
	// status.executor.journalEntries: an older copy of the store was restored, or a replica without the newest entries
	// took over.
	TurnReasonEntriesMissing = "EntriesMissing"
	// TurnReasonEntriesUncertain is set on JournalLost. It means that the store has entries of the Turn and may
	// have lost later ones. Since these entries were written, an older copy of the store was restored, or the store
	// failed over to a server that may lack entries.
	TurnReasonEntriesUncertain = "EntriesUncertain"
	// TurnReasonJournalMissing is set on JournalLost. It means that the store has no entry of the Turn, but an earlier
	// run may have written some. Either the store was restored or has failed over since that run, or an older version
	// of Capstan, which recorded no store, bound the Turn.
	TurnReasonJournalMissing = "JournalMissing"
)

// Reasons of Events about Turns, their Sessions and the store.
const (
	// EventStatusRejected is emitted when a run of a Turn has ended, but the API server rejects every status that would
	// say so, for example because the object with its metadata has reached the size limit of etcd. It is also emitted
	// for a Turn that no executor runs, when the API server has rejected each write of its status for a minute.
	EventStatusRejected = "StatusRejected"
	// EventSucceeded is emitted when a Turn has succeeded.
	EventSucceeded = "Succeeded"
	// EventFailed is emitted when a Turn has failed for any reason but cancellation.
	EventFailed = "Failed"
	// EventCancelled is emitted when a Turn was cancelled.
	EventCancelled = "Cancelled"
	// EventFallbackUsed is emitted at the end of a Turn if the model that answered last is not the model that was tried
	// first. It names both models and the kind of the first one's failure.
	EventFallbackUsed = "FallbackUsed"
	// EventWaitingLong is emitted when a Turn has waited to start or to continue, for one reason, for a minute, or for
	// half of its starting deadline if that is less. Waits for approvals and sub-agents do not count. It is also
	// emitted when a bound Turn has waited for a ModelProvider or for memory for a minute, or for half of its time
	// limit if that is less, and has made no step meanwhile. A Turn gets this Event at most once for each wait. In ten
	// minutes, at most ten Turns of a namespace get it for the same reason. The tenth Event says that no more are
	// emitted.
	EventWaitingLong = "WaitingLong"
	// EventAwaitingApproval is emitted when a call requires approval.
	EventAwaitingApproval = "AwaitingApproval"
	// EventToolsMissing is emitted at the end of a Turn that ran without the tools of a ToolServer, because the
	// ToolServer was never reached.
	EventToolsMissing = "ToolsMissing"
	// EventHistoryLost is emitted on a Session when one of its Turns found that the history of earlier Turns was
	// lost.
	EventHistoryLost = "HistoryLost"
	// EventContextWarning is emitted when the conversation of a Turn approaches the size of the model's context window.
	EventContextWarning = "ContextWarning"
	// EventJournalLost is emitted when a run found that the journal of earlier runs was lost. The Turn then continues
	// from the entries that are left, starts over, or ends.
	EventJournalLost = "JournalLost"
	// EventStoreLostEntries is emitted on the Lease of an executor. It means that the store of the journals may
	// have lost confirmed entries: an older copy of it was restored, or it failed over to a server that may lack
	// them.
	EventStoreLostEntries = "StoreLostEntries"
	// EventResumed is emitted at the end of a Turn that continued from its journal after it was interrupted or
	// suspended, unless EventToolsMissing, EventFallbackUsed or EventContextWarning is emitted at the end.
	EventResumed = "Resumed"
)
