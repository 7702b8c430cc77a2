// Package prompt makes the system prompt. The prompt consists of tagged sections in two parts. The stable part depends
// on the agent, the profile, the mode, the model, the tools, and the values that templates insert. It is usually the
// same for many Turns, so providers can cache it. The rest is the dynamic part.
//
// The table in sections.go defines the order of the sections, and names the function that renders each section.
package prompt

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/template"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// Mode selects the sections of a prompt, and Capstan's rules of behavior: those for a task, or those for a
// conversation.
type Mode string

// The modes.
const (
	Full    Mode = "Full"
	Task    Mode = "Task"
	Minimal Mode = "Minimal"
	None    Mode = "None"
)

// Input holds everything that determines a system prompt. Its texts are already rendered.
type Input struct {
	// Mode is the mode of the prompt. ModeOf returns the default.
	Mode Mode
	// Sections are the sections of the prompt, in order. If Sections is nil, the mode decides. If Sections is empty,
	// the prompt has no sections.
	Sections []string
	// Depth is the number of agents that have handed the request on.
	Depth int
	// AssistantName is the name of the assistant. If it is blank, AgentName is used.
	AssistantName, AgentName string
	// Description describes the agent. It may be empty.
	Description string
	// Model is the name of the model that the prompt is for.
	Model string
	// Thinking is how long the model should think before it answers. Empty means Off.
	Thinking Thinking
	// StablePrefix precedes the sections, and DynamicSuffix follows them. Both may be blank.
	StablePrefix, DynamicSuffix template.Text
	// Instructions are the instructions in order. Blank instructions are left out.
	Instructions []template.Text
	// Behavior and ToolsText replace Capstan's own texts if they are not nil, even if they are empty.
	Behavior, ToolsText *template.Text
	// Loaded skills are in the prompt as a whole. Available skills are only listed.
	Loaded, Available []Skill
	// Tools are the tools that the model is offered, in order.
	Tools []Tool
	// TurnInstructions are the overlays, shaping mode, expression, response style, wishes and guardrails. They may be
	// blank.
	TurnInstructions template.Text
	// Guardrails are the guardrails of the profile. They are also part of TurnInstructions. If a prompt has no
	// section for TurnInstructions, it still contains Guardrails: no mode and no choice of sections removes them.
	// They may be blank.
	Guardrails template.Text
	// Subject is the subject of the conversation. It may be empty.
	Subject string
	// Contributions are the contributions to the live context, in order.
	Contributions []Contribution
	// Now is the time in the environment section, in the agent's time zone.
	Now time.Time
}

// System is a finished system prompt.
type System struct {
	// Text is the text of both parts.
	Text string
	// Report describes the text.
	Report Report
}

// Report describes a system prompt. Lengths are in Unicode code points.
type Report struct {
	// Mode is the mode of the prompt.
	Mode Mode `json:"mode"`
	// Chars is the length of the whole text.
	Chars int `json:"chars"`
	// StableChars is the length of the stable part, which ends at the cache boundary.
	StableChars int `json:"stableChars"`
	// DynamicChars is the length of the rest, including the blank line between the parts.
	DynamicChars int `json:"dynamicChars"`
	// SectionsAsked are the sections that were requested, in order.
	SectionsAsked []string `json:"sectionsAsked"`
	// Sections are the sections that were not blank, in order.
	Sections []string `json:"sections"`
	// ToolCount is the number of tools that the model is offered.
	ToolCount int `json:"toolCount"`
	// Contributions are the contributions in the live context, in order.
	Contributions []Contributed `json:"contributions,omitempty"`
	// PromptHash is the SHA-256 of the whole text, in hexadecimal.
	PromptHash string `json:"promptHash"`
	// RenderHash is the SHA-256 of the canonical JSON {"text": stable part}, in hexadecimal.
	RenderHash string `json:"renderHash"`
}

// Contributed reports how much of a contribution the prompt contains, in Unicode code points.
type Contributed struct {
	Name    string `json:"name"`
	Trusted bool   `json:"trusted,omitempty"`
	Chars   int    `json:"chars"`
	LeftOut int    `json:"leftOut,omitempty"`
}

// ModeOf returns the mode of a prompt: the Turn's mode, otherwise the profile's mode, otherwise Minimal for a
// sub-agent and Full for any other agent.
func ModeOf(turn, profile Mode, depth int) Mode {
	switch {
	case turn != "":
		return turn
	case profile != "":
		return profile
	case depth > 0:
		return Minimal
	}
	return Full
}

// Render renders the system prompt. It returns an *invalid.Error for an unknown mode or section, and for a tool that
// cannot be offered to a model.
func Render(in Input) (System, error) {
	asked, err := chooseSections(in.Mode, in.Sections)
	if err != nil {
		return System{}, err
	}
	for i, tool := range in.Tools {
		if err := tool.validate(i); err != nil {
			return System{}, err
		}
	}
	r := &rendering{Input: in}
	r.begin()
	for _, s := range asked {
		r.add(s)
	}
	if !contains(asked, SectionTurnInstructions) {
		r.add(guardrails)
	}
	r.end()
	return r.system(asked)
}

// HasSection reports whether a prompt of this mode and with these sections, as in Input, has a section with this name,
// which may be blank. If the mode or a section is unknown, it returns false, and Render returns an error.
func HasSection(mode Mode, names []string, name string) bool {
	asked, err := chooseSections(mode, names)
	return err == nil && contains(asked, name)
}

func contains(all []section, name string) bool {
	return slices.ContainsFunc(all, func(s section) bool { return s.name == name })
}

// rendering holds the state while a prompt is made.
type rendering struct {
	Input
	// stable and dynamic are the pieces of the two parts.
	stable, dynamic []string
	// rendered are the names of the sections that were not blank.
	rendered []string
	// contributed lists the contributions in the live context.
	contributed []Contributed
	// noticed is true once the prompt has explained fences.
	noticed bool
}

// begin writes the text before the sections.
func (r *rendering) begin() {
	if r.Mode == None {
		r.stable = append(r.stable, noneLine)
		return
	}
	if text := thinkingPrefix[r.Thinking]; text != "" {
		r.stable = append(r.stable, text)
	}
	if !r.StablePrefix.Blank() {
		r.stable = append(r.stable, r.authored(r.StablePrefix))
	}
}

// add writes a section, unless it is blank. Every section after a dynamic section counts as dynamic.
func (r *rendering) add(s section) {
	body, keep := s.render(r)
	if strings.TrimSpace(body) == "" && !keep {
		return
	}
	r.rendered = append(r.rendered, s.name)
	text := "<" + s.tag + ">\n" + body + "\n</" + s.tag + ">"
	if s.dynamic || len(r.dynamic) > 0 {
		r.dynamic = append(r.dynamic, text)
	} else {
		r.stable = append(r.stable, text)
	}
}

// end writes the text after the sections.
func (r *rendering) end() {
	if r.Mode != None && !r.DynamicSuffix.Blank() {
		r.dynamic = append(r.dynamic, r.authored(r.DynamicSuffix))
	}
}

// authored joins texts, without the line breaks around them. If they contain fences and the prompt has not explained
// fences yet, authored puts the explanation before them.
func (r *rendering) authored(texts ...template.Text) string {
	var parts []string
	fenced := false
	for _, t := range texts {
		if body := strings.Trim(t.Body, "\r\n"); !t.Blank() {
			parts = append(parts, body)
			fenced = fenced || t.Fenced
		}
	}
	if fenced && !r.noticed {
		r.noticed = true
		parts = append([]string{untrusted.Notice}, parts...)
	}
	return strings.Join(parts, "\n\n")
}

func (r *rendering) system(asked []section) (System, error) {
	head := strings.Join(r.stable, "\n\n")
	text := strings.Join(append(r.stable, r.dynamic...), "\n\n")
	report := Report{
		Mode: r.Mode, Chars: utf8.RuneCountInString(text), StableChars: utf8.RuneCountInString(head),
		SectionsAsked: make([]string, 0, len(asked)), Sections: append([]string{}, r.rendered...),
		ToolCount: len(r.Tools), Contributions: r.contributed, PromptHash: canonical.Sum([]byte(text)),
	}
	for _, s := range asked {
		report.SectionsAsked = append(report.SectionsAsked, s.name)
	}
	report.DynamicChars = report.Chars - report.StableChars
	hash, err := canonical.Hash(map[string]string{"text": head})
	if err != nil {
		return System{}, err
	}
	report.RenderHash = hash
	return System{Text: text, Report: report}, nil
}

// chooseSections returns the sections that the prompt should have, in order.
func chooseSections(mode Mode, names []string) ([]section, error) {
	chosen, err := sectionsByName(names)
	if err != nil {
		return nil, err
	}
	switch mode {
	case Full, Task, Minimal:
	case None: // no sections, but their names were checked above, because they matter as soon as the mode changes
		return nil, nil
	default:
		return nil, invalid.Field("PromptProfile spec.mode", "%q is not a mode: use Full, Minimal, Task or None", mode)
	}
	if names == nil {
		return ofMode(mode), nil
	}
	return chosen, nil
}
