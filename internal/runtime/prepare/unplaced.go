package prepare

import (
	"cmp"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// recordUnplaced records the parts of the input that the prompt leaves out, because its mode or its choice of sections
// has no section for them. It also records blank contributions. The profile's guardrails are never left out.
func recordUnplaced(in Input, texts authored, a turncontext.Assembly, report prompt.Report) turncontext.Assembly {
	reason := func(section string) (string, bool) {
		return "the prompt has no section " + section, !slices.Contains(report.Sections, section)
	}
	if why, _ := reason(prompt.SectionTurnInstructions); !slices.Contains(report.SectionsAsked, prompt.SectionTurnInstructions) {
		rules := slices.DeleteFunc(slices.Clone(texts.layer.Guardrails),
			func(g turncontext.Guardrail) bool { return untrusted.Blank(g.Rule) })
		a = a.WithoutInstructions(why, len(rules))
	}
	dropped := slices.Clone(a.Dropped)
	drop := func(section, kind string, ids ...string) {
		if why, missing := reason(section); missing {
			for _, id := range ids {
				dropped = append(dropped, turncontext.Dropped{Kind: kind, ID: id, Reason: why})
			}
		}
	}
	for _, t := range in.authoredTexts() {
		switch {
		case untrusted.Blank(t.text):
		case t.section != "":
			drop(t.section, "text", t.field)
		case report.Mode == prompt.None:
			dropped = append(dropped, turncontext.Dropped{Kind: "text", ID: t.field, Reason: "mode None has no place for it"})
		}
	}
	drop(prompt.SectionLoadedSkills, "skill", in.Agent.Loaded...)
	drop(prompt.SectionAvailableSkills, "skill", in.Agent.Available...)
	if s := in.Turn.Session; s != nil && strings.TrimSpace(s.Subject) != "" {
		drop(prompt.SectionSubject, "subject", cmp.Or(s.ID, in.Turn.Name))
	}
	for _, c := range in.contributions() {
		if untrusted.Blank(c.Text) {
			dropped = append(dropped, turncontext.Dropped{Kind: "contribution", ID: c.Name, Reason: "it is blank"})
			continue
		}
		drop(prompt.SectionLiveContext, "contribution", c.Name)
	}
	a.Dropped = dropped
	return a
}

// placedText is an authored text and its section. The section is empty for texts before or after all sections.
type placedText struct{ section, field, text string }

// authoredTexts returns the authored texts that have exactly one place in the prompt.
func (in Input) authoredTexts() []placedText {
	texts := []placedText{
		{"", FieldStablePrefix, in.Profile.StablePrefix},
		{"", FieldDynamicSuffix, in.Profile.DynamicSuffix},
		{prompt.SectionInstructions, FieldSystemPrompt, in.Profile.Identity.SystemPrompt},
		{prompt.SectionInstructions, FieldDeveloperPrompt, in.Profile.Identity.DeveloperPrompt},
		{prompt.SectionInstructions, FieldInstructions, in.Profile.Instructions},
		{prompt.SectionInstructions, FieldAgentInstructions, in.Agent.Instructions},
	}
	if b := in.Profile.Behavior; b != nil {
		texts = append(texts, placedText{prompt.SectionBehavior, FieldBehavior, *b})
	}
	if t := in.Profile.ToolsText; t != nil {
		texts = append(texts, placedText{prompt.SectionTools, FieldTools, *t})
	}
	return texts
}
