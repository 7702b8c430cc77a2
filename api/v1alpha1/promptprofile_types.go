package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Trust says whether a text may instruct the model.
// +kubebuilder:validation:Enum=Trusted;Untrusted
type Trust string

const (
	// TrustTrusted text is inserted as it is, as if the author of the profile had written it.
	TrustTrusted Trust = "Trusted"
	// TrustUntrusted text is escaped and fenced, so that the model takes it for data.
	TrustUntrusted Trust = "Untrusted"
)

// PromptProfileSpec says what the prompt says. Its texts may use Go templates with the declared variables
// ({{ .userName }}) and with {{ .Agent.Name }}, {{ .Agent.Description }}, {{ .Turn.Name }}, {{ .Turn.Namespace }} and,
// where the Turn has a conversation ({{ if .Session }}), {{ .Session.Name }}.
// +kubebuilder:validation:XValidation:rule="(has(self.identity) && ((has(self.identity.systemPrompt) && self.identity.systemPrompt.matches(r'[^\\pZ\\p{Cc}\\p{Cf}]')) || (has(self.identity.developerPrompt) && self.identity.developerPrompt.matches(r'[^\\pZ\\p{Cc}\\p{Cf}]')))) || (has(self.instructions) && self.instructions.matches(r'[^\\pZ\\p{Cc}\\p{Cf}]'))",message="at least one of identity.systemPrompt, identity.developerPrompt and instructions must be given and not blank"
type PromptProfileSpec struct {
	// id names the logical prompt and stays the same across its versions, such as agent.profile.default; 1 to 128
	// letters, digits, '.', '_', '-' and '/'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$")`,message="id must consist of letters, digits, '.', '_', '-' and '/', starting and ending with a letter or digit"
	ID string `json:"id"`

	// version of the prompt, in semantic versioning, such as 1.4.0 or 2.0.0-rc.1, at most 64 characters. It is recorded with every Turn.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$")`,message="version must be a semantic version, such as 1.4.0 or 2.0.0-rc.1"
	Version string `json:"version"`

	// tags are words for people and tools to find the prompt by, at most 16 of at most 63 characters. They are recorded in the journal.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Tags []string `json:"tags,omitempty"`

	// variables the texts of this profile and of its Agents' instructions may use, at most 32. A text that uses any
	// other is refused.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Variables []Variable `json:"variables,omitempty"`

	// mode is which sections the prompt has and how it speaks: Full, all sections but sub_agent, for a conversation; Task,
	// the same, for a task that is worked on without asking back; Minimal, what a sub-agent needs; None, one fixed line and
	// only the guardrails of this profile. A Turn's promptMode wins. Default: Minimal for a sub-agent, else Full.
	// +optional
	Mode PromptMode `json:"mode,omitempty"`

	// identity is who the assistant is: the floor of every prompt made from this profile.
	// +optional
	Identity *Identity `json:"identity,omitempty"`

	// instructions follow the identity, at most 65536 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Instructions string `json:"instructions,omitempty"`

	// sections are the names of the sections that the prompt has, in their order, at most 16, in place of the mode's own;
	// the empty list makes an empty prompt. They are agent, sub_agent, instructions, behavior, loaded_skills,
	// available_skills, tools, turn_instructions, subject, live_context and environment; with an unknown or repeated name
	// the profile is not Ready. Mode None has no sections whatever this says.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Sections []string `json:"sections,omitzero"`

	// overrides replace texts that Capstan would otherwise supply.
	// +optional
	Overrides *Overrides `json:"overrides,omitempty"`

	// stablePrefix comes before all sections, at most 32768 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	StablePrefix string `json:"stablePrefix,omitempty"`

	// dynamicSuffix comes after all sections, in the dynamic part, at most 32768 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	DynamicSuffix string `json:"dynamicSuffix,omitempty"`

	// overlays are instructions, at most 32, sorted by priority. Those of shaping and of the Turn come after these.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=32
	Overlays []Overlay `json:"overlays,omitempty"`

	// guardrails constrain all other instructions, at most 32. They are in each prompt, whatever mode and sections say. Those of
	// a trusted Turn come after these.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=32
	Guardrails []Guardrail `json:"guardrails,omitempty"`

	// shaping says how answers should be. What the Turn says comes after it.
	// +optional
	Shaping *Shaping `json:"shaping,omitempty"`

	// pinnedTools are the names of tools that are offered whatever else toolPolicy.selection chooses, at most 32.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	PinnedTools []string `json:"pinnedTools,omitempty"`

	// skills that an Agent can load into its prompt, or make available, by their keys; at most 32.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MaxItems=32
	Skills []Skill `json:"skills,omitempty"`

	// contributions are texts of live context, before those of the Agent and the Turn, at most 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Contributions []Contribution `json:"contributions,omitempty"`
}

// Skill is a way to do something, written down.
// +kubebuilder:validation:XValidation:rule="has(self.content) != has(self.contentFrom)",message="exactly one of content and contentFrom must be given"
type Skill struct {
	// key of the skill, by which Agents and models name it, 1 to 63 letters, digits, '_' and '-'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$")`,message="key must consist of letters, digits, '_' and '-', starting and ending with a letter or digit"
	Key string `json:"key"`

	// name of the skill for people and models, at most 128 characters. Default: the key.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name,omitempty"`

	// description says when to use the skill, at most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// content of the skill, at most 65536 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Content *string `json:"content,omitempty"`

	// contentFrom says where the content is. At most 65536 characters of it are allowed.
	// +optional
	ContentFrom *ContentSource `json:"contentFrom,omitempty"`
}

// ContentSource is where a text is.
type ContentSource struct {
	// configMapKeyRef names the key of a ConfigMap that holds the text.
	// +required
	ConfigMapKeyRef ConfigMapKeyReference `json:"configMapKeyRef"`
}

// Variable is a name that texts may use and that a Turn may give a value.
// +kubebuilder:validation:XValidation:rule="!(has(self.required) && self.required && has(self.default))",message="default must not be given for a required variable"
type Variable struct {
	// name of the variable as templates use it: a letter, then letters, digits and '_', at most 63 characters.
	// Agent, Turn and Session are taken.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z][A-Za-z0-9_]*$")`,message="name must be a letter followed by letters, digits and '_'"
	// +kubebuilder:validation:XValidation:rule="!(self in ['Agent', 'Turn', 'Session'])",message="name must not be Agent, Turn or Session: these are built in"
	Name string `json:"name"`

	// description says what the variable is for, at most 1024 characters. It is not part of a prompt.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// default is the value where a Turn gives none, at most 4096 characters; it is inserted as it is. Without it, the
	// default of a variable that is not required is the empty text.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Default *string `json:"default,omitempty"`

	// required makes a Turn that gives no value for this variable end with reason PreparationFailed.
	// +optional
	Required bool `json:"required,omitempty"`

	// trust of the values that Turns give. Untrusted (the default): a value is escaped and fenced as data. Trusted: it
	// is inserted as it is, which lets whoever creates a Turn instruct the model.
	// +optional
	// +kubebuilder:default=Untrusted
	Trust Trust `json:"trust,omitempty"`
}

// Identity is who the assistant is.
// +kubebuilder:validation:MinProperties=1
type Identity struct {
	// assistantName is the name the assistant goes by, at most 128 characters. Default: the name of the Agent.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	AssistantName string `json:"assistantName,omitempty"`

	// systemPrompt says who the assistant is and what it must always do, at most 65536 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	SystemPrompt string `json:"systemPrompt,omitempty"`

	// developerPrompt follows the system prompt, at most 65536 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	DeveloperPrompt string `json:"developerPrompt,omitempty"`

	// traits of the assistant, from which its expression follows.
	// +optional
	Traits *Traits `json:"traits,omitempty"`
}

// Voice is how an assistant puts things.
// +kubebuilder:validation:Enum=Concise;Balanced;Verbose;Conversational;Formal;Technical
type Voice string

// The voices.
const (
	VoiceConcise        Voice = "Concise"
	VoiceBalanced       Voice = "Balanced"
	VoiceVerbose        Voice = "Verbose"
	VoiceConversational Voice = "Conversational"
	VoiceFormal         Voice = "Formal"
	VoiceTechnical      Voice = "Technical"
)

// Formality is how formal an assistant is.
// +kubebuilder:validation:Enum=Formal;Professional;Academic;Casual;Friendly
type Formality string

// The steps of formality.
const (
	FormalityFormal       Formality = "Formal"
	FormalityProfessional Formality = "Professional"
	FormalityAcademic     Formality = "Academic"
	FormalityCasual       Formality = "Casual"
	FormalityFriendly     Formality = "Friendly"
)

// RiskPosture is how much an assistant dares.
// +kubebuilder:validation:Enum=Cautious;Moderate;Assertive
type RiskPosture string

// The risk postures.
const (
	RiskCautious  RiskPosture = "Cautious"
	RiskModerate  RiskPosture = "Moderate"
	RiskAssertive RiskPosture = "Assertive"
)

// Traits of an assistant.
// +kubebuilder:validation:MinProperties=1
type Traits struct {
	// voice is Concise (directness High, explanationDensity Low), Verbose (Low, High), Balanced (Medium, Medium), or
	// Conversational, Formal or Technical (explanationDensity Medium).
	// +optional
	Voice Voice `json:"voice,omitempty"`

	// formality is Formal, Professional or Academic (warmth Medium, humor Light), Casual (warmth High, humor Normal) or
	// Friendly (warmth High, humor Light).
	// +optional
	Formality Formality `json:"formality,omitempty"`

	// proactivity is Low, Medium or High: the initiative of the expression.
	// +optional
	Proactivity Level `json:"proactivity,omitempty"`

	// riskPosture is Cautious, Moderate or Assertive. It is recorded in the summary of the identity.
	// +optional
	RiskPosture RiskPosture `json:"riskPosture,omitempty"`
}

// Overrides replace texts of Capstan.
// +kubebuilder:validation:MinProperties=1
type Overrides struct {
	// behavior replaces Capstan's own text of the behavior section, at most 32768 characters. The empty text leaves an
	// empty section.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Behavior *string `json:"behavior,omitempty"`

	// tools replaces the whole text of the tools section, at most 32768 characters. The tools stay what they are.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Tools *string `json:"tools,omitempty"`
}

// PromptProfileStatus is what became of a profile when it was rendered.
type PromptProfileStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of; -1 before anybody has looked.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the profile. Ready is True when it renders; Stalled is True, and otherwise absent, when nothing
	// but another text can make it; a ConfigMap that is missing may still come.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedVersion is the spec.version that rendered last.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ObservedVersion string `json:"observedVersion,omitempty"`

	// renderHash is the SHA-256, in hexadecimal, of the stable part that this profile renders to with its defaults,
	// its variables' names as values of the required ones, and an Agent of the name "sample".
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RenderHash string `json:"renderHash,omitempty"`

	// stableChars is the length of the stable part of that rendering, in Unicode code points.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StableChars int64 `json:"stableChars,omitempty"`

	// dynamicChars is the length of the dynamic part of that rendering, in Unicode code points.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DynamicChars int64 `json:"dynamicChars,omitempty"`

	// sections of that rendering, in their order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Sections []string `json:"sections,omitempty"`
}

// PromptProfile is what the prompt of an Agent says: a versioned text, shipped by its authors like any other code.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pp,categories=capstan
// +kubebuilder:printcolumn:name="ID",type=string,JSONPath=`.spec.id`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Hash",type=string,priority=1,JSONPath=`.status.renderHash`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PromptProfile struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the prompt as its authors wrote it.
	// +required
	Spec PromptProfileSpec `json:"spec"`

	// status is what became of the prompt when it was rendered.
	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status PromptProfileStatus `json:"status,omitzero"`
}

// PromptProfileList is a list of PromptProfiles.
// +kubebuilder:object:root=true
type PromptProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []PromptProfile `json:"items"`
}
