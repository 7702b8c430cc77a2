package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AgentSpec defines an agent: its prompt, its models, its tools and its limits.
// +kubebuilder:validation:XValidation:rule="!has(self.instructions) || !has(self.instructionsFrom)",
// + message="instructionsFrom must be absent if instructions are given",fieldPath=".instructionsFrom"
type AgentSpec struct {
	// description is the purpose of the agent, at most 1024 characters. It is part of the prompt.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// promptProfileRef names the PromptProfile with the text of the prompt. It may be in another namespace, if its
	// spec.allowedNamespaces allows that.
	// +required
	PromptProfileRef SharedReference `json:"promptProfileRef"`

	// models is the chain of 1 to 8 models. The first model is asked first; the others are fallbacks, in order. A
	// fallback is asked if a model fails, for example if it could not be reached within its retries, or if its provider
	// refused the credentials or the request. If the prompt is too long for a model, only a fallback that may have a
	// larger context window is asked.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Models []ModelReference `json:"models"`

	// instructions are the agent's own instructions, at most 65536 characters. They follow the instructions of the
	// PromptProfile and may use the same templates.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Instructions string `json:"instructions,omitempty"`

	// instructionsFrom refers to the text of the instructions, which may have at most 65536 characters. It is read when
	// the prompt of a Turn is made. At most one of instructions and instructionsFrom may be given.
	// +optional
	InstructionsFrom *ContentSource `json:"instructionsFrom,omitempty"`

	// skills selects the skills of the PromptProfile that this agent uses.
	// +optional
	Skills *AgentSkills `json:"skills,omitempty"`

	// thinking asks the model to reason before it answers: Off (the default), Low, Medium or High. With Off, a model
	// that reasons by default still does so, unless its ModelProvider declares the capability ReasoningOff. In YAML,
	// write "Off" in quotes.
	// +optional
	// +kubebuilder:default="Off"
	Thinking ThinkingLevel `json:"thinking,omitempty"`

	// reasoningText says what happens to the text of a model's reasoning. Discard (the default) drops it. Journal keeps
	// it in the Turn's journal. The text is never part of an answer. Reasoning that must be sent back to the endpoint
	// is always kept in the journal: see requests.returnedData of ModelProvider.
	// +optional
	// +kubebuilder:default=Discard
	ReasoningText ReasoningText `json:"reasoningText,omitempty"`

	// reflectEveryTurns is the interval at which the model checks its draft answers, from 0 (never, the default) to
	// 1000. If it is 3, the draft of every third Turn of a Session is checked. The check is one more request, which
	// compares the draft with the user's request and the results of tools, and may replace the draft. A Turn without a
	// Session counts as the first Turn of a Session.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	ReflectEveryTurns int32 `json:"reflectEveryTurns,omitempty"`

	// tools are the tools that the model may call, at most 32 entries: tools of ToolServers, and other Agents. If
	// several tools have the same name, the tools of servers among them are prefixed with the name of their server and
	// '_'.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Tools []AgentTool `json:"tools,omitempty"`

	// toolPolicy says how tools are selected and called.
	// +optional
	ToolPolicy *ToolPolicy `json:"toolPolicy,omitempty"`

	// approval restricts who may approve or deny the calls that require approval. Without it, every user with
	// permission to create ToolApprovals may decide.
	// +optional
	Approval *AgentApproval `json:"approval,omitempty"`

	// context says what happens when a conversation approaches the size of the model's context window.
	// +optional
	Context *AgentContext `json:"context,omitempty"`

	// memory says which memories the prompt contains, and what is learned from Turns.
	// +optional
	Memory *AgentMemory `json:"memory,omitempty"`

	// embeddings is the model that turns texts into vectors, which represent their meaning. With it, Capstan compares
	// meanings as well as words when it finds learned memories, and when it selects tools with toolPolicy.selection
	// Semantic. Its requests count in the usage and cost like those to other models. Without it, or if it fails, only
	// the words count.
	// +optional
	Embeddings *AgentEmbeddings `json:"embeddings,omitempty"`

	// contributions are texts for the section live_context, at most 16. They come after the contributions of the
	// PromptProfile and before those of the Turn.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Contributions []Contribution `json:"contributions,omitempty"`

	// contributionTrust says whether texts of a Turn may instruct the model. Untrusted (the default): the overlays,
	// shaping mode, tone, guardrails and skill of a Turn are wishes. The model receives them escaped and fenced, as
	// data that does not instruct it. Trusted: these texts instruct the model, so every creator of a Turn can instruct
	// it. Despite its name, the field makes no contribution an instruction: contributions never instruct the model. It
	// only decides whether a Turn may mark its own contributions as Trusted: then the model may rely on them.
	// +optional
	// +kubebuilder:default=Untrusted
	ContributionTrust Trust `json:"contributionTrust,omitempty"`

	// redaction says which texts are removed before anything is recorded or sent to a model. It applies to everything
	// that enters a Turn of this agent: its message, context and attachments, replies of models, arguments and results
	// of calls, and errors. Without it, only credentials are removed.
	// +optional
	Redaction *AgentRedaction `json:"redaction,omitempty"`

	// limits apply to each Turn of this agent. A Turn can lower them and never raise them.
	// +optional
	Limits *Limits `json:"limits,omitempty"`

	// timeZone is the time zone of the dates in prompts, as an IANA name such as Europe/Berlin. Default UTC.
	// +optional
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z][A-Za-z0-9_+/-]*$")`,
	// + message="timeZone must be an IANA name, such as Europe/Berlin or UTC"
	TimeZone string `json:"timeZone,omitempty"`

	// evaluation says whether, and within which limits, the judges of the PromptProfile evaluate the answers of this
	// agent in the cluster. Without it, no judge is asked. The judges are asked after the Turn has ended, and cannot
	// change it.
	// +optional
	Evaluation *AgentEvaluation `json:"evaluation,omitempty"`

	// decisionKey is the kind of decision that the record of each Turn names in status.decision.key, at most 128
	// letters, digits, '.', '_' and '-'. Default support.chat.turn.
	// +optional
	// +kubebuilder:default=support.chat.turn
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9._-]+$")`,
	// + message="decisionKey must consist of letters, digits, '.', '_' and '-'"
	DecisionKey string `json:"decisionKey,omitempty"`

	// maxParallelTurns is the number of Turns of this agent that may run at the same time, from 1 to 10000, in all
	// namespaces together. Further Turns wait with reason Queued. Without it, only the limits of the manager apply.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxParallelTurns *int32 `json:"maxParallelTurns,omitempty"`

	// allowedNamespaces says which other namespaces may use the agent as a sub-agent. When their Turns call the agent,
	// it uses its profile, models and tools with the permissions of its own namespace, and they cannot read the Secrets
	// of that namespace. Its own sub-agents must allow these namespaces, too. Default: none. If a namespace is no
	// longer allowed, that takes effect at the next request.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`
}

// AgentEvaluation says whether, and within which limits, judges evaluate the answers of an agent.
type AgentEvaluation struct {
	// models is the chain of models that judges ask, 1 to 8, like models of the agent. Default: the models of the
	// agent. A judge with a modelRef asks only that model, if the chain has it, and otherwise the whole chain.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Models []ModelReference `json:"models,omitempty"`

	// samplePercent is the percentage of the Turns that are evaluated, from 0 (none) to 100 (all, the default). Turns
	// are selected by a hash of their UIDs.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	SamplePercent *int32 `json:"samplePercent,omitempty"`

	// maxPerHour is the maximum number of Turns that are evaluated within any 60 minutes, from 1 to 100000. Default 60.
	// Further Turns are not evaluated.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxPerHour *int32 `json:"maxPerHour,omitempty"`

	// maxTokensPerDay is the maximum number of tokens that the evaluations of this agent may use within any 24 hours,
	// from 1000 to 1000000000000. It is separate from the limits of Turns. Further Turns are not evaluated. Default: no
	// limit.
	// +optional
	// +kubebuilder:validation:Minimum=1000
	// +kubebuilder:validation:Maximum=1000000000000
	MaxTokensPerDay *int64 `json:"maxTokensPerDay,omitempty"`
}

// DefaultEvaluationsPerHour is the default of maxPerHour of an evaluation.
const DefaultEvaluationsPerHour = 60

// AgentApproval restricts who may approve or deny calls.
// +kubebuilder:validation:MinProperties=1
type AgentApproval struct {
	// forbidRequester is true if the user who asked for a Turn (its spec.requestedBy) must not approve the calls of the
	// Turn. Another user must approve them; the requester may only deny them. If the Turn has no requester, or the API
	// server has not checked the requester, its calls cannot be approved. Default false.
	// +optional
	ForbidRequester bool `json:"forbidRequester,omitempty"`

	// approvers are the only users who may approve or deny calls. They also need permission to create ToolApprovals.
	// +optional
	Approvers *Approvers `json:"approvers,omitempty"`
}

// Approvers are the users who may approve or deny calls. A user must be in users, or in one of the groups.
// +kubebuilder:validation:MinProperties=1
type Approvers struct {
	// users are the names of 1 to 64 users, as the API server authenticates them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	Users []string `json:"users,omitempty"`

	// groups are the names of 1 to 64 groups, as the API server authenticates them. The ToolApproval must name the
	// group in spec.decidedByGroups; capstan approve fills this in.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	Groups []string `json:"groups,omitempty"`
}

// AgentSkills selects skills of a PromptProfile.
// +kubebuilder:validation:MinProperties=1
type AgentSkills struct {
	// loaded are the keys of the skills whose whole text is in the prompt, in this order, at most 32.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Loaded []string `json:"loaded,omitempty"`

	// available are the keys of the skills that the prompt lists with their descriptions, at most 32. The model loads
	// the text of a skill with the tool load_skill.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Available []string `json:"available,omitempty"`
}

// ThinkingLevel is how much a model should reason before it answers.
// +kubebuilder:validation:Enum=Off;Low;Medium;High
type ThinkingLevel string

// The levels of thinking, lowest first.
const (
	ThinkingOff    ThinkingLevel = "Off"
	ThinkingLow    ThinkingLevel = "Low"
	ThinkingMedium ThinkingLevel = "Medium"
	ThinkingHigh   ThinkingLevel = "High"
)

// AgentMemory says which memories the prompt contains, and what is learned from Turns.
// +kubebuilder:validation:MinProperties=1
type AgentMemory struct {
	// maxItems is the maximum number of memories in the prompt, from 0 (none) to 10. Default 10. The most relevant
	// memories are used, from those of the Turn and those that Capstan has learned.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	MaxItems *int32 `json:"maxItems,omitempty"`

	// learning makes Capstan learn memories from the Turns of this agent, after they have ended, and use them in later
	// Turns. Without it, nothing is learned, and memories that were learned before are not used.
	// +optional
	Learning *AgentLearning `json:"learning,omitempty"`
}

// AgentEmbeddings names the model that turns texts into vectors.
type AgentEmbeddings struct {
	// providerRef names the ModelProvider that serves the model, of type OpenAI. It may be in another
	// namespace, if its spec.allowedNamespaces allows that. It receives messages of Turns, memories and descriptions of
	// tools.
	// +required
	ProviderRef SharedReference `json:"providerRef"`

	// model is the name of the model as the provider knows it, 1 to 256 characters. It must be a model for embeddings.
	// Vectors of different models cannot be compared: after a change, memories that were learned before are found by
	// their words alone.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model"`

	// dimensions is the length of the vectors, from 1 to 4096. Set it only if the model can make vectors of this
	// length. Without it, the vectors have the default length of the model.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	Dimensions *int32 `json:"dimensions,omitempty"`
}

// LearnedScope is where a learned memory is used.
// +kubebuilder:validation:Enum=Session;User
type LearnedScope string

// The scopes of learned memories, narrowest first.
const (
	// LearnedScopeSession means that later Turns of the same Session use the memory.
	LearnedScopeSession LearnedScope = "Session"
	// LearnedScopeUser means that later Turns of the same verified requester with the same agent use the memory.
	LearnedScopeUser LearnedScope = "User"
)

// AgentLearning says what Capstan learns from the Turns of an agent, and within which limits.
type AgentLearning struct {
	// scopes are the 1 or 2 scopes of the memories that are learned and used. Session: memories of a conversation,
	// learned from the message, the answer and the results of tools. They are never used outside of their Session.
	// User: memories of the requester, learned only from the requester's own messages. They need a requester that the
	// API server has checked.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Scopes []LearnedScope `json:"scopes"`

	// models is the chain of models that extract memories, 1 to 8, like models of the agent. Default: the models of the
	// agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Models []ModelReference `json:"models,omitempty"`

	// maxPerTurn is the maximum number of memories of each scope that are learned from one Turn, from 1 to 10. Default
	// 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	MaxPerTurn *int32 `json:"maxPerTurn,omitempty"`

	// minConfidencePercent is the minimum confidence of a memory, from 0 to 100. The model that extracts a memory
	// states its confidence; a memory with less confidence is not kept. Default 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MinConfidencePercent *int32 `json:"minConfidencePercent,omitempty"`

	// maxMemories is the maximum number of memories of each Session and of each user, from 1 to 500. Default 100. New
	// memories replace the oldest ones. The texts of all memories of a Session or a user together have at most 65536
	// bytes.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=500
	MaxMemories *int32 `json:"maxMemories,omitempty"`

	// expiryDays is the number of days after which a memory is deleted, from 1 to 365. Default 90. If the same memory
	// is learned again from a later Turn, the time starts again.
	// +optional
	// +kubebuilder:default=90
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=365
	ExpiryDays *int32 `json:"expiryDays,omitempty"`

	// maxPerHour is the maximum number of Turns from which memories are learned within any 60 minutes, from 1 to
	// 100000. Default 60. Capstan learns nothing from further Turns.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxPerHour *int32 `json:"maxPerHour,omitempty"`

	// maxTokensPerDay is the maximum number of tokens that learning may use for this agent within any 24 hours, from
	// 1000 to 1000000000000. It is separate from the limits of Turns. Capstan learns nothing from further Turns.
	// Default: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=1000
	// +kubebuilder:validation:Maximum=1000000000000
	MaxTokensPerDay *int64 `json:"maxTokensPerDay,omitempty"`
}

// The defaults of learning.
const (
	DefaultLearnedPerTurn  = 5
	DefaultMinConfidence   = 60
	DefaultMaxMemories     = 100
	DefaultExpiryDays      = 90
	DefaultLearningPerHour = 60
)

// ModelReference is one model of the chain.
type ModelReference struct {
	// providerRef names the ModelProvider that serves the model. It may be in another namespace, if its
	// spec.allowedNamespaces allows that.
	// +required
	ProviderRef SharedReference `json:"providerRef"`

	// model is the name of the model as the provider knows it, 1 to 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model"`

	// parameters are sent with each request to this model.
	// +optional
	Parameters *ModelParameters `json:"parameters,omitempty"`
}

// ModelParameters shape the answers of a model. A parameter that is absent is not sent, so that the provider's
// default applies. One exception: for providers of type Anthropic, maxOutputTokens is always sent.
// +kubebuilder:validation:MinProperties=1
type ModelParameters struct {
	// temperature is the randomness of the answer, a decimal from "0" to "2" with at most 6 decimals.
	// +optional
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^([01](\.[0-9]{1,6})?|2(\.0{1,6})?)$")`,
	// + message="temperature must be a decimal from 0 to 2 with at most 6 decimals, such as 0.2"
	Temperature *string `json:"temperature,omitempty"`

	// maxOutputTokens limits the length of the answer, in tokens, from 1 to 1000000. An answer that reaches the limit
	// is cut off. In spec.models, the Turn then ends with reason OutputInvalid. In the models for evaluation and
	// learning, an answer that is cut off is not used, and the limit includes the model's reasoning. For evaluation,
	// values above 8192 count as 8192. For learning, the default is 4096, and higher values count as 4096.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxOutputTokens *int32 `json:"maxOutputTokens,omitempty"`

	// seed is the seed for random choices of the model, from 0 to 2147483647. With the same seed, answers to the same
	// prompt are more alike, but not always equal. It is rejected for providers without a seed: type Anthropic, and the
	// dialects DeepSeek, Gemini and Moonshot.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Seed *int64 `json:"seed,omitempty"`

	// stopSequences are texts at which the model stops, at most 4 of 1 to 64 characters each. The answer ends before
	// the text. They are rejected for models that are known not to accept them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	StopSequences []string `json:"stopSequences,omitempty"`

	// serviceTier is the provider's name of the service tier that processes the requests, such as flex or priority. It
	// is rejected for providers that do not have this tier. List prices apply to standard tiers only.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[a-z][a-z0-9_-]*$")`,
	// + message="serviceTier must consist of lower-case letters, digits, '_' and '-', such as flex"
	ServiceTier string `json:"serviceTier,omitempty"`

	// extraFields are further fields of the request's body, at most 16, such as top_p. They cannot replace the fields
	// that Capstan sends, or those in requests.extraFields of the ModelProvider.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ExtraFields []ExtraField `json:"extraFields,omitempty"`
}

// AgentStatus says whether the agent can run Turns.
type AgentStatus struct {
	// observedGeneration is the generation of the spec that this status describes. It is -1 before the first
	// reconciliation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the conditions of the agent. ProfileResolved, ModelsResolved and ToolsResolved are about the
	// objects that the agent refers to. Ready is True if all three are True and the rules of spec.redaction can be
	// used. JudgesResolved is about spec.evaluation, LearningResolved about spec.memory.learning, and
	// EmbeddingsResolved about spec.embeddings; each is absent if its field is absent, and is not part of Ready.
	// Stalled is True if only a change of the agent can make it Ready, and absent otherwise.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",
	// + message="each lastTransitionTime must be a time"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// promptRenderHash is the SHA-256 of the canonical JSON {"text": ...}, whose text is the stable part of this
	// agent's prompt, in hexadecimal. The prompt is rendered for the first model of the chain, with the default values
	// of the variables and without tools. A Turn on that model reports the same hash if it has no parameters, no
	// promptMode and no depth, the agent has no tools, and no text uses .Turn or .Session.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash,omitempty"`

	// tools are the tools that a Turn of this agent would use if it started now, at most 128. First come the tools for
	// the model in order, then those with the role ContextPack. The list contains neither the tools of a server that
	// was never reached nor tools that cannot be offered to any model. If toolPolicy.selection is Semantic, each Turn
	// uses a selection of these tools.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Tools []ExposedTool `json:"tools,omitempty"`
}

// Agent combines a prompt, a chain of models, tools and limits. Each request to it is a Turn.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ag,categories=capstan
// +kubebuilder:printcolumn:name="Profile",type=string,JSONPath=`.spec.promptProfileRef.name`
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.spec.models[0].model`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Hash",type=string,priority=1,JSONPath=`.status.promptRenderHash`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Agent struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec defines the agent.
	// +required
	Spec AgentSpec `json:"spec"`

	// status says whether the agent can run Turns.
	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status AgentStatus `json:"status,omitzero"`
}

// AgentList is a list of Agents.
// +kubebuilder:object:root=true
type AgentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Agent `json:"items"`
}
