package prepare

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/template"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// Fields of authored texts, as error messages name them.
const (
	FieldSystemPrompt      = "PromptProfile spec.identity.systemPrompt"
	FieldDeveloperPrompt   = "PromptProfile spec.identity.developerPrompt"
	FieldInstructions      = "PromptProfile spec.instructions"
	FieldBehavior          = "PromptProfile spec.overrides.behavior"
	FieldTools             = "PromptProfile spec.overrides.tools"
	FieldStablePrefix      = "PromptProfile spec.stablePrefix"
	FieldDynamicSuffix     = "PromptProfile spec.dynamicSuffix"
	FieldAgentInstructions = "Agent spec.instructions"
)

// authored holds all rendered texts of the authors of a profile and an agent. Every text is rendered, even if the
// prompt has no section for it, so that a fault is found before a change of the mode reveals it.
type authored struct {
	identity       turncontext.Identity
	instructions   []template.Text
	behavior       *template.Text
	tools          *template.Text
	prefix, suffix template.Text
	layer          turncontext.Layer
	// fenced is true if a text of the layer contains values in fences. fencedRules is true if one of its guardrails
	// contains such values.
	fenced, fencedRules bool
	skills              []prompt.Skill
}

// textRenderer renders texts until one fails.
type textRenderer struct {
	scope template.Scope
	// bytes is the size of all texts so far. A prompt may have at most template.MaxRenderedBytes.
	bytes int
	err   error
}

// text renders a text. After a failure, it returns an empty text.
func (a *textRenderer) text(field, text string) template.Text {
	if a.err != nil {
		return template.Text{}
	}
	var out template.Text
	out, a.err = a.scope.Render(field, text)
	if a.bytes += len(out.Body); a.err == nil && a.bytes > template.MaxRenderedBytes {
		a.err = invalid.Field(field, "with this text, the profile and the agent render to more than %d bytes in "+
			"total: shorten the texts or the values",
			template.MaxRenderedBytes)
	}
	return out
}

func (a *textRenderer) optional(field string, text *string) *template.Text {
	if text == nil {
		return nil
	}
	out := a.text(field, *text)
	return &out
}

// render renders all authored texts, and returns the first failure.
func render(in Input, scope template.Scope) (authored, error) {
	a := &textRenderer{scope: scope}
	p := in.Profile
	system := a.text(fieldOf(FieldSystemPrompt, p.SystemPromptFrom), p.Identity.SystemPrompt)
	developer := a.text(FieldDeveloperPrompt, p.Identity.DeveloperPrompt)
	out := authored{
		identity: *p.Identity,
		instructions: []template.Text{
			system, developer, a.text(fieldOf(FieldInstructions, p.InstructionsFrom), p.Instructions),
			a.text(fieldOf(FieldAgentInstructions, in.Agent.InstructionsFrom), in.Agent.Instructions),
		},
		behavior: a.optional(FieldBehavior, p.Behavior),
		tools:    a.optional(FieldTools, p.ToolsText),
		prefix:   a.text(FieldStablePrefix, p.StablePrefix),
		suffix:   a.text(FieldDynamicSuffix, p.DynamicSuffix),
		layer:    p.Shaping,
	}
	out.identity.SystemPrompt, out.identity.DeveloperPrompt = system.Body, developer.Body
	out.layer.Overlays = slices.Concat(
		overlays(a, &out, "PromptProfile spec.overlays", p.Overlays),
		overlays(a, &out, "PromptProfile spec.shaping.overlays", p.Shaping.Overlays))
	out.layer.Guardrails = slices.Clone(p.Guardrails)
	for i := range out.layer.Guardrails {
		text := a.text(fmt.Sprintf("PromptProfile spec.guardrails[%d].rule", i), p.Guardrails[i].Rule)
		out.layer.Guardrails[i].Rule, out.fencedRules = text.Body, out.fencedRules || text.Fenced
	}
	out.fenced = out.fenced || out.fencedRules
	for i, s := range p.Skills {
		content := a.text(fieldOf(fmt.Sprintf("PromptProfile spec.skills[%d].content", i), s.From), s.Content)
		out.skills = append(out.skills, prompt.Skill{Key: s.Key, Name: s.Name, Description: s.Description, Content: content})
	}
	if a.err == nil && system.Blank() && developer.Blank() && out.instructions[2].Blank() {
		a.err = invalid.Field("PromptProfile spec",
			"at least one of identity.systemPrompt, identity.developerPrompt and instructions must not be blank when rendered")
	}
	return out, a.err
}

// checkForModels renders the texts for all models, so that a fault is found before one of these models is asked.
func checkForModels(all []ModelTexts, scope template.Scope) error {
	for i, m := range all {
		a := &textRenderer{scope: scope}
		a.optional(fmt.Sprintf("PromptProfile spec.forModels[%d].overrides.behavior", i), m.Behavior)
		a.optional(fmt.Sprintf("PromptProfile spec.forModels[%d].overrides.tools", i), m.ToolsText)
		if a.err != nil {
			return a.err
		}
	}
	return nil
}

// fieldOf returns the field of a text, as error messages name it. If the object only refers to the text, from is the
// name of the text's source. Otherwise from is empty.
func fieldOf(field, from string) string {
	if from != "" {
		return field + "From, " + from
	}
	return field
}

func overlays(a *textRenderer, out *authored, field string, list []turncontext.Overlay) []turncontext.Overlay {
	rendered := slices.Clone(list)
	for i := range rendered {
		text := a.text(fmt.Sprintf("%s[%d].text", field, i), list[i].Text)
		rendered[i].Text, out.fenced = text.Body, out.fenced || text.Fenced
	}
	return rendered
}

// skills returns the skills of the profile that the agent has loaded, and the skills that are available to the
// agent.
func skills(in Input, all []prompt.Skill) (loaded, available []prompt.Skill, err error) {
	if loaded, err = pickSkills(in, all, "Agent spec.skills.loaded", in.Agent.Loaded); err != nil {
		return nil, nil, err
	}
	own, err := pickSkills(in, all, "Agent spec.skills.available", in.Agent.Available)
	if err != nil {
		return nil, nil, err
	}
	for i, s := range own {
		// The prompt that lists the skill need not explain fences.
		if s.Content.Fenced {
			own[i].Content.Body = untrusted.Notice + "\n\n" + s.Content.Body
		}
	}
	var shared []prompt.Skill
	for _, s := range in.ManagerSkills {
		if slices.Contains(in.Agent.Loaded, s.Key) { // the prompt has the Agent's skill already
			continue
		}
		shared = append(shared, prompt.Skill{Key: s.Key, Name: s.Name, Description: s.Description, Content: template.Text{Body: s.Content}})
	}
	return loaded, prompt.AvailableSkills(own, shared), nil
}

func pickSkills(in Input, all []prompt.Skill, field string, keys []string) ([]prompt.Skill, error) {
	var picked []prompt.Skill
	for i, key := range keys {
		at := slices.IndexFunc(all, func(s prompt.Skill) bool { return s.Key == key })
		if at < 0 {
			var names []string
			for _, s := range all {
				names = append(names, s.Key)
			}
			return nil, invalid.Field(fmt.Sprintf("%s[%d]", field, i),
				"%q is not a skill of PromptProfile %q, which has: %s", key, in.Profile.Name, orNone(names))
		}
		picked = append(picked, all[at])
	}
	return picked, nil
}

// scopeOf returns the names that the templates of an agent and a profile may use, with the values of the request.
func scopeOf(in Input) (template.Scope, error) {
	scope := newScope(in)
	for _, v := range in.Profile.Variables {
		value, given := in.Turn.Parameters[v.Name]
		switch {
		case given:
			scope.Variables[v.Name] = template.Value{Text: value, Trusted: v.Trusted}
		case v.Required:
			return template.Scope{}, invalid.Field("Turn spec.parameters",
				"must give a value for %q, which PromptProfile %q requires", v.Name, in.Profile.Name)
		default:
			scope.Variables[v.Name] = template.Value{Text: v.Default, Trusted: true}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Turn.Parameters)) {
		if _, declared := scope.Variables[name]; !declared {
			return template.Scope{}, invalid.Field("Turn spec.parameters", "%q is not a variable of PromptProfile %q, which declares: %s",
				name, in.Profile.Name, orNone(variableNames(in.Profile.Variables)))
		}
	}
	return scope, nil
}

// newScope returns a scope with the built-in names and no variables. The authors did not write the names of the Turn
// and its session, so each name is escaped and kept on one line. Names that the API allows stay unchanged.
func newScope(in Input) template.Scope {
	session := template.Object{Fields: map[string]string{"Name": ""}, Absent: true}
	if s := in.Turn.Session; s != nil && s.ID != "" {
		session = template.Object{Fields: map[string]string{"Name": untrusted.Line(s.ID)}}
	}
	return template.Scope{
		Variables: map[string]template.Value{},
		Objects: map[string]template.Object{
			"Agent": {Fields: map[string]string{
				"Name":        untrusted.Line(in.Agent.Name),
				"Description": untrusted.Line(in.Agent.Description),
			}},
			"Turn":    {Fields: map[string]string{"Name": untrusted.Line(in.Turn.Name), "Namespace": untrusted.Line(in.Turn.Namespace)}},
			"Session": session,
		},
	}
}

func variableNames(variables []Variable) []string {
	var names []string // nil if there are none, as after a round trip through JSON
	for _, v := range variables {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	return names
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
