package v1alpha1

// ReasoningText says what happens to the text of a model's reasoning.
// +kubebuilder:validation:Enum=Discard;Journal
type ReasoningText string

const (
	// ReasoningTextDiscard drops the text.
	ReasoningTextDiscard ReasoningText = "Discard"
	// ReasoningTextJournal keeps the text in the Turn's journal.
	ReasoningTextJournal ReasoningText = "Journal"
)

// AgentTool offers the model the tools of a ToolServer, or another Agent as a tool.
// +kubebuilder:validation:XValidation:rule="has(self.serverRef) != has(self.agentRef)",
// + message="exactly one of serverRef and agentRef must be given"
// +kubebuilder:validation:XValidation:rule="!has(self.agentRef) || !has(self.allow)",
// + message="allow must be absent if agentRef is given: a sub-agent is one tool",fieldPath=".allow"
// +kubebuilder:validation:XValidation:rule="!has(self.serverRef) || !has(self.name)",
// + message="name must be absent if serverRef is given: a server's tools have their own names",fieldPath=".name"
type AgentTool struct {
	// serverRef names a ToolServer. It may be in another namespace, if its spec.allowedNamespaces allows that. Exactly
	// one of serverRef and agentRef must be given.
	// +optional
	ServerRef *SharedReference `json:"serverRef,omitempty"`

	// agentRef names another Agent, the sub-agent. Each call creates a Turn of that Agent, as a child of the calling
	// Turn and in its namespace. The Agent may be in another namespace, if its spec.allowedNamespaces allows that.
	// +optional
	AgentRef *SharedReference `json:"agentRef,omitempty"`

	// name is the name of the sub-agent as a tool, 1 to 64 letters, digits, '_' and '-', beginning with a letter or
	// '_'. Default: the name of the Agent, with '_' instead of '.'.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z_][A-Za-z0-9_-]*$")`,
	// + message="name must consist of letters, digits, '_' and '-', and begin with a letter or '_'"
	Name string `json:"name,omitempty"`

	// allow selects the tools of the server that are offered, by 1 to 64 patterns for their names. '*' matches any
	// characters, and '?' matches one character. Default: all tools. The patterns also apply to tools that the server
	// adds later.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	Allow []string `json:"allow,omitempty"`

	// requireApproval selects the tools whose calls a person must approve, by at most 64 patterns as in allow. Default:
	// none. Before such a call, the Turn waits with reason AwaitingApproval for a ToolApproval. For a sub-agent, use
	// "*".
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	RequireApproval []string `json:"requireApproval,omitempty"`

	// maxCalls is the maximum number of calls of each of these tools in a Turn, from 1 to 1000. Without this field,
	// only limits.maxToolCalls applies.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxCalls *int32 `json:"maxCalls,omitempty"`
}

// ArgumentValidation says what happens to arguments that do not fit a tool's JSON Schema.
// +kubebuilder:validation:Enum=Enforce;Off
type ArgumentValidation string

const (
	// ArgumentValidationEnforce repairs the arguments if the repair is unambiguous, and refuses the call otherwise.
	ArgumentValidationEnforce ArgumentValidation = "Enforce"
	// ArgumentValidationOff does not check the arguments against the schema.
	ArgumentValidationOff ArgumentValidation = "Off"
)

// ToolSelection says which tools are offered if the Agent has more than maxToolsPerTurn.
// +kubebuilder:validation:Enum=Declared;Semantic
type ToolSelection string

const (
	// ToolSelectionDeclared offers the first tools in their order.
	ToolSelectionDeclared ToolSelection = "Declared"
	// ToolSelectionSemantic offers the tools that match the user's message best.
	ToolSelectionSemantic ToolSelection = "Semantic"
)

// ToolExecution says how the calls of one reply are made.
// +kubebuilder:validation:Enum=Parallel;Sequential
type ToolExecution string

const (
	// ToolExecutionParallel makes consecutive read-only calls at the same time.
	ToolExecutionParallel ToolExecution = "Parallel"
	// ToolExecutionSequential makes one call after another.
	ToolExecutionSequential ToolExecution = "Sequential"
)

// AllowedEffects says which effects the called tools may have.
// +kubebuilder:validation:Enum=Any;ReadOnly
type AllowedEffects string

const (
	// AllowedEffectsAny allows all tools.
	AllowedEffectsAny AllowedEffects = "Any"
	// AllowedEffectsReadOnly refuses calls of tools that are not declared ReadOnly.
	AllowedEffectsReadOnly AllowedEffects = "ReadOnly"
)

// ToolPolicy says how tools are selected and called.
type ToolPolicy struct {
	// argumentValidation says what happens to arguments that do not fit the tool's JSON Schema. Enforce (the default)
	// repairs them if the repair is unambiguous; otherwise it refuses the call, and the model receives the violations.
	// Off passes them to the tool. In both cases, arguments that are not an unambiguous JSON object are refused.
	// +optional
	// +kubebuilder:default=Enforce
	ArgumentValidation ArgumentValidation `json:"argumentValidation,omitempty"`

	// selection says which tools are offered if the Agent has more than maxToolsPerTurn. Declared (the default) offers
	// the first tools in their order. Semantic offers the tools whose names and descriptions match the user's message
	// best. Tools that the PromptProfile pins are selected first in both cases.
	// +optional
	// +kubebuilder:default=Declared
	Selection ToolSelection `json:"selection,omitempty"`

	// maxToolsPerTurn is the highest number of tools that are offered to the model, from 1 to 128. Capstan's own
	// tools do not count. Default 25.
	// +optional
	// +kubebuilder:default=25
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	MaxToolsPerTurn int32 `json:"maxToolsPerTurn,omitempty"`

	// execution is Parallel (the default) or Sequential. Parallel makes consecutive read-only calls of one reply at the
	// same time. Sequential makes one call after another.
	// +optional
	// +kubebuilder:default=Parallel
	Execution ToolExecution `json:"execution,omitempty"`

	// effects is Any (the default) or ReadOnly. Any allows all tools. ReadOnly refuses calls of all tools that are not
	// declared ReadOnly in their ToolServers.
	// +optional
	// +kubebuilder:default=Any
	Effects AllowedEffects `json:"effects,omitempty"`
}

// DefaultMaxToolsPerTurn is the default of ToolPolicy.MaxToolsPerTurn.
const DefaultMaxToolsPerTurn = 25

// Compaction says whether a conversation that approaches the size of the context window is shortened.
// +kubebuilder:validation:Enum=Auto;Off
type Compaction string

const (
	// CompactionAuto asks the model to summarize older messages.
	CompactionAuto Compaction = "Auto"
	// CompactionOff does not shorten the conversation.
	CompactionOff Compaction = "Off"
)

// The rule accepts a warnPercent of 70 with every compactPercent: it was the default that older versions have stored.
// The warning then comes at compactPercent.

// AgentContext says what happens when a conversation approaches the size of the model's context window. The
// ModelProvider declares that size.
// +kubebuilder:validation:XValidation:rule="!has(self.warnPercent) || !has(self.compactPercent)
// +  || self.warnPercent <= self.compactPercent || self.warnPercent == 70",message="warnPercent must be at most compactPercent",
// + fieldPath=".warnPercent"
type AgentContext struct {
	// compaction is Auto (the default) or Off. Auto asks the model to summarize older messages when the conversation
	// reaches compactPercent. It also does so, once in each step, after an endpoint has reported that the prompt is too
	// long. Off never shortens a conversation.
	// +optional
	// +kubebuilder:default=Auto
	Compaction Compaction `json:"compaction,omitempty"`

	// warnPercent is the percentage of the context window, without the part that is reserved for the reply, at which
	// the Event ContextWarning is emitted, from 1 to 100. It must be at most compactPercent. Default: 70, or
	// compactPercent if that is less.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	WarnPercent int32 `json:"warnPercent,omitempty"`

	// compactPercent is the percentage of the context window, without the part that is reserved for the reply, at which
	// older messages are summarized, from 1 to 100. Default 90.
	// +optional
	// +kubebuilder:default=90
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	CompactPercent int32 `json:"compactPercent,omitempty"`
}

// The defaults of AgentContext.WarnPercent and AgentContext.CompactPercent.
const (
	DefaultWarnPercent    = 70
	DefaultCompactPercent = 90
)

// ExposedTool is a tool that the Turns of the Agent use. The model is offered the tool. If the role of the tool is
// ContextPack, Capstan calls it instead, before it asks the model.
type ExposedTool struct {
	// name is the name of the tool, as the model knows it.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`

	// server is the name of the ToolServer that has the tool, or NAMESPACE/NAME if the Agent names its namespace. It is
	// empty for a sub-agent.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Server string `json:"server,omitempty"`

	// agent is the name of the Agent that the tool calls, or NAMESPACE/NAME if spec.tools names its namespace. It is
	// empty for a tool of a server.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Agent string `json:"agent,omitempty"`

	// effect is the effect of a call: ReadOnly, Idempotent or Destructive.
	// +optional
	Effect ToolEffect `json:"effect,omitempty"`

	// role is the role of the tool: WebSearch, LocalSearch, ContextPack or Other. A tool with the role ContextPack is
	// called before the model is asked, and is not offered to the model.
	// +optional
	Role ToolRole `json:"role,omitempty"`

	// requiresApproval is true if a person must approve each call.
	// +optional
	RequiresApproval bool `json:"requiresApproval,omitempty"`
}
