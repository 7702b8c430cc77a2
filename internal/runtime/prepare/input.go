package prepare

import (
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// Input is all that goes into the messages.
type Input struct {
	Agent   Agent
	Profile Profile
	Turn    Turn
	// Tools that the model is offered, in their order; load_skill is added where a skill is available, and read_artifact where one
	// is too long for a message.
	Tools []prompt.Tool
	// ManagerSkills are available to every agent, after its own.
	ManagerSkills []Skill
	// Provider and Model the messages are made for.
	Provider, Model string
	// Now is the time the messages speak of, in the agent's time zone.
	Now time.Time
}

// contributions to the live context, in their order.
func (in Input) contributions() []prompt.Contribution {
	return slices.Concat(in.Profile.Contributions, in.Agent.Contributions, in.Turn.Contributions)
}

// Agent is what runs.
type Agent struct {
	// Name of the agent, and Description of what it is for, which may be empty.
	Name, Description string
	// Instructions of its own, a template; may be empty.
	Instructions string
	// Thinking is how long the model should think.
	Thinking prompt.Thinking
	// Loaded and Available are keys of the profile's skills, in their order.
	Loaded, Available []string
	// MaxMemories is how many memories the prompt has at most.
	MaxMemories int
	// Contributions to the live context.
	Contributions []prompt.Contribution
	// AllowsTrusted lets a Turn's own contributions be trusted.
	AllowsTrusted bool
}

// Profile is a prompt profile and the revision it has. Its texts are templates.
type Profile struct {
	// Name of the profile's object, ID of the logical prompt, Version and Generation of this revision.
	Name, ID, Version string
	Generation        int64
	// Tags of the prompt.
	Tags []string
	// Variables that templates may use.
	Variables []Variable
	// Mode of the prompt; may be empty.
	Mode prompt.Mode
	// Identity is who the assistant is; it must not be nil.
	Identity *turncontext.Identity
	// Instructions follow the identity's prompts; may be empty.
	Instructions string
	// Sections asked for; nil stands for those of the mode.
	Sections []string
	// Behavior and ToolsText replace Capstan's own texts if they are not nil.
	Behavior, ToolsText *string
	// StablePrefix and DynamicSuffix stand around the sections; may be empty.
	StablePrefix, DynamicSuffix string
	// Overlays come before those of Shaping; Guardrails are the profile's own, and Shaping has none.
	Overlays   []turncontext.Overlay
	Guardrails []turncontext.Guardrail
	Shaping    turncontext.Layer
	// Skills by which agents may be extended.
	Skills []Skill
	// Contributions to the live context.
	Contributions []prompt.Contribution
}

// Variable is a name that templates may use.
type Variable struct {
	// Name of the variable.
	Name string
	// Default value, inserted as it is.
	Default string
	// Required variables have no default.
	Required bool
	// Trusted variables take the request's value as it is.
	Trusted bool
}

// Skill is a way to do something, written down.
type Skill struct {
	Key, Name, Description string
	// Content is a template.
	Content string
	// From says where the content was read, for messages; empty if it stands in the profile itself.
	From string
}

// Turn is the request. None of its texts is a template.
type Turn struct {
	// Name and Namespace are what templates see as .Turn.
	Name, Namespace string
	// Message of the user.
	Message string
	// Parameters are values of variables.
	Parameters map[string]string
	// MissingTurns is how many earlier Turns of the conversation are not among History because they were lost.
	MissingTurns int64
	// Summary stands for what was said before History; empty for nothing. A model wrote it.
	Summary string
	// History, oldest first.
	History []HistoryMessage
	// Mode of the prompt; may be empty.
	Mode prompt.Mode
	// Depth is how many agents have handed the request on.
	Depth int
	// Shaping comes after the profile's.
	Shaping turncontext.Layer
	// Session is what is known of the conversation; nil if there is none.
	Session *turncontext.Session
	// Facts, Preferences, Memories and Enrichments as they were given.
	Facts       []turncontext.Fact
	Preferences []string
	Memories    []turncontext.Memory
	Enrichments []turncontext.Enrichment
	// Skill is an instruction for this Turn alone; may be empty.
	Skill string
	// Contributions to the live context.
	Contributions []prompt.Contribution
}

// HistoryMessage was said before this request.
type HistoryMessage struct {
	Role    model.Role
	Content string
	// ToolCalls that an assistant's message asked for, and ToolCallID of the one that a tool's message answers.
	ToolCalls  []model.ToolCall
	ToolCallID string
}
