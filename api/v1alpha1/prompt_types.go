package v1alpha1

// PromptMode is which sections a system prompt has, and in which voice it speaks.
// +kubebuilder:validation:Enum=Full;Minimal;Task;None
type PromptMode string

const (
	// PromptModeFull has all sections but sub_agent; it speaks to an assistant in a conversation.
	PromptModeFull PromptMode = "Full"
	// PromptModeMinimal has what a sub-agent needs: no skills, no subject and no live context.
	PromptModeMinimal PromptMode = "Minimal"
	// PromptModeTask has the sections of Full; it speaks to an agent that works on a task and asks nothing back.
	PromptModeTask PromptMode = "Task"
	// PromptModeNone has no section: the prompt is one fixed line, and the guardrails of the profile.
	PromptModeNone PromptMode = "None"
)

// Level is one of three steps.
// +kubebuilder:validation:Enum=Low;Medium;High
type Level string

// The levels, lowest first.
const (
	LevelLow    Level = "Low"
	LevelMedium Level = "Medium"
	LevelHigh   Level = "High"
)

// Humor is how much of it an answer may have.
// +kubebuilder:validation:Enum=Off;Light;Normal
type Humor string

// The steps of humor, lowest first.
const (
	HumorOff    Humor = "Off"
	HumorLight  Humor = "Light"
	HumorNormal Humor = "Normal"
)

// Overlay is an instruction laid over those of the profile.
type Overlay struct {
	// id of the overlay, unique in its list, 1 to 64 characters. The record of a Turn names it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// source says who asks for it, such as product, at most 256 characters. It is recorded and not part of the prompt.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Source string `json:"source,omitempty"`

	// text of the instruction, 1 to 8192 characters. One that renders blank is left out.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="text must not hold the character U+0000"
	Text string `json:"text"`

	// priority is Low, Medium (the default) or High: higher ones come first.
	// +optional
	// +kubebuilder:default=Medium
	Priority Level `json:"priority,omitempty"`
}

// GuardrailKind is what a guardrail is about.
// +kubebuilder:validation:Enum=ToneConstraint;SensitivityConstraint;TruthfulnessConstraint;ChannelConstraint;IdentityPreservation;Other
type GuardrailKind string

const (
	// GuardrailTone bounds the tone; it caps the humor of the expression.
	GuardrailTone GuardrailKind = "ToneConstraint"
	// GuardrailSensitivity is about delicate subjects; it caps the humor of the expression.
	GuardrailSensitivity GuardrailKind = "SensitivityConstraint"
	// GuardrailTruthfulness is about what may be claimed.
	GuardrailTruthfulness GuardrailKind = "TruthfulnessConstraint"
	// GuardrailChannel is about the channel that the answer goes to.
	GuardrailChannel GuardrailKind = "ChannelConstraint"
	// GuardrailIdentity keeps the assistant what it is.
	GuardrailIdentity GuardrailKind = "IdentityPreservation"
	// GuardrailOther is any other.
	GuardrailOther GuardrailKind = "Other"
)

// Guardrail is a rule that constrains all other instructions.
type Guardrail struct {
	// id of the guardrail, unique in its list, 1 to 64 characters. The record of a Turn names it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// source says who asks for it, such as workspace, at most 256 characters. It is recorded and not part of the prompt.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Source string `json:"source,omitempty"`

	// rule in words, 1 to 8192 characters. One that renders blank is left out.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="rule must not hold the character U+0000"
	Rule string `json:"rule"`

	// priority is Low, Medium (the default) or High: higher ones come first.
	// +optional
	// +kubebuilder:default=Medium
	Priority Level `json:"priority,omitempty"`

	// kind of the rule. ToneConstraint and SensitivityConstraint cap humor: to Off at priority High, else to Light.
	// TruthfulnessConstraint, ChannelConstraint, IdentityPreservation and Other (the default) do not.
	// +optional
	// +kubebuilder:default=Other
	Kind GuardrailKind `json:"kind,omitempty"`
}

// Shaping says how an answer should be.
// +kubebuilder:validation:MinProperties=1
type Shaping struct {
	// mode is what the assistant is doing, such as review, as one line of at most 128 characters. The Turn's replaces the
	// profile's if the Agent's contributionTrust is Trusted, and is a wish beside it otherwise.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Mode string `json:"mode,omitempty"`

	// overlays are instructions, 1 to 32, sorted by priority. The profile's come before the Turn's, which are wishes unless the
	// Agent's contributionTrust is Trusted.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Overlays []Overlay `json:"overlays,omitempty"`

	// expression says how the assistant speaks. Each field that the Turn gives replaces the profile's, and both replace
	// what follows from the identity's traits.
	// +optional
	Expression *Expression `json:"expression,omitempty"`

	// responseStyle says what form the answer has. Each field that the Turn gives replaces the profile's.
	// +optional
	ResponseStyle *ResponseStyle `json:"responseStyle,omitempty"`
}

// Expression is how an assistant speaks.
// +kubebuilder:validation:MinProperties=1
type Expression struct {
	// tone in words, such as dry, at most 128 characters. That of a Turn is a wish unless the Agent's contributionTrust is Trusted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Tone string `json:"tone,omitempty"`

	// directness is Low, Medium or High; Medium where nothing says otherwise.
	// +optional
	Directness Level `json:"directness,omitempty"`

	// warmth is Low, Medium or High; Medium where nothing says otherwise.
	// +optional
	Warmth Level `json:"warmth,omitempty"`

	// humor is Off (in YAML "Off", in quotes), Light or Normal; Light where nothing says otherwise.
	// +optional
	Humor Humor `json:"humor,omitempty"`

	// initiative is Low, Medium or High; Medium where nothing says otherwise.
	// +optional
	Initiative Level `json:"initiative,omitempty"`

	// explanationDensity is Low, Medium or High; Medium where nothing says otherwise.
	// +optional
	ExplanationDensity Level `json:"explanationDensity,omitempty"`
}

// ResponseStyle is what form an answer has.
// +kubebuilder:validation:MinProperties=1
type ResponseStyle struct {
	// preferMarkdown asks for Markdown if true, for plain text if false.
	// +optional
	PreferMarkdown *bool `json:"preferMarkdown,omitempty"`

	// maxAnswerChars asks for an answer of at most so many characters, from 1 to 1000000. It is asked of the model and
	// not enforced.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxAnswerChars *int32 `json:"maxAnswerChars,omitempty"`
}

// ConfigMapKeyReference names one key of a ConfigMap in the same namespace.
type ConfigMapKeyReference struct {
	// name of the ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be a lower-case DNS name: letters, digits, '-' and '.', starting and ending with a letter or digit"
	Name string `json:"name"`

	// key within the ConfigMap's data whose value is used.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[-._a-zA-Z0-9]+$")`,message="key must consist of letters, digits, '-', '_' and '.'"
	Key string `json:"key"`
}

// Contribution is a text that the model gets as live context: data, never instructions.
// +kubebuilder:validation:XValidation:rule="has(self.text) != has(self.configMapKeyRef)",message="exactly one of text and configMapKeyRef must be given"
type Contribution struct {
	// name of the contribution, its heading in the prompt, unique in its list, 1 to 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// text of the contribution, at most 65536 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Text *string `json:"text,omitempty"`

	// configMapKeyRef names the key of a ConfigMap that holds the text. It is read when a Turn is prepared.
	// +optional
	ConfigMapKeyRef *ConfigMapKeyReference `json:"configMapKeyRef,omitempty"`

	// trust says what the model is told of the text. Untrusted (the default): it came from outside. Trusted: it may be
	// relied on. Neither can instruct the model. A Turn's own may be Trusted only if the Agent's contributionTrust says so.
	// +optional
	// +kubebuilder:default=Untrusted
	Trust Trust `json:"trust,omitempty"`

	// maxChars is how many characters of the text are used, from 1 to 100000. Default 20000. The model is told how many
	// were left out.
	// +optional
	// +kubebuilder:default=20000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxChars *int32 `json:"maxChars,omitempty"`
}
