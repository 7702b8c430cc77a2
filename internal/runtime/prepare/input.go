package prepare

import (
	"cmp"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
	"github.com/capstan-dev/capstan/internal/runtime/wildcard"
)

// Input holds everything that determines the messages.
type Input struct {
	Agent   Agent
	Profile Profile
	Turn    Turn
	// Tools are the tools that the model is offered, in order. load_skill is added if the prompt lists an available
	// skill, and read_artifact if a listed skill is too long for a message.
	Tools []prompt.Tool
	// ManagerSkills are available to every agent, after the agent's own skills.
	ManagerSkills []Skill
	// Provider and Model name the provider and the model that the messages are for.
	Provider, Model string
	// Now is the time that the messages mention, in the agent's time zone.
	Now time.Time
}

// Size returns about how many bytes the texts take in memory that belong to this Turn only: those of the Turn, the
// contributions of the Agent and the profile, and their texts in ConfigMaps, because each Turn reads them again. The
// cache shares the others.
func (in *Input) Size() int {
	size := in.Turn.size() + sizeOfContributions(in.Agent.Contributions) + sizeOfContributions(in.Profile.Contributions)
	if in.Agent.InstructionsFrom != "" {
		size += len(in.Agent.Instructions)
	}
	if in.Profile.InstructionsFrom != "" {
		size += len(in.Profile.Instructions)
	}
	if in.Profile.SystemPromptFrom != "" {
		size += len(in.Profile.Identity.SystemPrompt)
	}
	for i := range in.Profile.ForModels {
		size += sizeOfContributions(in.Profile.ForModels[i].Contributions)
	}
	for i := range in.Profile.Skills {
		if s := &in.Profile.Skills[i]; s.From != "" {
			size += len(s.Content)
		}
	}
	return size
}

func sizeOfContributions(all []prompt.Contribution) (size int) {
	for i := range all {
		size += min(len(all[i].Text), untrusted.MaxChars)
	}
	return size
}

// contributions returns the contributions to the live context, in order.
func (in Input) contributions() []prompt.Contribution {
	return slices.Concat(in.Profile.Contributions, in.Agent.Contributions, in.Turn.Contributions)
}

// Agent is the agent that runs.
type Agent struct {
	// Name and Description describe the agent. Description may be empty.
	Name, Description string
	// Instructions are the instructions of the agent, as a template. They may be empty.
	Instructions string
	// InstructionsFrom names the source of the instructions, for error messages. It is empty if the agent itself
	// contains them.
	InstructionsFrom string `json:",omitempty"`
	// Thinking is how long the model should think before it answers.
	Thinking prompt.Thinking
	// Loaded and Available are keys of the profile's skills, in order.
	Loaded, Available []string
	// MaxMemories is the maximum number of memories in the prompt.
	MaxMemories int
	// Contributions are the agent's contributions to the live context.
	Contributions []prompt.Contribution
	// AllowsTrusted is true if the shaping, the guardrails and the skill of a Turn instruct the model, and if
	// contributions of the Turn may be trusted.
	AllowsTrusted bool
}

// Profile is one revision of a prompt profile. Its texts are templates.
type Profile struct {
	// Name is the name of the PromptProfile object, and ID the ID of the logical prompt. Version and Generation
	// identify this revision.
	Name, ID, Version string
	Generation        int64
	// Tags are the tags of the prompt.
	Tags []string
	// Variables are the variables that templates may use.
	Variables []Variable
	// Mode is the mode of the prompt. It may be empty.
	Mode prompt.Mode
	// Identity is the identity of the assistant. It must not be nil.
	Identity *turncontext.Identity
	// Instructions follow the identity's prompts. They may be empty.
	Instructions string
	// InstructionsFrom and SystemPromptFrom name the sources of the instructions and of the identity's system prompt,
	// for error messages. They are empty if the profile itself contains the texts.
	InstructionsFrom, SystemPromptFrom string `json:",omitempty"`
	// Sections are the sections of the prompt. If Sections is nil, the mode decides.
	Sections []string
	// Behavior and ToolsText replace Capstan's own texts if they are not nil.
	Behavior, ToolsText *string
	// ForModels are texts for some models. The first entry that matches a model applies to it.
	ForModels []ModelTexts `json:",omitempty"`
	// StablePrefix precedes the sections, and DynamicSuffix follows them. Both may be empty.
	StablePrefix, DynamicSuffix string
	// Overlays come before the overlays of Shaping. Guardrails are the profile's own; Shaping has none.
	Overlays   []turncontext.Overlay
	Guardrails []turncontext.Guardrail
	Shaping    turncontext.Layer
	// Skills are the skills that agents may use.
	Skills []Skill
	// Contributions are the profile's contributions to the live context.
	Contributions []prompt.Contribution
	// OutputPolicies are the rules that an answer must keep to. They are not part of the prompt.
	OutputPolicies []outputpolicy.Policy `json:",omitempty"`
}

// ModelTexts are texts of a profile for some models.
type ModelTexts struct {
	// Models are patterns for the name of a model, and for PROVIDER:MODEL.
	Models []string
	// Behavior and ToolsText replace those of the profile if they are not nil.
	Behavior, ToolsText *string
	// Contributions follow those of the profile.
	Contributions []prompt.Contribution
}

// forModel returns the profile with its texts for this model.
func (p Profile) forModel(provider, name string) Profile {
	for _, m := range p.ForModels {
		if wildcard.MatchesOne(m.Models, name) || wildcard.MatchesOne(m.Models, provider+":"+name) {
			p.Behavior, p.ToolsText = cmp.Or(m.Behavior, p.Behavior), cmp.Or(m.ToolsText, p.ToolsText)
			p.Contributions = slices.Concat(p.Contributions, m.Contributions)
			break
		}
	}
	return p
}

// Variable is a name that templates may use.
type Variable struct {
	// Name is the name of the variable.
	Name string
	// Default is the default value, which is inserted unchanged.
	Default string
	// Required is true if the request must give a value. A required variable has no default.
	Required bool
	// Trusted is true if the request's value is inserted unchanged, without a fence.
	Trusted bool
}

// Skill is a written procedure.
type Skill struct {
	Key, Name, Description string
	// Content is a template.
	Content string
	// From names the source of the content, for error messages. It is empty if the profile itself contains the
	// content.
	From string
}

// Turn is the request. None of its texts is a template.
type Turn struct {
	// Name and Namespace are the fields of .Turn in templates.
	Name, Namespace string
	// Message is the message of the user.
	Message string
	// Attachments are the attachments of the message, without their contents.
	Attachments []model.Attachment `json:",omitempty"`
	// Parameters are the values of variables.
	Parameters map[string]string
	// MissingTurns is the number of earlier Turns of the conversation that are missing from History because they
	// were lost.
	MissingTurns int64
	// Summary replaces the conversation before History. It is empty if there is none. A model wrote it.
	Summary string
	// History holds the earlier messages, oldest first.
	History []HistoryMessage
	// Mode is the mode of the prompt. It may be empty.
	Mode prompt.Mode
	// Depth is the number of agents that have handed the request on.
	Depth int
	// Shaping follows the profile's Shaping.
	Shaping turncontext.Layer
	// Session describes the conversation, or is nil if there is none.
	Session *turncontext.Session
	// Facts are those of the request and then those of context packs. Memories are those of the request and then
	// learned ones. Preferences and Enrichments are those of the request, unchanged.
	Facts       []turncontext.Fact
	Preferences []string
	Memories    []turncontext.Memory
	Enrichments []turncontext.Enrichment
	// Data is the canonical JSON of an object of the request. It is empty if there is none.
	Data string `json:",omitempty"`
	// Skill says how to do this Turn. It instructs the model only if Agent.AllowsTrusted is true. It may be empty.
	Skill string
	// Contributions are the Turn's contributions to the live context.
	Contributions []prompt.Contribution
}

// HistoryMessage is a message from before this request.
type HistoryMessage struct {
	Role    model.Role
	Content string
	// ToolCalls are the calls of an assistant's message. ToolCallID is the ID of the call that a tool's message
	// answers.
	ToolCalls  []model.ToolCall
	ToolCallID string
	// ProviderData is the data that the provider of an assistant's message needs in later Turns, or nil.
	ProviderData *model.ProviderData
}

// size returns the approximate size of the request in bytes, without its history.
func (t *Turn) size() int {
	size := len(t.Message) + len(t.Skill) + len(t.Data)
	for _, v := range t.Parameters {
		size += len(v)
	}
	for _, p := range t.Preferences {
		size += len(p)
	}
	for i := range t.Facts {
		size += len(t.Facts[i].Text)
	}
	for i := range t.Memories {
		size += len(t.Memories[i].Text)
	}
	for i := range t.Enrichments {
		size += len(t.Enrichments[i].Content)
	}
	return size + sizeOfContributions(t.Contributions)
}
