package v1alpha1

// Conditions of every kind but Turn.
const (
	// ConditionReady is the main condition of Agent, PromptProfile, ModelProvider, ToolServer and Session.
	ConditionReady = "Ready"

	// ReasonReady surfaces when the object can be used.
	ReasonReady = "Ready"
)

// Conditions that any kind may have, as kstatus defines them (Flux and kubectl wait read them; examples/gitops has a script for Argo CD).
const (
	// ConditionReconciling is True while work on the object is under way, and absent otherwise.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when the object has failed and will not go on by itself, and absent otherwise.
	ConditionStalled = "Stalled"
)

// Reasons of a ModelProvider's Ready condition.
const (
	// ReasonSecretNotFound surfaces when a Secret that the provider names does not exist, or lacks the key.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonHostNotAllowed surfaces on ModelProvider and ToolServer when a Secret that the object names is bound to other hosts, by its
	// annotation capstan.dev/allowed-hosts. Nothing was sent.
	ReasonHostNotAllowed = "HostNotAllowed"
	// ReasonHeaderRefused surfaces on ModelProvider and ToolServer when the object sets a header that it must not set, which the schema
	// did not refuse yet when it was written. Nothing was sent.
	ReasonHeaderRefused = "HeaderRefused"
	// ReasonCredentialsRejected surfaces when the endpoint refused the credentials (HTTP 401 or 403).
	ReasonCredentialsRejected = "CredentialsRejected"
	// ReasonEndpointUnreachable surfaces when the endpoint could not be reached, or answered with a server error.
	// Agents stay Ready then: each Turn tries for itself, with its retries and its chain. While the object is new, Turns wait.
	ReasonEndpointUnreachable = "EndpointUnreachable"
	// ReasonAddressRefused surfaces on ModelProvider and ToolServer when the address is one that this manager does not connect to.
	// Agents stay Ready then, as with EndpointUnreachable.
	ReasonAddressRefused = "AddressRefused"
)

// Reasons of a ToolServer's Ready condition, beside SecretNotFound, CredentialsRejected, EndpointUnreachable and AddressRefused: Agents stay
// Ready then, and calls of its tools fail as unavailable. With SecretNotFound nobody was asked: Agents wait if none of its
// tools are known.
const (
	// ReasonProtocolError surfaces when the server answered, but not as an MCP server does.
	ReasonProtocolError = "ProtocolError"
	// ReasonMemoryUsedUp surfaces when the manager has no memory for the server's list of tools: the tool servers of the namespace hold
	// their share of it.
	ReasonMemoryUsedUp = "MemoryUsedUp"
)

// Reasons of a PromptProfile's Ready condition.
const (
	// ReasonRenderFailed surfaces when the profile cannot be rendered; the message has the field and, for a text, the
	// line and the column.
	ReasonRenderFailed = "RenderFailed"
	// ReasonConfigMapNotFound surfaces on PromptProfile and Agent when a ConfigMap that the object names does not exist,
	// or lacks the key. The object is looked at again when it appears, so that it is not Stalled.
	ReasonConfigMapNotFound = "ConfigMapNotFound"
	// ReasonConfigMapUnreadable surfaces on PromptProfile and Agent when a ConfigMap that the object names could not be
	// read: the manager may not, or the API server did not answer. It is tried again, at least every 30 seconds.
	ReasonConfigMapUnreadable = "ConfigMapUnreadable"
)

// Conditions and reasons of an Agent.
const (
	// ConditionProfileResolved is True when the agent's PromptProfile is there and Ready, and what the agent adds to it
	// is: instructions that render with it, skills that it has, contributions that can be read.
	ConditionProfileResolved = "ProfileResolved"
	// ConditionModelsResolved is True when all ModelProviders of the agent's chain are there and have usable credentials, and none that is
	// new is still to be waited for.
	ConditionModelsResolved = "ModelsResolved"

	// ConditionToolsResolved is True when all ToolServers and sub-agents that the agent names are there, and each server was asked
	// for its tools. That a server is out of reach does not count, unless it is new and none of its tools are known.
	ConditionToolsResolved = "ToolsResolved"
	// ReasonToolServerNotFound surfaces when a ToolServer does not exist.
	ReasonToolServerNotFound = "ToolServerNotFound"
	// ReasonToolServerNotReady surfaces when a ToolServer was not asked for its tools yet, or is new and could not be reached, and none of
	// them are known.
	ReasonToolServerNotReady = "ToolServerNotReady"
	// ReasonSubAgentNotFound surfaces when a sub-agent does not exist.
	ReasonSubAgentNotFound = "SubAgentNotFound"
	// ReasonResolved surfaces on ProfileResolved, ModelsResolved and ToolsResolved when all is there.
	ReasonResolved = "Resolved"
	// ReasonProfileNotFound surfaces when the PromptProfile does not exist.
	ReasonProfileNotFound = "ProfileNotFound"
	// ReasonProfileNotReady surfaces when the PromptProfile is not Ready, or does not render for this agent.
	ReasonProfileNotReady = "ProfileNotReady"
	// ReasonProfileNotRendered surfaces when nobody has looked at the newest spec of the PromptProfile.
	ReasonProfileNotRendered = "ProfileNotRendered"
	// ReasonInvalidInstructions surfaces when the agent's own instructions, or its contributions, do not render.
	ReasonInvalidInstructions = "InvalidInstructions"
	// ReasonSkillNotFound surfaces when the agent names a skill that its PromptProfile does not have.
	ReasonSkillNotFound = "SkillNotFound"
	// ReasonInvalidTimeZone surfaces when the agent's time zone is unknown.
	ReasonInvalidTimeZone = "InvalidTimeZone"
	// ReasonProviderNotFound surfaces when a ModelProvider of the chain does not exist.
	ReasonProviderNotFound = "ProviderNotFound"
	// ReasonProviderNotReady surfaces when a ModelProvider of the chain lacks usable credentials, or was not yet looked at; and when one is
	// new and could not be reached, and no other is Ready.
	ReasonProviderNotReady = "ProviderNotReady"
)

// Reasons of a Session's Ready.
const (
	// ReasonOpen surfaces on Ready=True when the Session takes Turns.
	ReasonOpen = "Open"
	// ReasonBudgetUsed surfaces on Ready=False when the budget is used up: further Turns end as SessionClosed.
	ReasonBudgetUsed = "BudgetUsed"
)

// ConditionHistoryComplete is the condition of a Session, and of a Turn in one, that says whether the journal has all that was said
// in the conversation. A Turn has it only where it is False.
const (
	ConditionHistoryComplete = "HistoryComplete"
	// ReasonHistoryComplete surfaces on HistoryComplete=True of a Session when its history is whole.
	ReasonHistoryComplete = "Complete"
	// ReasonHistoryLost surfaces on HistoryComplete=False of a Session and of a Turn when the store of the journal does not have the
	// history of earlier Turns any more. It surfaces on Ready=False of a Session whose onHistoryLoss is Wait until its spec changes.
	ReasonHistoryLost = "HistoryLost"
)

// Conditions of a Turn.
const (
	// ConditionSucceeded is the main condition of a Turn: Unknown until the end, then True or False for ever.
	ConditionSucceeded = "Succeeded"
	// ConditionPrepared says whether the prompt was made.
	ConditionPrepared = "Prepared"
	// ConditionExecuted says whether the model gave a usable answer.
	ConditionExecuted = "Executed"
	// ConditionFinalized says whether the record of the Turn is whole.
	ConditionFinalized = "Finalized"
	// ConditionJournalLost is True when a run found that the journal of the runs before it was lost. It stays, also where the
	// Turn started over. Without such a loss it is absent.
	ConditionJournalLost = "JournalLost"
)

// Reasons of Succeeded=Unknown.
const (
	// TurnReasonPending surfaces when no executor has taken the Turn yet, or a ConfigMap that it names does not exist or may
	// not be read; the message says what it waits for.
	TurnReasonPending = "Pending"
	// TurnReasonWaitingForAgent surfaces when the Agent does not exist or is not Ready.
	TurnReasonWaitingForAgent = "WaitingForAgent"
	// TurnReasonWaitingForSession surfaces when an earlier Turn of the same Session has not finished, or the Session is being
	// deleted.
	TurnReasonWaitingForSession = "WaitingForSession"
	// TurnReasonQueued surfaces when as many Turns run already as the Agent, the namespace or the executors allow; the message
	// says which.
	TurnReasonQueued = "Queued"
	// TurnReasonWaitingForJournalSpace surfaces when the journals of the Turn's namespace, or of all, use 80 % of their quota. A Turn
	// that has run goes on until all of it is used.
	TurnReasonWaitingForJournalSpace = "WaitingForJournalSpace"
	// TurnReasonRunning surfaces when the Turn is bound to an executor.
	TurnReasonRunning = "Running"
	// TurnReasonAwaitingApproval surfaces when a call waits for somebody's decision: see status.pendingApprovals. Nothing runs
	// meanwhile, nor does the Turn's time.
	TurnReasonAwaitingApproval = "AwaitingApproval"
	// TurnReasonWaitingForSubAgent surfaces when the Turn of a sub-agent has not ended: see status.awaitedTurns.
	TurnReasonWaitingForSubAgent = "WaitingForSubAgent"
	// TurnReasonSuspended surfaces when desiredState is Suspended and the run has stopped.
	TurnReasonSuspended = "Suspended"
)

// Reasons of Succeeded=True.
const (
	// TurnReasonCompleted surfaces when the model answered.
	TurnReasonCompleted = "Completed"
	// TurnReasonPrepared surfaces when the prompt of a PrepareOnly Turn was made.
	TurnReasonPrepared = "Prepared"
)

// Reasons of Succeeded=False.
const (
	// TurnReasonInvalidSpec surfaces when the spec passed the schema and still cannot be worked on.
	TurnReasonInvalidSpec = "InvalidSpec"
	// TurnReasonPreparationFailed surfaces when the prompt could not be made, as for a required parameter that is missing.
	TurnReasonPreparationFailed = "PreparationFailed"
	// TurnReasonModelFailed surfaces when no model of the chain gave a usable answer.
	TurnReasonModelFailed = "ModelFailed"
	// TurnReasonStepLimitExceeded surfaces when the Turn was out of steps; the result is the best answer by then.
	TurnReasonStepLimitExceeded = "StepLimitExceeded"
	// TurnReasonBudgetExceeded surfaces when the tokens or the cost that the Turn or its Session may take did not suffice.
	TurnReasonBudgetExceeded = "BudgetExceeded"
	// TurnReasonSessionClosed surfaces when the budget of the Turn's Session was used up before the Turn began.
	TurnReasonSessionClosed = "SessionClosed"
	// TurnReasonQueueFull surfaces when as many Turns of the namespace waited for a slot as the manager allows.
	TurnReasonQueueFull = "QueueFull"
	// TurnReasonDeadlineExceeded surfaces when the time of the Turn, or its time to start, was over.
	TurnReasonDeadlineExceeded = "DeadlineExceeded"
	// TurnReasonContextLimitExceeded surfaces when the prompt is longer than the model's context window.
	TurnReasonContextLimitExceeded = "ContextLimitExceeded"
	// TurnReasonOutputInvalid surfaces when the model's answer was cut off at a limit of its length, or does not fit the Turn's
	// schema.
	TurnReasonOutputInvalid = "OutputInvalid"
	// TurnReasonPolicyViolated surfaces when the provider's content filter withheld the answer.
	TurnReasonPolicyViolated = "PolicyViolated"
	// TurnReasonInterrupted surfaces when the run cannot go on, because of a fault within Capstan or because its journal is
	// damaged or lost.
	TurnReasonInterrupted = "Interrupted"
	// TurnReasonCancelled surfaces when desiredState became Cancelled before the end.
	TurnReasonCancelled = "Cancelled"
)

// Reasons of a Turn's other conditions, beside the terminal reason of Succeeded.
const (
	// TurnReasonNotPrepared surfaces on Prepared=Unknown when an executor gave the Turn back without a prompt, because what
	// it is made of is not there. Succeeded says what the Turn waits for. It is gone when the Turn is bound again.
	TurnReasonNotPrepared = "NotPrepared"
	// TurnReasonFinalized surfaces on Finalized when the record is whole.
	TurnReasonFinalized = "Finalized"
	// TurnReasonPartiallyFinalized surfaces on Finalized when a step of the record failed; the message names it.
	TurnReasonPartiallyFinalized = "PartiallyFinalized"
	// TurnReasonOtherStore surfaces on JournalLost when the executor uses another store than the runs before: the store was
	// replaced, as an emptyDir is with its Pod.
	TurnReasonOtherStore = "OtherStore"
	// TurnReasonEntriesMissing surfaces on JournalLost when the store has fewer entries of the Turn than it is known to have had:
	// an older copy of it was restored, or a replica without the newest entries took over.
	TurnReasonEntriesMissing = "EntriesMissing"
	// TurnReasonEntriesUncertain surfaces on JournalLost when the store has entries of the Turn and may have lost later ones: since they
	// were written, an older copy of it was restored, or it failed over to a server that nothing proves to be complete.
	TurnReasonEntriesUncertain = "EntriesUncertain"
	// TurnReasonJournalMissing surfaces on JournalLost when the store has no entry of the Turn, and nothing proves that none was
	// ever written: the store was restored or has failed over, or an older version of Capstan bound the Turn.
	TurnReasonJournalMissing = "JournalMissing"
)

// Reasons of Events about Turns.
const (
	// EventSucceeded is emitted when a Turn has ended well.
	EventSucceeded = "Succeeded"
	// EventFailed is emitted when a Turn has ended otherwise.
	EventFailed = "Failed"
	// EventCancelled is emitted when a Turn was cancelled.
	EventCancelled = "Cancelled"
	// EventFallbackUsed is emitted when not the first model of the chain served.
	EventFallbackUsed = "FallbackUsed"
	// EventWaitingLong is emitted when a Turn has waited for its start for a minute, or for half of a shorter starting deadline, once for each
	// reason. Of one namespace and reason at most ten Turns get it in ten minutes; the last of these Events says so.
	EventWaitingLong = "WaitingLong"
	// EventAwaitingApproval is emitted when a call waits for somebody's decision.
	EventAwaitingApproval = "AwaitingApproval"
	// EventToolsMissing is emitted, at the end, when the Turn ran without the tools of a ToolServer that nobody had ever reached.
	EventToolsMissing = "ToolsMissing"
	// EventHistoryLost is emitted on a Session when a Turn of it found that the history of earlier Turns was lost.
	EventHistoryLost = "HistoryLost"
	// EventContextWarning is emitted, at the end, when the conversation has come near the model's context window.
	EventContextWarning = "ContextWarning"
	// EventJournalLost is emitted when a run found that the journal of the runs before it was lost: the Turn then starts over, or
	// ends.
	EventJournalLost = "JournalLost"
	// EventStoreLostEntries is emitted on the Lease of an executor that found that the store of the journals may have lost entries that it
	// had confirmed: an older copy of it was restored, or it has failed over to a server that may lack them.
	EventStoreLostEntries = "StoreLostEntries"
	// EventResumed is emitted when a Turn that was cut off or suspended was taken up again from what its journal held.
	EventResumed = "Resumed"
)
