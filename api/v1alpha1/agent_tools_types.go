package v1alpha1

// ReasoningText is what becomes of the text of a model's reasoning.
// +kubebuilder:validation:Enum=Discard;Journal
type ReasoningText string

const (
	// ReasoningTextDiscard drops it.
	ReasoningTextDiscard ReasoningText = "Discard"
	// ReasoningTextJournal keeps it in the Turn's journal.
	ReasoningTextJournal ReasoningText = "Journal"
)

// AgentTool offers an agent the tools of a server, or another agent as a tool.
// +kubebuilder:validation:XValidation:rule="has(self.serverRef) != has(self.agentRef)",message="exactly one of serverRef and agentRef must be given"
// +kubebuilder:validation:XValidation:rule="!has(self.agentRef) || !has(self.allow)",message="allow must be absent beside agentRef: a sub-agent is one tool",fieldPath=".allow"
// +kubebuilder:validation:XValidation:rule="!has(self.serverRef) || !has(self.name)",message="name must be absent beside serverRef: a server's tools have their own names",fieldPath=".name"
type AgentTool struct {
	// serverRef names a ToolServer.
	// +optional
	ServerRef *ObjectReference `json:"serverRef,omitempty"`

	// agentRef names another Agent. A call of it is a Turn of its own, a child of the one that calls.
	// +optional
	AgentRef *ObjectReference `json:"agentRef,omitempty"`

	// name of a sub-agent as a tool, 1 to 64 letters, digits, '_' and '-'. Default: the name of the Agent, with '_' for what a
	// tool's name cannot have.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z_][A-Za-z0-9_-]*$")`,message="name must consist of letters, digits, '_' and '-', and begin with a letter or '_'"
	Name string `json:"name,omitempty"`

	// allow says which tools of the server are offered, by name; '*' stands for any characters and '?' for one. 1 to 64
	// patterns; default all. A tool that the server gets later is offered if a pattern fits.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	Allow []string `json:"allow,omitempty"`

	// requireApproval says which of them a person must approve before each call, by patterns as in allow, at most 64; default
	// none. The Turn waits as AwaitingApproval, and a ToolApproval decides. Beside agentRef, "*" stands for the sub-agent.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	RequireApproval []string `json:"requireApproval,omitempty"`

	// maxCalls is how often a Turn may call each of these tools, from 1 to 1000. Without it only limits.maxToolCalls holds.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxCalls *int32 `json:"maxCalls,omitempty"`
}

// ArgumentValidation says what is done about arguments that do not fit a tool's JSON Schema.
// +kubebuilder:validation:Enum=Enforce;Off
type ArgumentValidation string

const (
	// ArgumentValidationEnforce repairs them where that is certain, and else refuses the call.
	ArgumentValidationEnforce ArgumentValidation = "Enforce"
	// ArgumentValidationOff leaves them to the tool.
	ArgumentValidationOff ArgumentValidation = "Off"
)

// ToolSelection says which tools are offered where there are more than a Turn may have.
// +kubebuilder:validation:Enum=Declared;Semantic
type ToolSelection string

const (
	// ToolSelectionDeclared offers the first in their order.
	ToolSelectionDeclared ToolSelection = "Declared"
	// ToolSelectionSemantic offers those whose words fit the user's message best.
	ToolSelectionSemantic ToolSelection = "Semantic"
)

// ToolExecution says how the calls of one reply are made.
// +kubebuilder:validation:Enum=Parallel;Sequential
type ToolExecution string

const (
	// ToolExecutionParallel makes neighbouring read-only calls at the same time.
	ToolExecutionParallel ToolExecution = "Parallel"
	// ToolExecutionSequential makes one call after another.
	ToolExecutionSequential ToolExecution = "Sequential"
)

// AllowedEffects says what tools may do to the world.
// +kubebuilder:validation:Enum=Any;ReadOnly
type AllowedEffects string

const (
	// AllowedEffectsAny allows all tools.
	AllowedEffectsAny AllowedEffects = "Any"
	// AllowedEffectsReadOnly refuses calls of tools that are not known to be read-only.
	AllowedEffectsReadOnly AllowedEffects = "ReadOnly"
)

// ToolPolicy says how tools are chosen and called.
type ToolPolicy struct {
	// argumentValidation is Enforce (the default): arguments that do not fit the tool's JSON Schema are repaired where that is
	// certain, and else the call is refused with the violations; or Off, which leaves them to the tool.
	// +optional
	// +kubebuilder:default=Enforce
	ArgumentValidation ArgumentValidation `json:"argumentValidation,omitempty"`

	// selection is Declared (the default), which offers the first maxToolsPerTurn tools in their order, or Semantic, which
	// offers those that fit the user's message best by their words. Those that the profile pins are offered in any case.
	// +optional
	// +kubebuilder:default=Declared
	Selection ToolSelection `json:"selection,omitempty"`

	// maxToolsPerTurn is how many tools the model is offered at most, from 1 to 128; Capstan's own come on top. Default 25.
	// +optional
	// +kubebuilder:default=25
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	MaxToolsPerTurn int32 `json:"maxToolsPerTurn,omitempty"`

	// execution is Parallel (the default), which makes neighbouring read-only calls of one reply at the same time, or Sequential.
	// +optional
	// +kubebuilder:default=Parallel
	Execution ToolExecution `json:"execution,omitempty"`

	// effects is Any (the default), or ReadOnly, which refuses calls of all tools that their ToolServers do not
	// declare ReadOnly.
	// +optional
	// +kubebuilder:default=Any
	Effects AllowedEffects `json:"effects,omitempty"`
}

// DefaultMaxToolsPerTurn is how many tools a model is offered where its Agent does not say.
const DefaultMaxToolsPerTurn = 25

// Compaction says whether a conversation that comes near the context window is shortened.
// +kubebuilder:validation:Enum=Auto;Off
type Compaction string

const (
	// CompactionAuto has the model summarise older messages.
	CompactionAuto Compaction = "Auto"
	// CompactionOff leaves the conversation as it is.
	CompactionOff Compaction = "Off"
)

// AgentContext says what happens when a conversation comes near the model's context window, as its ModelProvider gives it.
// +kubebuilder:validation:XValidation:rule="!has(self.warnPercent) || !has(self.compactPercent) || self.warnPercent <= self.compactPercent",message="warnPercent must be at most compactPercent",fieldPath=".warnPercent"
type AgentContext struct {
	// compaction is Auto (the default): older messages are summarised by the model at compactPercent, and once after the model
	// has said that the prompt is too long; or Off.
	// +optional
	// +kubebuilder:default=Auto
	Compaction Compaction `json:"compaction,omitempty"`

	// warnPercent of the context window from which the Event ContextWarning is given, from 1 to 100. Default 70.
	// +optional
	// +kubebuilder:default=70
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	WarnPercent int32 `json:"warnPercent,omitempty"`

	// compactPercent of the context window at which older messages are summarised, from 1 to 100. Default 90.
	// +optional
	// +kubebuilder:default=90
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	CompactPercent int32 `json:"compactPercent,omitempty"`
}

// The percentages of AgentContext where an Agent has none.
const (
	DefaultWarnPercent    = 70
	DefaultCompactPercent = 90
)

// ExposedTool is a tool as a Turn would be offered it.
type ExposedTool struct {
	// name of the tool, as the model knows it.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`

	// server is the ToolServer that has it; empty for a sub-agent.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Server string `json:"server,omitempty"`

	// agent is the sub-agent that it is; empty for a tool of a server.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Agent string `json:"agent,omitempty"`

	// effect of a call, ReadOnly, Idempotent or Destructive.
	// +optional
	Effect ToolEffect `json:"effect,omitempty"`

	// role of the tool: WebSearch, LocalSearch, ContextPack (which is called before the model is asked, and not offered to it) or
	// Other.
	// +optional
	Role ToolRole `json:"role,omitempty"`

	// requiresApproval is true where a person must approve each call.
	// +optional
	RequiresApproval bool `json:"requiresApproval,omitempty"`
}
