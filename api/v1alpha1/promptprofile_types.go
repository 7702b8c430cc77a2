package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Trust says whether a text may instruct the model.
// +kubebuilder:validation:Enum=Trusted;Untrusted
type Trust string

const (
	// TrustTrusted text is inserted unchanged, as if the author of the profile had written it. A trusted contribution
	// is still fenced as data.
	TrustTrusted Trust = "Trusted"
	// TrustUntrusted text is escaped and fenced, so that the model treats it as data.
	TrustUntrusted Trust = "Untrusted"
)

// PromptProfileSpec defines the text of a prompt. Its texts may use Go templates with the declared variables ({{
// .userName }}) and with {{ .Agent.Name }}, {{ .Agent.Description }}, {{ .Turn.Name }} and {{ .Turn.Namespace }}.
// If the Turn belongs to a conversation ({{ if .Session }}), they may also use {{ .Session.Name }}.
// +kubebuilder:validation:XValidation:rule="has(self.instructionsFrom) || (has(self.identity)
// +  && (has(self.identity.systemPromptFrom) || (has(self.identity.systemPrompt)
// +  && self.identity.systemPrompt.matches(r'[^\\pZ\\p{Cc}\\p{Cf}]')) || (has(self.identity.developerPrompt)
// +  && self.identity.developerPrompt.matches(r'[^\\pZ\\p{Cc}\\p{Cf}]')))) || (has(self.instructions)
// +  && self.instructions.matches(r'[^\\pZ\\p{Cc}\\p{Cf}]'))",
// + message="at least one of identity.systemPrompt, identity.developerPrompt and instructions must be given and not
// +  blank"
// +kubebuilder:validation:XValidation:rule="!has(self.instructions) || !has(self.instructionsFrom)",
// + message="instructionsFrom must be absent if instructions are given",fieldPath=".instructionsFrom"
type PromptProfileSpec struct {
	// allowedNamespaces says which other namespaces may use the profile in their Agents. Texts from ConfigMaps are read
	// in the namespace of the profile. Default: none. If a namespace is no longer allowed, that takes effect when the
	// next prompt is made.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`

	// id is the name of the logical prompt, such as agent.profile.default; 1 to 128 letters, digits, '.', '_', '-'
	// and '/'. It stays the same across versions.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$")`,
	// + message="id must consist of letters, digits, '.', '_', '-' and '/', starting and ending with a letter or digit"
	ID string `json:"id"`

	// version is the semantic version of the prompt, such as 1.4.0 or 2.0.0-rc.1, at most 64 characters. It is
	// recorded with every Turn.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-(0|
	// + [1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|
	// + [0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$")`,
	// + message="version must be a semantic version, such as 1.4.0 or 2.0.0-rc.1"
	Version string `json:"version"`

	// tags are words by which people and tools find the prompt, at most 16, each of at most 63 characters. They are
	// recorded in the journal.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Tags []string `json:"tags,omitempty"`

	// variables are the variables that texts of this profile and instructions of its Agents may use, at most 32. A text
	// that uses any other variable is invalid.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Variables []Variable `json:"variables,omitempty"`

	// mode selects the sections of the prompt. Full: all sections except sub_agent, for a conversation. Task: the same
	// sections, for a task that is done without questions to the user. Minimal: the sections that a sub-agent needs.
	// None: no sections, only one fixed line and the guardrails of this profile. The promptMode of a Turn overrides
	// this field. Default: Minimal for a sub-agent, Full otherwise.
	// +optional
	Mode PromptMode `json:"mode,omitempty"`

	// identity says who the assistant is. Its prompts are the first texts of the section instructions. A Turn cannot
	// replace them.
	// +optional
	Identity *Identity `json:"identity,omitempty"`

	// instructions are the instructions of the profile, at most 65536 characters. In the section instructions, they
	// follow the prompts of the identity.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Instructions string `json:"instructions,omitempty"`

	// instructionsFrom refers to the text of the instructions, which may have at most 65536 characters. At most one of
	// instructions and instructionsFrom may be given.
	// +optional
	InstructionsFrom *ContentSource `json:"instructionsFrom,omitempty"`

	// sections are the names of the sections of the prompt, in order, at most 16. They replace the sections of the
	// mode. An empty list removes all sections: stablePrefix, the guardrails and dynamicSuffix remain. The names are
	// agent, sub_agent, instructions, behavior, loaded_skills, available_skills, tools, turn_instructions, subject,
	// live_context and environment. A profile with an unknown or repeated name is not Ready. With the mode None, the
	// prompt has no sections, whatever this field says.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Sections []string `json:"sections,omitzero"`

	// overrides replace texts that Capstan provides.
	// +optional
	Overrides *Overrides `json:"overrides,omitempty"`

	// forModels are texts for some models, at most 8 entries. For each model, only the first entry that selects it
	// applies. Its overrides replace those of the profile, text by text. Its contributions follow those of the profile.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	ForModels []ModelTexts `json:"forModels,omitempty"`

	// stablePrefix is a text before all sections, at most 32768 characters. It is in the stable part of the prompt,
	// which providers can cache. The mode None omits it.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	StablePrefix string `json:"stablePrefix,omitempty"`

	// dynamicSuffix is a text after all sections, at most 32768 characters. It is in the dynamic part of the prompt.
	// The mode None omits it.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	DynamicSuffix string `json:"dynamicSuffix,omitempty"`

	// overlays are additional instructions, at most 32. The section turn_instructions has them in the order of their
	// priority, together with the overlays of shaping, and with those of the Turn if the Agent's contributionTrust is
	// Trusted. Among overlays of the same priority, those in this field come first.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=32
	Overlays []Overlay `json:"overlays,omitempty"`

	// guardrails are rules that constrain all other instructions, at most 32. They are in every prompt, whatever mode
	// and sections say. The prompt has them in the order of their priority, together with the guardrails of the Turn if
	// the Agent's contributionTrust is Trusted. Among guardrails of the same priority, those in this field come first.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=32
	Guardrails []Guardrail `json:"guardrails,omitempty"`

	// shaping says how the assistant should answer. A Turn can set its own shaping, which adds to this shaping or
	// replaces it, as each field describes.
	// +optional
	Shaping *Shaping `json:"shaping,omitempty"`

	// pinnedTools are the names of tools that are selected before all other tools, at most 32. They matter if the Agent
	// has more tools than toolPolicy.maxToolsPerTurn.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	PinnedTools []string `json:"pinnedTools,omitempty"`

	// skills are texts that each explain how to do one thing, at most 32. An Agent selects skills by their keys. It
	// either loads a skill into its prompt, or makes the skill available to the model.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MaxItems=32
	Skills []Skill `json:"skills,omitempty"`

	// contributions are texts for the section live_context, at most 16. They come before the contributions of the Agent
	// and those of the Turn.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Contributions []Contribution `json:"contributions,omitempty"`

	// outputPolicy are rules that an answer must follow before it is delivered, at most 8. A policy is an expression,
	// which Capstan evaluates, or a prompt, which a model checks. Expressions are evaluated first. If an answer
	// violates an expression with onViolation Fail or Retry, no model is asked about it.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	OutputPolicy []OutputPolicy `json:"outputPolicy,omitempty"`

	// judges give scores to answers, at most 4. A judge asks a model after the Turn has ended, and cannot change the
	// answer or the Turn. capstan eval asks the judges of a profile about each case.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=4
	Judges []Judge `json:"judges,omitempty"`
}

// JudgeType says what a judge decides.
// +kubebuilder:validation:Enum=Faithfulness;Relevance;Custom
type JudgeType string

const (
	// JudgeFaithfulness scores the share of statements that the conversation, the context and the tool results support.
	JudgeFaithfulness JudgeType = "Faithfulness"
	// JudgeRelevance scores how well the answer responds to the message of the user.
	JudgeRelevance JudgeType = "Relevance"
	// JudgeCustom scores how well the answer meets the criterion in prompt.
	JudgeCustom JudgeType = "Custom"
)

// Judge makes a model give a score to answers.
// +kubebuilder:validation:XValidation:rule="has(self.prompt) == (self.type == 'Custom')",
// + message="prompt must be given if type is Custom, and only then"
type Judge struct {
	// name identifies the judge, 1 to 63 letters, digits, '_' and '-'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$")`,
	// + message="name must consist of letters, digits, '_' and '-', starting and ending with a letter or digit"
	Name string `json:"name"`

	// type says what the judge decides. Faithfulness: the share of statements in the answer that the conversation, the
	// context and the tool results support. Relevance: how well the answer responds to the message of the user. Custom:
	// how well the answer meets the criterion in prompt.
	// +required
	Type JudgeType `json:"type"`

	// prompt is the criterion of a Custom judge in words, 1 to 4096 characters. It is not a template.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Prompt string `json:"prompt,omitempty"`

	// modelRef is the model to ask, of any ModelProvider in the namespace of the Agent. In a cluster, the judge asks
	// this model only if spec.evaluation of the Agent allows it; otherwise modelRef is ignored. Default: the models of
	// the Agent, in order, with their parameters. In a cluster, the default is spec.evaluation.models of the Agent, if
	// that field is set.
	// +optional
	ModelRef *JudgeModelReference `json:"modelRef,omitempty"`

	// threshold is the lowest score of an answer that passes: a decimal from "0" to "1" with at most 2 decimals.
	// +optional
	// +kubebuilder:default="0.7"
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^(0(\.[0-9]{1,2})?|1(\.0{1,2})?)$")`,
	// + message="threshold must be a decimal from 0 to 1 with at most 2 decimals, such as 0.75"
	Threshold string `json:"threshold,omitempty"`
}

// JudgeModelReference names the model that a judge asks.
type JudgeModelReference struct {
	// providerRef names the ModelProvider that serves the model. It is in the namespace of the Agent.
	// +required
	ProviderRef ObjectReference `json:"providerRef"`

	// model is the name of the model as the provider knows it, 1 to 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model"`
}

// DefaultJudgeThreshold is the default of threshold of a judge.
const DefaultJudgeThreshold = "0.7"

// ViolationAction says what follows if an answer violates a policy.
// +kubebuilder:validation:Enum=Fail;Report;Retry
type ViolationAction string

const (
	// ViolationFail ends the Turn with reason PolicyViolated and without an answer.
	ViolationFail ViolationAction = "Fail"
	// ViolationReport delivers the answer and records the violation in the Turn's status.
	ViolationReport ViolationAction = "Report"
	// ViolationRetry sends the violation to the model, which answers again.
	ViolationRetry ViolationAction = "Retry"
)

// OutputPolicy is a rule that an answer must follow.
// +kubebuilder:validation:XValidation:rule="has(self.expression) != has(self.prompt)",
// + message="exactly one of expression and prompt must be given"
// +kubebuilder:validation:XValidation:rule="!has(self.maxRetries) || self.onViolation == 'Retry'",
// + message="maxRetries must only be given if onViolation is Retry"
type OutputPolicy struct {
	// name identifies the policy in status and journal, 1 to 63 letters, digits, '_' and '-'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$")`,
	// + message="name must consist of letters, digits, '_' and '-', starting and ending with a letter or digit"
	Name string `json:"name"`

	// expression is a CEL expression over output that must be true, 1 to 2048 characters. The variable output has the
	// fields text, data (null unless the answer is structured), usage and citations. An expression that cannot be
	// evaluated for an answer counts as violated. Exactly one of expression and prompt must be given.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Expression string `json:"expression,omitempty"`

	// prompt is a rule in words, 1 to 4096 characters. It is not a template. A model says whether the answer violates
	// the rule: the model that answered or, if it fails, the next model of the Agent. The request counts in the usage
	// and the budget of the Turn.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Prompt string `json:"prompt,omitempty"`

	// message says in words what the policy demands, at most 512 characters. It is part of the status message of a Turn
	// that fails because of the policy, and the model receives it with onViolation Retry. Default: the prompt or the
	// expression.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`

	// onViolation says what follows a violation. Fail: the Turn ends with reason PolicyViolated and without an answer.
	// Report: the answer is delivered, and status.policyViolations of the Turn has the violation. Retry: the model
	// receives the violation and answers again, at most maxRetries times; after that, the same as Fail.
	// +optional
	// +kubebuilder:default=Fail
	OnViolation ViolationAction `json:"onViolation,omitempty"`

	// maxRetries is the number of answers that may be sent back to the model before a violation of this policy ends the
	// Turn, from 1 to 5. Answers that were sent back because of other policies count, too. It must only be given if
	// onViolation is Retry. Default 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	MaxRetries *int32 `json:"maxRetries,omitempty"`
}

// DefaultPolicyRetries is the default of maxRetries of an output policy.
const DefaultPolicyRetries = 2

// Skill is a text that explains how to do one thing.
// +kubebuilder:validation:XValidation:rule="has(self.content) != has(self.contentFrom)",
// + message="exactly one of content and contentFrom must be given"
type Skill struct {
	// key identifies the skill for Agents and models, 1 to 63 letters, digits, '_' and '-'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$")`,
	// + message="key must consist of letters, digits, '_' and '-', starting and ending with a letter or digit"
	Key string `json:"key"`

	// name is the name of the skill for people and models, at most 128 characters. Default: the key.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name,omitempty"`

	// description says when to use the skill, at most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// content is the text of the skill, at most 65536 characters. Exactly one of content and contentFrom must be
	// given.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Content *string `json:"content,omitempty"`

	// contentFrom refers to the text of the skill, which may have at most 65536 characters.
	// +optional
	ContentFrom *ContentSource `json:"contentFrom,omitempty"`
}

// ContentSource refers to a text.
type ContentSource struct {
	// configMapKeyRef names the ConfigMap key with the text.
	// +required
	ConfigMapKeyRef ConfigMapKeyReference `json:"configMapKeyRef"`
}

// Variable is a value that templates may use and that a Turn may set.
// +kubebuilder:validation:XValidation:rule="!(has(self.required) && self.required && has(self.default))",
// + message="default must not be given for a required variable"
type Variable struct {
	// name is the name of the variable in templates, at most 63 characters: a letter, followed by letters, digits and
	// '_'. The names Agent, Turn and Session are reserved.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z][A-Za-z0-9_]*$")`,
	// + message="name must be a letter followed by letters, digits and '_'"
	// +kubebuilder:validation:XValidation:rule="!(self in ['Agent', 'Turn', 'Session'])",
	// + message="name must not be Agent, Turn or Session: these are built in"
	Name string `json:"name"`

	// description is the purpose of the variable, at most 1024 characters. It is not part of a prompt.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// default is the value of the variable if a Turn does not set it, at most 4096 characters. It is inserted
	// unchanged. Without a default, an optional variable that a Turn does not set is empty. A required variable must
	// not have a default.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Default *string `json:"default,omitempty"`

	// required says whether each Turn must set this variable. A Turn that does not set it ends with reason
	// PreparationFailed. Default false.
	// +optional
	Required bool `json:"required,omitempty"`

	// trust says how the values that Turns set are inserted. Untrusted (the default): escaped, and fenced as data.
	// Trusted: unchanged, so that every creator of a Turn can instruct the model.
	// +optional
	// +kubebuilder:default=Untrusted
	Trust Trust `json:"trust,omitempty"`
}

// Identity says who the assistant is.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.systemPrompt) || !has(self.systemPromptFrom)",
// + message="systemPromptFrom must be absent if systemPrompt is given",fieldPath=".systemPromptFrom"
type Identity struct {
	// assistantName is the name of the assistant, at most 128 characters. Default: the name of the Agent.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	AssistantName string `json:"assistantName,omitempty"`

	// systemPrompt describes the assistant and its permanent duties, at most 65536 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	SystemPrompt string `json:"systemPrompt,omitempty"`

	// systemPromptFrom refers to the text of the system prompt, which may have at most 65536 characters. At most one of
	// systemPrompt and systemPromptFrom may be given.
	// +optional
	SystemPromptFrom *ContentSource `json:"systemPromptFrom,omitempty"`

	// developerPrompt is a text that follows the system prompt, at most 65536 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	DeveloperPrompt string `json:"developerPrompt,omitempty"`

	// traits are properties of the assistant. They set defaults for its expression.
	// +optional
	Traits *Traits `json:"traits,omitempty"`
}

// Voice is the way in which an assistant explains.
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

// The kinds of formality.
const (
	FormalityFormal       Formality = "Formal"
	FormalityProfessional Formality = "Professional"
	FormalityAcademic     Formality = "Academic"
	FormalityCasual       Formality = "Casual"
	FormalityFriendly     Formality = "Friendly"
)

// RiskPosture is how much risk an assistant takes.
// +kubebuilder:validation:Enum=Cautious;Moderate;Assertive
type RiskPosture string

// The risk postures.
const (
	RiskCautious  RiskPosture = "Cautious"
	RiskModerate  RiskPosture = "Moderate"
	RiskAssertive RiskPosture = "Assertive"
)

// Traits are properties of an assistant.
// +kubebuilder:validation:MinProperties=1
type Traits struct {
	// voice is the way in which the assistant explains. It sets defaults for the expression. Concise: directness High,
	// explanationDensity Low. Verbose: directness Low, explanationDensity High. Balanced: both Medium. Conversational,
	// Formal and Technical: explanationDensity Medium.
	// +optional
	Voice Voice `json:"voice,omitempty"`

	// formality is how formal the assistant is. It sets defaults for the expression. Formal, Professional and Academic:
	// warmth Medium, humor Light. Casual: warmth High, humor Normal. Friendly: warmth High, humor Light.
	// +optional
	Formality Formality `json:"formality,omitempty"`

	// proactivity is how far the assistant acts without being asked: Low, Medium or High. It sets the default for the
	// initiative of the expression.
	// +optional
	Proactivity Level `json:"proactivity,omitempty"`

	// riskPosture is how much risk the assistant takes: Cautious, Moderate or Assertive. The journal records it. It is
	// not part of the prompt.
	// +optional
	RiskPosture RiskPosture `json:"riskPosture,omitempty"`
}

// Overrides replace texts that Capstan provides.
// +kubebuilder:validation:MinProperties=1
type Overrides struct {
	// behavior replaces the whole text of the section behavior, at most 32768 characters. If it is empty, the section
	// is empty.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Behavior *string `json:"behavior,omitempty"`

	// tools replaces the whole text of the section tools, at most 32768 characters. If it is empty, the section is
	// empty. The model is still offered the same tools.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Tools *string `json:"tools,omitempty"`
}

// ModelTexts are texts for some models, because different models need different texts.
// +kubebuilder:validation:XValidation:rule="has(self.overrides) || has(self.contributions)",
// + message="at least one of overrides and contributions must be given"
type ModelTexts struct {
	// models selects the models that the texts are for, by 1 to 16 patterns of 1 to 512 characters. A pattern is
	// compared with the name of the model, and with PROVIDER:MODEL. '*' matches any characters, and '?' matches one
	// character. Examples: "qwen*", "openrouter:*".
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	Models []string `json:"models"`

	// overrides replace texts that Capstan provides.
	// +optional
	Overrides *Overrides `json:"overrides,omitempty"`

	// contributions are 1 to 16 texts for the section live_context.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Contributions []ModelContribution `json:"contributions,omitempty"`
}

// ModelContribution is a text for the section live_context of the prompts of some models: data for the model, never
// instructions.
type ModelContribution struct {
	// name is the name of the contribution and its heading in the prompt, unique in its list, 1 to 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// text is the text of the contribution, at most 8192 characters.
	// +required
	// +kubebuilder:validation:MaxLength=8192
	Text string `json:"text"`

	// trust says how the prompt introduces the text. Untrusted: as text from outside. Trusted: as information that the
	// model may rely on. In both cases the text cannot instruct the model. Default: Untrusted.
	// +optional
	Trust Trust `json:"trust,omitempty"`
}

// PromptProfileStatus is the result of rendering a profile.
type PromptProfileStatus struct {
	// observedGeneration is the generation of the spec that this status describes. It is -1 before the first
	// reconciliation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the conditions of the profile. Ready is True if the profile renders. Stalled is True if only a
	// change of the profile can make it render. Otherwise, for example if a ConfigMap is missing or its text does not
	// render, Stalled is absent.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",
	// + message="each lastTransitionTime must be a time"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedVersion is the spec.version of the last successful rendering.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ObservedVersion string `json:"observedVersion,omitempty"`

	// renderHash is the SHA-256 of the canonical JSON {"text": ...}, whose text is the stable part of a sample prompt,
	// in hexadecimal. The sample uses the defaults of the variables, the names of required variables as their values,
	// and an Agent with the name "sample".
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RenderHash string `json:"renderHash,omitempty"`

	// stableChars is the length of the stable part of the sample prompt, in Unicode code points.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StableChars int64 `json:"stableChars,omitempty"`

	// dynamicChars is the length of the dynamic part of the sample prompt, in Unicode code points.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DynamicChars int64 `json:"dynamicChars,omitempty"`

	// sections are the names of the sections of the sample prompt, in their order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Sections []string `json:"sections,omitempty"`
}

// PromptProfile is the text of the prompts of Agents, with a version.
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

	// status is the result of rendering the prompt.
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
