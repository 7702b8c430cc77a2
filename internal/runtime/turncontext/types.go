// Package turncontext composes what a profile, a Turn and its conversation say about one answer: who the assistant is, how
// it speaks, which instructions and guardrails hold, and which of the memories and enrichments the model is shown. It
// keeps a record of all of it.
//
// The words of the enumerations are those of the API, so that a prompt, a status and a manifest say the same.
package turncontext

// Level is one of three steps; empty where nobody said.
type Level string

// The levels.
const (
	Low    Level = "Low"
	Medium Level = "Medium"
	High   Level = "High"
)

// Humor is how much of it an answer may have; empty where nobody said.
type Humor string

// The steps of humor.
const (
	HumorOff    Humor = "Off"
	HumorLight  Humor = "Light"
	HumorNormal Humor = "Normal"
)

// The words of traits, guardrails and audiences that the rules of this package know.
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

// Identity is who the assistant is: the floor of a prompt, which no overlay replaces.
type Identity struct {
	// AssistantName is what it goes by; may be empty.
	AssistantName string
	// SystemPrompt and DeveloperPrompt as they were rendered; one of them or both may be blank.
	SystemPrompt, DeveloperPrompt string
	// Traits from which its expression follows.
	Traits Traits
}

// Traits of an assistant; each may be empty.
type Traits struct {
	Voice, Formality string
	Proactivity      Level
	RiskPosture      string
}

// Overlay is an instruction laid over those of a profile.
type Overlay struct {
	ID, Source string
	// Text as it was rendered.
	Text string
	// Priority; Medium if empty.
	Priority Level
}

// Guardrail is a rule that constrains all other instructions.
type Guardrail struct {
	ID, Source string
	// Rule as it was rendered.
	Rule string
	// Priority; Medium if empty.
	Priority Level
	// Kind of the rule; those of tone and sensitivity cap humor.
	Kind string
}

// Layer is what a profile or a Turn says about an answer.
type Layer struct {
	// Mode is what the assistant is doing; may be empty.
	Mode string
	// Overlays and Guardrails in the order in which they were given.
	Overlays   []Overlay
	Guardrails []Guardrail
	// Expression with the fields that were given.
	Expression Expression
	// ResponseStyle with the fields that were given.
	ResponseStyle ResponseStyle
}

// Expression is how an assistant speaks.
type Expression struct {
	Tone               string `json:"tone,omitempty"`
	Directness         Level  `json:"directness,omitempty"`
	Warmth             Level  `json:"warmth,omitempty"`
	Humor              Humor  `json:"humor,omitempty"`
	Initiative         Level  `json:"initiative,omitempty"`
	ExplanationDensity Level  `json:"explanationDensity,omitempty"`
}

// ResponseStyle is what form an answer has; nil where nobody said.
type ResponseStyle struct {
	// PreferMarkdown asks for Markdown, or for plain text.
	PreferMarkdown *bool `json:"preferMarkdown,omitempty"`
	// MaxAnswerChars asks for an answer of at most so many code points; at least 1.
	MaxAnswerChars *int `json:"maxAnswerChars,omitempty"`
}

// Session is what is known of the conversation.
type Session struct {
	// ID and Subject of the conversation, each empty if it has none; other parts of the prompt have them.
	ID                  string   `json:"id,omitempty"`
	Subject             string   `json:"subject,omitempty"`
	State               string   `json:"state,omitempty"`
	Summary             string   `json:"summary,omitempty"`
	UnresolvedQuestions []string `json:"unresolvedQuestions,omitempty"`
	Momentum            Level    `json:"momentum,omitempty"`
}

// Fact is a piece of text the caller knows.
type Fact struct {
	ID     string `json:"id"`
	Text   string `json:"text"`
	Source string `json:"source,omitempty"`
}

// Memory is something that was learned before: a candidate for the prompt.
type Memory struct {
	ID, Text string
	// Scope and Freshness; may be empty.
	Scope, Freshness string
	// Relevance from 0 to 1.
	Relevance float64
}

// Enrichment is what another part of the product found out: a candidate for the prompt.
type Enrichment struct {
	ID         string `json:"id"`
	Kind       string `json:"kind,omitempty"`
	Source     string `json:"source,omitempty"`
	Title      string `json:"title,omitempty"`
	Content    string `json:"content"`
	Importance Level  `json:"importance,omitempty"`
	// Audience decides whether the model is shown it at all.
	Audience string `json:"audience,omitempty"`
}
