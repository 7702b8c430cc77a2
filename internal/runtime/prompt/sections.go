package prompt

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// section is one tagged part of the prompt.
type section struct {
	name, tag string
	// dynamic is true for a section that differs between Turns.
	dynamic bool
	// modes lists the modes that include the section.
	modes []Mode
	// render returns the body. A section with an empty body is left out unless keep is true.
	render func(*rendering) (body string, keep bool)
}

var (
	fullTask        = []Mode{Full, Task}
	minimal         = []Mode{Minimal}
	fullTaskMinimal = []Mode{Full, Task, Minimal}
)

// Names of the sections whose content a Turn, a profile or an agent may provide.
const (
	SectionInstructions     = "instructions"
	SectionBehavior         = "behavior"
	SectionTools            = "tools"
	SectionLoadedSkills     = "loaded_skills"
	SectionAvailableSkills  = "available_skills"
	SectionTurnInstructions = "turn_instructions"
	SectionSubject          = "subject"
	SectionLiveContext      = "live_context"
)

// sections lists the sections of the prompt in order.
var sections = []section{
	{name: "agent", tag: "agent", modes: fullTaskMinimal, render: renderAgent},
	{name: "sub_agent", tag: "sub_agent", modes: minimal, render: renderSubAgent},
	{name: SectionInstructions, tag: "instructions", modes: fullTaskMinimal, render: renderInstructions},
	{name: SectionBehavior, tag: "behavior", modes: fullTaskMinimal, render: renderBehavior},
	{name: SectionLoadedSkills, tag: "skills_loaded", modes: fullTask, render: renderLoadedSkills},
	{name: SectionAvailableSkills, tag: "skills_available", modes: fullTask, render: renderAvailableSkills},
	{name: SectionTools, tag: "tools_available", modes: fullTaskMinimal, render: renderTools},
	{name: SectionTurnInstructions, tag: "turn_instructions", dynamic: true, modes: fullTaskMinimal, render: renderTurnInstructions},
	{name: SectionSubject, tag: "subject_context", dynamic: true, modes: fullTask, render: renderSubject},
	{name: SectionLiveContext, tag: "live_context", dynamic: true, modes: fullTask, render: renderLiveContext},
	{name: "environment", tag: "environment", dynamic: true, modes: fullTaskMinimal, render: renderEnvironment},
}

// guardrails is the section with the guardrails alone, for a prompt without the section SectionTurnInstructions.
var guardrails = section{
	name: SectionTurnInstructions, tag: "turn_instructions", dynamic: true,
	render: func(r *rendering) (string, bool) { return r.authored(r.Guardrails), false },
}

// ofMode returns the sections of a mode, in order.
func ofMode(m Mode) []section {
	var chosen []section
	for _, s := range sections {
		if slices.Contains(s.modes, m) {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

// sectionsByName returns the sections with these names, in the order of the names.
func sectionsByName(names []string) ([]section, error) {
	chosen := make([]section, 0, len(names))
	for i, name := range names {
		field := fmt.Sprintf("PromptProfile spec.sections[%d]", i)
		at := slices.IndexFunc(sections, func(s section) bool { return s.name == name })
		if at < 0 {
			return nil, invalid.Field(field, "%q is not a section: use %s", name, strings.Join(SectionNames(), ", "))
		}
		if slices.Contains(names[:i], name) {
			return nil, invalid.Field(field, "%q is listed twice: list each section once", name)
		}
		chosen = append(chosen, sections[at])
	}
	return chosen, nil
}

// SectionNames returns the names of all sections, in order.
func SectionNames() []string {
	names := make([]string, 0, len(sections))
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

func renderAgent(r *rendering) (string, bool) {
	name := untrusted.Line(r.AssistantName)
	if name == "" {
		name = untrusted.Line(r.AgentName)
	}
	lines := []string{"- Name: " + name}
	if d := untrusted.Line(r.Description); d != "" {
		lines = append(lines, "- Description: "+d)
	}
	return strings.Join(append(lines, "- Model: "+untrusted.Line(r.Model)), "\n"), false
}

func renderSubAgent(r *rendering) (string, bool) {
	if r.Depth == 0 {
		return "", false
	}
	return subAgentText, false
}

func renderInstructions(r *rendering) (string, bool) { return r.authored(r.Instructions...), false }

func renderBehavior(r *rendering) (string, bool) {
	switch {
	case r.Behavior != nil:
		return r.authored(*r.Behavior), true
	case r.Mode == Task:
		return behaviorTask, false
	}
	return behaviorChat, false
}

func renderTurnInstructions(r *rendering) (string, bool) {
	return r.authored(r.TurnInstructions), false
}

func renderSubject(r *rendering) (string, bool) {
	if strings.TrimSpace(r.Subject) == "" {
		return "", false
	}
	kept, leftOut := untrusted.Cap(r.Subject, untrusted.MaxChars)
	r.noticed = true
	return untrusted.Untrusted(subjectLabel, untrusted.Block(kept)) + omissionNote(leftOut), false
}

// Contribution is a text in the live context.
type Contribution struct {
	// Name is the name of the contribution, which is also its heading. If Name has no visible characters, the heading
	// is "context".
	Name string
	// Text is the text of the contribution. A blank contribution is left out.
	Text string
	// Trusted is true if the model may rely on the text. It still must not follow the text as an instruction.
	Trusted bool
	// MaxChars is the maximum number of code points of the text to use. 0 means untrusted.MaxChars.
	MaxChars int
}

func renderLiveContext(r *rendering) (string, bool) {
	var blocks []string
	for _, c := range r.Contributions {
		if untrusted.Blank(c.Text) {
			continue
		}
		most := c.MaxChars
		if most == 0 {
			most = untrusted.MaxChars
		}
		kept, leftOut := untrusted.Cap(c.Text, most)
		name := cmp.Or(untrusted.Line(c.Name), "context")
		wrap := untrusted.Untrusted
		if c.Trusted {
			wrap = untrusted.Data
		} else {
			r.noticed = true
		}
		r.contributed = append(r.contributed,
			Contributed{Name: c.Name, Trusted: c.Trusted, Chars: utf8.RuneCountInString(kept), LeftOut: leftOut})
		blocks = append(blocks, "## "+name+"\n\n"+wrap("Live context "+name+".",
			strings.Trim(untrusted.Block(kept), "\n"))+omissionNote(leftOut))
	}
	if len(blocks) == 0 {
		return "", false
	}
	return strings.Join(append([]string{liveContextText}, blocks...), "\n\n"), false
}

// omissionNote returns the note about omitted characters. The note is outside the fence, where no text can forge it.
func omissionNote(chars int) string {
	switch chars {
	case 0:
		return ""
	case 1:
		return "\n(1 more character was omitted.)"
	}
	return fmt.Sprintf("\n(%d more characters were omitted.)", chars)
}

func renderEnvironment(r *rendering) (string, bool) {
	day := func(offset int) string {
		return Day(r.Now, offset).Format("Monday, January 2, 2006 (2006-01-02)")
	}
	return fmt.Sprintf("- Today: %s\n- Current time: %s\n- Yesterday: %s\n- Tomorrow: %s",
		day(0), r.Now.Format("15:04 MST"), day(-1), day(1)), false
}

// Day returns the calendar day that is offset days after the day of t, in the time zone of t. Use the result only
// to format its date: it is noon in UTC, because the same hour may not exist on another day when clocks change.
func Day(t time.Time, offset int) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day+offset, 12, 0, 0, 0, time.UTC)
}
