// Package prepare turns an agent, a profile and a request into the exact messages for a model, and reports how they
// were made. Prepare is a pure function: the same input gives the same bytes.
package prepare

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/template"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// Prepared is a frozen prompt, and how it was made. It marshals to JSON and back without loss.
type Prepared struct {
	Prompt
	// Report describes the messages.
	Report Report `json:"report"`
	// Assembly describes how the content of the messages was chosen.
	Assembly turncontext.Assembly `json:"assembly"`
}

// Prompt is what a Turn needs to ask a model.
type Prompt struct {
	// Provider and Model name the provider and the model that the messages are for.
	Provider string `json:"provider"`
	Model    string `json:"model"`
	// Messages are the messages in order.
	Messages []model.Message `json:"messages"`
	// Summary is the text of the message that replaces older messages. It is empty if there is none.
	Summary string `json:"summary,omitempty"`
	// Tools are the tools that the model is offered, in order.
	Tools []prompt.Tool `json:"tools,omitempty"`
	// Skills are the skills that the model may load, in order. There are none if the prompt does not list them.
	Skills []LoadableSkill `json:"skills,omitempty"`
	// Sources are the sources of the facts in the prompt, in order. Facts without a source are left out.
	Sources []string `json:"sources,omitempty"`
}

// LoadableSkill is a skill that the tool load_skill can return.
type LoadableSkill struct {
	Key  string `json:"key"`
	Name string `json:"name,omitempty"`
	// Content is the rendered content of the skill.
	Content string `json:"content"`
}

// Report describes how the messages were made.
type Report struct {
	prompt.Report
	// ContextHash is the first 16 hexadecimal digits of the SHA-256 of the data in the message context_pack, as
	// canonical JSON.
	ContextHash string `json:"contextHash"`
	// Profile is the revision of the profile that the prompt was made from.
	Profile Revision `json:"profile"`
	// Expression is the expression that the model is asked for. Provenance says which parts of the input are in the
	// messages.
	Expression turncontext.Expression `json:"expression"`
	Provenance turncontext.Provenance `json:"provenance"`
	// Variables are the names of the variables that the profile declares, sorted.
	Variables []string `json:"variables,omitempty"`
	// ReplacedBytes is the number of input bytes that were not UTF-8 and became U+FFFD.
	ReplacedBytes int `json:"replacedBytes,omitempty"`
}

// Revision identifies one version of a profile.
type Revision struct {
	Name       string   `json:"name"`
	ID         string   `json:"id"`
	Version    string   `json:"version"`
	Generation int64    `json:"generation,omitempty"`
	Tags       []string `json:"tags,omitempty"`
}

// Prepare makes the messages, or returns an *invalid.Error. It copies and checks the input, renders the authored texts,
// assembles the context, makes the system prompt, and arranges the messages, in this order.
func Prepare(in Input) (*Prepared, error) {
	in, replaced := deepCopy(in)
	if err := validate(in); err != nil {
		return nil, err
	}
	if err := outputpolicy.Check("PromptProfile spec.outputPolicy", in.Profile.OutputPolicies); err != nil {
		return nil, err
	}
	scope, err := scopeOf(in)
	if err != nil {
		return nil, err
	}
	if err := checkForModels(in.Profile.ForModels, scope); err != nil {
		return nil, err
	}
	in.Profile = in.Profile.forModel(in.Provider, in.Model)
	texts, err := render(in, scope)
	if err != nil {
		return nil, err
	}
	assembly, shown := turncontext.Assemble(contextOf(in, texts))
	loaded, available, err := skills(in, texts.skills)
	if err != nil {
		return nil, err
	}
	mode := prompt.ModeOf(in.Turn.Mode, in.Profile.Mode, in.Turn.Depth)
	if !prompt.HasSection(mode, in.Profile.Sections, prompt.SectionAvailableSkills) {
		available = nil // the model cannot choose a skill from a list that the prompt does not have
	}
	tools := offeredTools(in.Tools, available)
	system, err := systemPrompt(in, mode, texts, assembly, loaded, available, tools)
	if err != nil {
		return nil, err
	}
	assembly = recordUnplaced(in, texts, assembly, system.Report)
	contextHash, err := hashContext(shown)
	if err != nil {
		return nil, err
	}
	return &Prepared{
		Prompt: Prompt{
			Provider: in.Provider, Model: in.Model, Messages: messages(in, system, shown), Summary: in.Turn.Summary,
			Tools: tools, Skills: loadable(available), Sources: sources(shown.Facts),
		},
		Assembly: assembly,
		Report: Report{
			Report: system.Report, ContextHash: contextHash, Variables: variableNames(in.Profile.Variables), Profile: revision(in.Profile),
			Expression: assembly.Expression, Provenance: assembly.Provenance, ReplacedBytes: replaced,
		},
	}, nil
}

// maxToolMessage is the maximum length of a tool's result in a message, in characters.
const maxToolMessage = 12_000

// offeredTools returns the tools that the model is offered: the tools of the input, load_skill if the prompt lists a
// skill, and read_artifact if a listed skill is too long for a message, unless the input already has it.
func offeredTools(tools []prompt.Tool, available []prompt.Skill) []prompt.Tool {
	if len(available) == 0 {
		return tools
	}
	tools = slices.Concat(tools, []prompt.Tool{prompt.LoadSkill()})
	read := prompt.ReadArtifact()
	if slices.ContainsFunc(tools, func(t prompt.Tool) bool { return t.Name == read.Name }) {
		return tools
	}
	if slices.ContainsFunc(available, func(s prompt.Skill) bool {
		result, err := s.Result()
		return err == nil && utf8.RuneCountInString(result) > maxToolMessage
	}) {
		tools = append(tools, read)
	}
	return tools
}

// validate checks the rules that the schema of the API cannot express. It returns the first failure.
func validate(in Input) error {
	switch p := in.Profile; {
	case strings.TrimSpace(in.Agent.Name) == "":
		return invalid.Field("Agent metadata.name", "must be given")
	case strings.TrimSpace(in.Turn.Name) == "":
		return invalid.Field("Turn metadata.name", "must be given")
	case p.Identity == nil:
		return invalid.Field("PromptProfile spec.identity", "must be given")
	case strings.TrimSpace(p.Identity.SystemPrompt+p.Identity.DeveloperPrompt+p.Instructions) == "":
		return invalid.Field("PromptProfile spec",
			"at least one of identity.systemPrompt, identity.developerPrompt and instructions must be given and not blank")
	case strings.TrimSpace(in.Turn.Message) == "":
		return invalid.Field("Turn spec.message", "must not be blank")
	}
	for i, c := range in.Turn.Contributions {
		if c.Trusted && !in.Agent.AllowsTrusted {
			return invalid.Field(fmt.Sprintf("Turn spec.context.contributions[%d].trust", i),
				"must be Untrusted: Agent %q does not let Turns contribute trusted text (its spec.contributionTrust)", in.Agent.Name)
		}
	}
	return nil
}

func contextOf(in Input, texts authored) turncontext.Input {
	return turncontext.Input{
		TurnName: in.Turn.Name, Identity: texts.identity, Profile: texts.layer, Turn: in.Turn.Shaping, TurnTrusted: in.Agent.AllowsTrusted,
		Session: in.Turn.Session, Memories: in.Turn.Memories, MaxMemories: in.Agent.MaxMemories,
		Enrichments: in.Turn.Enrichments, Facts: in.Turn.Facts, Preferences: in.Turn.Preferences,
		Data: in.Turn.Data,
	}
}

func loadable(available []prompt.Skill) []LoadableSkill {
	var all []LoadableSkill // nil if there are none, as after a round trip through JSON
	for _, s := range available {
		all = append(all, LoadableSkill{Key: s.Key, Name: s.Name, Content: s.Content.Body})
	}
	return all
}

func systemPrompt(
	in Input, mode prompt.Mode, texts authored, assembly turncontext.Assembly, loaded, available []prompt.Skill, tools []prompt.Tool,
) (prompt.System, error) {
	subject := ""
	if in.Turn.Session != nil {
		subject = in.Turn.Session.Subject
	}
	return prompt.Render(prompt.Input{
		Mode: mode, Sections: in.Profile.Sections, Depth: in.Turn.Depth,
		AssistantName: in.Profile.Identity.AssistantName, AgentName: in.Agent.Name, Description: in.Agent.Description, Model: in.Model,
		Thinking: in.Agent.Thinking, StablePrefix: texts.prefix, DynamicSuffix: texts.suffix,
		Instructions: texts.instructions, Behavior: texts.behavior, ToolsText: texts.tools,
		Loaded: loaded, Available: available, Tools: tools,
		TurnInstructions: template.Text{Body: assembly.Instructions(), Fenced: texts.fenced},
		Guardrails:       template.Text{Body: turncontext.Rules(texts.layer.Guardrails), Fenced: texts.fencedRules},
		Subject:          subject, Contributions: in.contributions(),
		Now: in.Now,
	})
}

func revision(p Profile) Revision {
	return Revision{Name: p.Name, ID: p.ID, Version: p.Version, Generation: p.Generation, Tags: p.Tags}
}

func sources(facts []turncontext.Fact) []string {
	var all []string // nil if there are none, as after a round trip through JSON
	for _, f := range facts {
		if source := strings.TrimSpace(f.Source); source != "" {
			all = append(all, source)
		}
	}
	return all
}
