package prompt

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
)

// section is one tagged piece of the prompt.
type section struct {
	name, tag string
	// dynamic sections differ from Turn to Turn.
	dynamic bool
	// modes that have the section.
	modes []Mode
	// render returns the body. An empty one leaves the section out, unless keep says that it stands all the same.
	render func(*rendering) (body string, keep bool)
}

var (
	fullTask        = []Mode{Full, Task}
	minimal         = []Mode{Minimal}
	fullTaskMinimal = []Mode{Full, Task, Minimal}
)

// The names of the sections that hold what a Turn, a profile or an agent may or may not give.
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

// sections of the prompt in their order: a row here and a function below make a section.
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

// guardrails is the section of a prompt that was not asked for the Turn's instructions.
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

// named returns the sections of some names, in the order of these.
func named(names []string) ([]section, error) {
	chosen := make([]section, 0, len(names))
	for i, name := range names {
		field := fmt.Sprintf("PromptProfile spec.sections[%d]", i)
		at := slices.IndexFunc(sections, func(s section) bool { return s.name == name })
		if at < 0 {
			return nil, invalid.Field(field, "%q is not a section: use %s", name, strings.Join(SectionNames(), ", "))
		}
		if slices.Contains(names[:i], name) {
			return nil, invalid.Field(field, "%q is listed before: name each section once", name)
		}
		chosen = append(chosen, sections[at])
	}
	return chosen, nil
}

// SectionNames returns the names of all sections, in their order.
func SectionNames() []string {
	names := make([]string, 0, len(sections))
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

func renderAgent(r *rendering) (string, bool) {
	name := fence.Line(r.AssistantName)
	if name == "" {
		name = fence.Line(r.AgentName)
	}
	lines := []string{"- Name: " + name}
	if d := fence.Line(r.Description); d != "" {
		lines = append(lines, "- Description: "+d)
	}
	return strings.Join(append(lines, "- Model: "+fence.Line(r.Model)), "\n"), false
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
	kept, leftOut := fence.Cap(r.Subject, fence.MaxChars)
	r.noticed = true
	return fence.Untrusted("What the conversation is about.", fence.Block(kept)) + cutOff(leftOut), false
}

// Contribution is a text of the live context.
type Contribution struct {
	// Name of the contribution, its heading; context if nothing of it can be shown.
	Name string
	// Text of it; an empty one is left out.
	Text string
	// Trusted texts may be relied on. They do not instruct either.
	Trusted bool
	// MaxChars is how many code points of the text are used; fence.MaxChars if it is 0.
	MaxChars int
}

func renderLiveContext(r *rendering) (string, bool) {
	var blocks []string
	for _, c := range r.Contributions {
		if fence.Blank(c.Text) {
			continue
		}
		most := c.MaxChars
		if most == 0 {
			most = fence.MaxChars
		}
		kept, leftOut := fence.Cap(c.Text, most)
		name := cmp.Or(fence.Line(c.Name), "context")
		wrap := fence.Untrusted
		if c.Trusted {
			wrap = fence.Data
		} else {
			r.noticed = true
		}
		r.contributed = append(r.contributed, Contributed{Name: c.Name, Trusted: c.Trusted, Chars: utf8.RuneCountInString(kept), LeftOut: leftOut})
		blocks = append(blocks, "## "+name+"\n\n"+wrap("Live context "+name+".", strings.Trim(fence.Block(kept), "\n"))+cutOff(leftOut))
	}
	if len(blocks) == 0 {
		return "", false
	}
	return strings.Join(append([]string{liveContextText}, blocks...), "\n\n"), false
}

// cutOff says how many characters a cap left out. It stands outside of the fence, where no text can forge it.
func cutOff(chars int) string {
	switch chars {
	case 0:
		return ""
	case 1:
		return "\n(1 more character was left out.)"
	}
	return fmt.Sprintf("\n(%d more characters were left out.)", chars)
}

func renderEnvironment(r *rendering) (string, bool) {
	day := func(offset int) string {
		return Day(r.Now, offset).Format("Monday, January 2, 2006 (2006-01-02)")
	}
	return fmt.Sprintf("- Today: %s\n- Current time: %s\n- Yesterday: %s\n- Tomorrow: %s",
		day(0), r.Now.Format("15:04 MST"), day(-1), day(1)), false
}

// Day returns the calendar day so many days after that of a time, in the zone of the time. The result is good for
// formatting its date only: it is noon in UTC, because the same hour of another day need not exist where clocks change.
func Day(t time.Time, offset int) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day+offset, 12, 0, 0, 0, time.UTC)
}
