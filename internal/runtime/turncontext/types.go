// Package turncontext composes the context of one answer from a profile, a Turn and its conversation: the identity
// and expression of the assistant, the instructions and guardrails, and the memories and enrichments that the model
// receives. It also returns a record of the whole composition.
//
// The enumerations have the values of the API, so that a prompt, a status and a manifest use the same words.
package turncontext

// Level is one of three levels, or empty if none was given.
type Level string

// The levels.
const (
	Low    Level = "Low"
	Medium Level = "Medium"
	High   Level = "High"
)

// Humor is the amount of humor in an answer, or empty if none was given.
type Humor string

// The values of Humor.
const (
	HumorOff    Humor = "Off"
	HumorLight  Humor = "Light"
	HumorNormal Humor = "Normal"
)

// The values of traits, guardrails and audiences that the rules of this package use.
const (
	VoiceConcise  = "Concise"
	VoiceVerbose  = "Verbose"
	VoiceBalanced = "Balanced"

	FormalityFormal       = "Formal"
	FormalityProfessional = "Professional"
	FormalityAcademic     = "Academic"
	FormalityCasual       = "Casual"
	FormalityFriendly     = "Friendly"

	GuardrailTone        = "ToneConstraint"
	GuardrailSensitivity = "SensitivityConstraint"

	AudienceProduct = "Product"
)

// Identity is the identity of the assistant. It is the base of a prompt, and no overlay replaces it.
type Identity struct {
	// AssistantName is the name of the assistant. It may be empty.
	AssistantName string
	// SystemPrompt and DeveloperPrompt are rendered texts. Each may be blank.
	SystemPrompt, DeveloperPrompt string
	// Traits determine the initial expression of the assistant.
	Traits Traits
}

// Traits are the traits of an assistant. Each may be empty.
type Traits struct {
	Voice, Formality string
	Proactivity      Level
	RiskPosture      string
}

// Overlay is an instruction that is added to the instructions of a profile.
type Overlay struct {
	ID, Source string
	// Text is the rendered text.
	Text string
	// Priority is Medium if it is empty.
	Priority Level
}

// Guardrail is a rule that constrains all other instructions.
type Guardrail struct {
	ID, Source string
	// Rule is the rendered text of the rule.
	Rule string
	// Priority is Medium if it is empty.
	Priority Level
	// Kind is the kind of the rule. Rules of the kinds tone and sensitivity limit humor.
	Kind string
}

// Layer is the shaping that a profile or a Turn gives for an answer.
type Layer struct {
	// Mode is the current activity of the assistant. It may be empty.
	Mode string
	// Overlays and Guardrails are in the given order.
	Overlays   []Overlay
	Guardrails []Guardrail
	// Expression has only the fields that were given.
	Expression Expression
	// ResponseStyle has only the fields that were given.
	ResponseStyle ResponseStyle
}

// Expression is the way in which the assistant speaks.
type Expression struct {
	Tone               string `json:"tone,omitempty"`
	Directness         Level  `json:"directness,omitempty"`
	Warmth             Level  `json:"warmth,omitempty"`
	Humor              Humor  `json:"humor,omitempty"`
	Initiative         Level  `json:"initiative,omitempty"`
	ExplanationDensity Level  `json:"explanationDensity,omitempty"`
}

// ResponseStyle is the requested form of the answer. A nil field was not given.
type ResponseStyle struct {
	// PreferMarkdown asks for Markdown if it is true, and for plain text if it is false.
	PreferMarkdown *bool `json:"preferMarkdown,omitempty"`
	// MaxAnswerChars asks for an answer of at most this many code points. It is at least 1.
	MaxAnswerChars *int `json:"maxAnswerChars,omitempty"`
}

// Session describes the conversation.
type Session struct {
	// ID and Subject may be empty. Other parts of the prompt contain them.
	ID                  string   `json:"id,omitempty"`
	Subject             string   `json:"subject,omitempty"`
	State               string   `json:"state,omitempty"`
	Summary             string   `json:"summary,omitempty"`
	UnresolvedQuestions []string `json:"unresolvedQuestions,omitempty"`
	Momentum            Level    `json:"momentum,omitempty"`
}

// Fact is a text that the caller gives to the model as data.
type Fact struct {
	ID     string `json:"id"`
	Text   string `json:"text"`
	Source string `json:"source,omitempty"`
}

// Memory is a text that the caller or Capstan has kept from earlier requests. It is a candidate for the prompt.
type Memory struct {
	ID, Text string
	// Scope and Freshness may be empty.
	Scope, Freshness string
	// Relevance is from 0 to 1.
	Relevance float64
	// Learned is true if Capstan has learned the text from an earlier Turn, so it is not trusted.
	Learned bool `json:",omitempty"`
}

// Enrichment is a result of another part of the application. It is a candidate for the prompt.
type Enrichment struct {
	ID         string `json:"id"`
	Kind       string `json:"kind,omitempty"`
	Source     string `json:"source,omitempty"`
	Title      string `json:"title,omitempty"`
	Content    string `json:"content"`
	Importance Level  `json:"importance,omitempty"`
	// Audience decides whether the model receives the enrichment at all.
	Audience string `json:"audience,omitempty"`
}
