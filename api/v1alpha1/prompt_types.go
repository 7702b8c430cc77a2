package v1alpha1

// PromptMode selects the sections of a system prompt, and the role in which it addresses the model.
// +kubebuilder:validation:Enum=Full;Minimal;Task;None
type PromptMode string

const (
	// PromptModeFull has all sections but sub_agent. It addresses an assistant in a conversation.
	PromptModeFull PromptMode = "Full"
	// PromptModeMinimal has the sections that a sub-agent needs: no skills, no subject and no live context.
	PromptModeMinimal PromptMode = "Minimal"
	// PromptModeTask has the sections of Full. It addresses an agent that carries out a task and asks the user no
	// questions.
	PromptModeTask PromptMode = "Task"
	// PromptModeNone has no sections. The prompt is one fixed line and the guardrails of the profile.
	PromptModeNone PromptMode = "None"
)

// Level is Low, Medium or High.
// +kubebuilder:validation:Enum=Low;Medium;High
type Level string

// The levels, lowest first.
const (
	LevelLow    Level = "Low"
	LevelMedium Level = "Medium"
	LevelHigh   Level = "High"
)

// Humor is how much humor an answer may have.
// +kubebuilder:validation:Enum=Off;Light;Normal
type Humor string

// The levels of humor, lowest first.
const (
	HumorOff    Humor = "Off"
	HumorLight  Humor = "Light"
	HumorNormal Humor = "Normal"
)

// Overlay is an instruction that is added to those of the profile.
type Overlay struct {
	// id is the ID of the overlay, unique in its list, 1 to 64 characters. The status of a Turn lists the IDs of the
	// overlays in its prompt.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// source says where the overlay comes from, such as product, in at most 256 characters. It is recorded and is not
	// part of the prompt.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Source string `json:"source,omitempty"`

	// text is the instruction, 1 to 8192 characters. An overlay whose text is blank after rendering is omitted.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="text must not contain the character U+0000"
	Text string `json:"text"`

	// priority is Low, Medium (the default) or High. The prompt lists the overlays with priority High first, then those
	// with Medium, and then those with Low.
	// +optional
	// +kubebuilder:default=Medium
	Priority Level `json:"priority,omitempty"`
}

// GuardrailKind is the subject of a guardrail.
// +kubebuilder:validation:Enum=ToneConstraint;SensitivityConstraint;TruthfulnessConstraint;ChannelConstraint;IdentityPreservation;Other
type GuardrailKind string

const (
	// GuardrailTone constrains the tone. It also limits shaping.expression.humor.
	GuardrailTone GuardrailKind = "ToneConstraint"
	// GuardrailSensitivity concerns delicate subjects. It also limits shaping.expression.humor.
	GuardrailSensitivity GuardrailKind = "SensitivityConstraint"
	// GuardrailTruthfulness concerns the truth of statements.
	GuardrailTruthfulness GuardrailKind = "TruthfulnessConstraint"
	// GuardrailChannel concerns the channel of the answer.
	GuardrailChannel GuardrailKind = "ChannelConstraint"
	// GuardrailIdentity protects the identity of the assistant.
	GuardrailIdentity GuardrailKind = "IdentityPreservation"
	// GuardrailOther is any other guardrail.
	GuardrailOther GuardrailKind = "Other"
)

// Guardrail is a rule that constrains all other instructions.
type Guardrail struct {
	// id is the ID of the guardrail, unique in its list, 1 to 64 characters. The status of a Turn lists the IDs of the
	// guardrails in its prompt.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// source says where the guardrail comes from, such as workspace, in at most 256 characters. It is recorded and is
	// not part of the prompt.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Source string `json:"source,omitempty"`

	// rule is the text of the rule, 1 to 8192 characters. A guardrail whose rule is blank after rendering is omitted.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="rule must not contain the character U+0000"
	Rule string `json:"rule"`

	// priority is Low, Medium (the default) or High. The prompt lists the guardrails with priority High first, then
	// those with Medium, and then those with Low.
	// +optional
	// +kubebuilder:default=Medium
	Priority Level `json:"priority,omitempty"`

	// kind is the subject of the rule. ToneConstraint and SensitivityConstraint limit shaping.expression.humor: to Off
	// if the priority is High, and to Light otherwise. TruthfulnessConstraint, ChannelConstraint, IdentityPreservation
	// and Other (the default) do not limit the humor.
	// +optional
	// +kubebuilder:default=Other
	Kind GuardrailKind `json:"kind,omitempty"`
}

// Shaping says how the assistant should answer.
// +kubebuilder:validation:MinProperties=1
type Shaping struct {
	// mode is the current activity of the assistant, such as review, as one line of at most 128 characters. If the
	// Agent's contributionTrust is Trusted, the Turn's mode replaces the profile's mode. Otherwise the model receives
	// both modes, and the Turn's mode is a wish: data that does not instruct the model.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Mode string `json:"mode,omitempty"`

	// overlays are 1 to 32 additional instructions. The prompt lists them in the order of their priority. Among
	// overlays of the same priority, the profile's overlays come before the Turn's. Unless the Agent's
	// contributionTrust is Trusted, the Turn's overlays are wishes: data that does not instruct the model.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Overlays []Overlay `json:"overlays,omitempty"`

	// expression says how the assistant speaks. Each field that the Turn sets replaces the profile's field. A field
	// that neither the Turn nor the profile sets has a default, which follows from the traits of the identity.
	// +optional
	Expression *Expression `json:"expression,omitempty"`

	// responseStyle is the form of the answer. Each field that the Turn sets replaces the profile's field.
	// +optional
	ResponseStyle *ResponseStyle `json:"responseStyle,omitempty"`
}

// Expression is the way in which the assistant speaks.
// +kubebuilder:validation:MinProperties=1
type Expression struct {
	// tone is the tone, such as dry, at most 128 characters. Unless the Agent's contributionTrust is Trusted, a Turn's
	// tone is a wish: data that does not instruct the model.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Tone string `json:"tone,omitempty"`

	// directness is how directly the assistant speaks: Low, Medium or High. Default: Medium, unless the traits set it.
	// +optional
	Directness Level `json:"directness,omitempty"`

	// warmth is how warmly the assistant speaks: Low, Medium or High. Default: Medium, unless the traits set it.
	// +optional
	Warmth Level `json:"warmth,omitempty"`

	// humor is how much humor an answer may have: Off, Light or Normal. In YAML, write "Off" in quotes. Default: Light,
	// unless the traits set it.
	// +optional
	Humor Humor `json:"humor,omitempty"`

	// initiative is how far the assistant acts without being asked: Low, Medium or High. Default: Medium, unless the
	// traits set it.
	// +optional
	Initiative Level `json:"initiative,omitempty"`

	// explanationDensity is how much the assistant explains: Low, Medium or High. Default: Medium, unless the traits
	// set it.
	// +optional
	ExplanationDensity Level `json:"explanationDensity,omitempty"`
}

// ResponseStyle is the form of an answer.
// +kubebuilder:validation:MinProperties=1
type ResponseStyle struct {
	// preferMarkdown asks the model for Markdown if true, and for plain text if false.
	// +optional
	PreferMarkdown *bool `json:"preferMarkdown,omitempty"`

	// maxAnswerChars asks the model for an answer of at most this many characters, from 1 to 1000000. It is not
	// enforced.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxAnswerChars *int32 `json:"maxAnswerChars,omitempty"`
}

// ConfigMapKeyReference names one key of a ConfigMap in the same namespace.
type ConfigMapKeyReference struct {
	// name is the name of the ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",
	// + message="name must be a lower-case DNS name: letters, digits, '-' and '.', starting and ending with a letter or
	// +  digit"
	Name string `json:"name"`

	// key is the key within the ConfigMap's data. The key of an attachment may also be within binaryData.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[-._a-zA-Z0-9]+$")`,
	// + message="key must consist of letters, digits, '-', '_' and '.'"
	Key string `json:"key"`
}

// Contribution is a text for the section live_context of the prompt: data for the model, never instructions.
// +kubebuilder:validation:XValidation:rule="has(self.text) != has(self.configMapKeyRef)",
// + message="exactly one of text and configMapKeyRef must be given"
type Contribution struct {
	// name is the name of the contribution and its heading in the prompt, unique in its list, 1 to 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// text is the text of the contribution, at most 65536 characters. Exactly one of text and configMapKeyRef must
	// be given.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Text *string `json:"text,omitempty"`

	// configMapKeyRef names the ConfigMap key with the text, which may have at most 65536 characters. The key is read
	// when the prompt of a Turn is made.
	// +optional
	ConfigMapKeyRef *ConfigMapKeyReference `json:"configMapKeyRef,omitempty"`

	// trust says how the prompt introduces the text. Untrusted (the default): as text from outside. Trusted: as
	// information that the model may rely on. In both cases the text cannot instruct the model. In a Turn, Trusted is
	// allowed only if the Agent's contributionTrust is Trusted.
	// +optional
	// +kubebuilder:default=Untrusted
	Trust Trust `json:"trust,omitempty"`

	// maxChars is the maximum number of characters of the text that the prompt contains, from 1 to 100000. Default
	// 20000. A text has at most 65536 characters, so a higher value has no further effect. If characters are omitted,
	// the prompt states how many.
	// +optional
	// +kubebuilder:default=20000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxChars *int32 `json:"maxChars,omitempty"`
}
