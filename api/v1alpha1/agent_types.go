package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AgentSpec says what runs: which prompt, on which models, within which limits.
type AgentSpec struct {
	// description says what the agent is for, at most 1024 characters. It is part of the prompt.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// promptProfileRef names the PromptProfile that says what the prompt says.
	// +required
	PromptProfileRef ObjectReference `json:"promptProfileRef"`

	// models is the chain of models, 1 to 8: the first that can serve, serves. The next one takes over when a model
	// could not be reached within its retries, or refused the credentials or the request.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Models []ModelReference `json:"models"`

	// instructions of the agent itself, after those of the profile, at most 65536 characters. They may use the same
	// templates as the profile's.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Instructions string `json:"instructions,omitempty"`

	// skills of the profile that this agent uses.
	// +optional
	Skills *AgentSkills `json:"skills,omitempty"`

	// thinking asks the model to think before it answers: Off (the default; in YAML "Off", in quotes), Low, Medium or High.
	// +optional
	// +kubebuilder:default="Off"
	Thinking ThinkingLevel `json:"thinking,omitempty"`

	// reasoningText says what becomes of the text of a model's reasoning: Discard (the default), or Journal, which keeps it in
	// the Turn's journal. It is never part of an answer, nor sent back to a model.
	// +optional
	// +kubebuilder:default=Discard
	ReasoningText ReasoningText `json:"reasoningText,omitempty"`

	// reflectEveryTurns asks the model to check its draft against the request and the results of tools in every Turn of a
	// Session whose number is a multiple of this, by one more request that may replace the draft; from 0 (never, the default) to
	// 1000. A Turn without a Session has the number 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	ReflectEveryTurns int32 `json:"reflectEveryTurns,omitempty"`

	// tools that the model may call, at most 32 entries: those of ToolServers, and other Agents. Where two have the same name,
	// all of that name get the name of their server and '_' before it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Tools []AgentTool `json:"tools,omitempty"`

	// toolPolicy says how tools are chosen and called.
	// +optional
	ToolPolicy *ToolPolicy `json:"toolPolicy,omitempty"`

	// context says what happens when a conversation comes near the model's context window.
	// +optional
	Context *AgentContext `json:"context,omitempty"`

	// memory says what of a Turn's memories the prompt gets.
	// +optional
	Memory *AgentMemory `json:"memory,omitempty"`

	// contributions are texts of live context, after those of the profile and before those of the Turn, at most 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Contributions []Contribution `json:"contributions,omitempty"`

	// contributionTrust is the highest trust that the texts of a Turn may have. Untrusted (the default): the shaping, the
	// guardrails and the skill of a Turn are wishes, escaped and fenced as data. Trusted: they instruct the model, unescaped, and
	// the Turn's contributions may claim to be relied on. Whoever creates a Turn can then instruct the model.
	// +optional
	// +kubebuilder:default=Untrusted
	ContributionTrust Trust `json:"contributionTrust,omitempty"`

	// limits of each Turn of this agent. A Turn may lower them, never raise them.
	// +optional
	Limits *Limits `json:"limits,omitempty"`

	// timeZone of the dates in prompts, as an IANA name such as Europe/Berlin. Default UTC.
	// +optional
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z][A-Za-z0-9_+/-]*$")`,message="timeZone must be an IANA name, such as Europe/Berlin or UTC"
	TimeZone string `json:"timeZone,omitempty"`

	// decisionKey is the key of the decision record of each Turn, at most 128 letters, digits, '.', '_' and '-'.
	// Default support.chat.turn.
	// +optional
	// +kubebuilder:default=support.chat.turn
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9._-]+$")`,message="decisionKey must consist of letters, digits, '.', '_' and '-'"
	DecisionKey string `json:"decisionKey,omitempty"`

	// maxParallelTurns is how many Turns of this agent run at once, from 1 to 10000; the others wait as Queued. Without
	// it, only the manager's own limit holds.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxParallelTurns *int32 `json:"maxParallelTurns,omitempty"`
}

// AgentSkills are keys of skills.
// +kubebuilder:validation:MinProperties=1
type AgentSkills struct {
	// loaded are the keys of the profile's skills that stand in the prompt whole, in this order, at most 32.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Loaded []string `json:"loaded,omitempty"`

	// available are the keys of the profile's skills that the prompt lists with their descriptions, for the model to load
	// with the tool load_skill, at most 32.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Available []string `json:"available,omitempty"`
}

// ThinkingLevel is how long a model should think before it answers.
// +kubebuilder:validation:Enum=Off;Low;Medium;High
type ThinkingLevel string

// The levels of thinking, lowest first.
const (
	ThinkingOff    ThinkingLevel = "Off"
	ThinkingLow    ThinkingLevel = "Low"
	ThinkingMedium ThinkingLevel = "Medium"
	ThinkingHigh   ThinkingLevel = "High"
)

// AgentMemory says what of a Turn's memories the prompt gets.
// +kubebuilder:validation:MinProperties=1
type AgentMemory struct {
	// maxItems is how many memories the prompt has at most, from 0 (none) to 10. Default 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	MaxItems *int32 `json:"maxItems,omitempty"`
}

// ModelReference is one model of the chain.
type ModelReference struct {
	// providerRef names the ModelProvider that serves the model.
	// +required
	ProviderRef ObjectReference `json:"providerRef"`

	// model is the name of the model as the provider knows it, 1 to 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model"`

	// parameters of the requests to this model.
	// +optional
	Parameters *ModelParameters `json:"parameters,omitempty"`
}

// ModelParameters shape the answers of a model. What is not given is left to the provider.
// +kubebuilder:validation:MinProperties=1
type ModelParameters struct {
	// temperature is the randomness of the answer, a decimal from "0" to "2".
	// +optional
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^([01](\.[0-9]{1,6})?|2(\.0{1,6})?)$")`,message="temperature must be a decimal from 0 to 2 with at most 6 decimals, such as 0.2"
	Temperature *string `json:"temperature,omitempty"`

	// maxOutputTokens caps the answer, in tokens, from 1 to 1000000. An answer that reaches it is cut off, and the Turn
	// ends with reason OutputInvalid.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxOutputTokens *int32 `json:"maxOutputTokens,omitempty"`
}

// AgentStatus is whether the agent can run Turns, and if not, why.
type AgentStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of; -1 before anybody has looked.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the agent: ProfileResolved, ModelsResolved, ToolsResolved, and Ready, which is True when the others are.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// promptRenderHash is the SHA-256, in hexadecimal, of the stable part of this agent's prompt for the first model of
	// its chain, with the profile's defaults and without tools, whose schemas are not known here. A Turn without parameters on
	// that model reports the same if its agent has no tools and the texts do not use .Turn.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PromptRenderHash string `json:"promptRenderHash,omitempty"`

	// tools that a Turn of this agent would be offered by now, in their order, and after them those of the role ContextPack; the
	// first 128. Those of a server that nobody has reached yet are missing, and those that no model can be offered. Where
	// toolPolicy.selection is Semantic, they are all that it chooses among.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Tools []ExposedTool `json:"tools,omitempty"`
}

// Agent is what runs: a prompt, a chain of models and limits. Each of its runs is a Turn.
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

	// spec is the agent as it should run.
	// +required
	Spec AgentSpec `json:"spec"`

	// status is whether the agent can run Turns.
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
