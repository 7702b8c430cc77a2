// Package prompt makes the system prompt: tagged sections in two parts, a stable one that is the same for every Turn of
// an agent and its profile, so that providers can cache it, and a dynamic one that is not.
//
// The table in sections.go tells the order of a prompt; below it stands a function for each section.
package prompt

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/template"
)

// Mode is which sections a prompt has, and in which voice it speaks.
type Mode string

// The modes.
const (
	Full    Mode = "Full"
	Task    Mode = "Task"
	Minimal Mode = "Minimal"
	None    Mode = "None"
)

// Input is all that a system prompt is made of. Its texts are rendered already.
type Input struct {
	// Mode of the prompt; ModeOf says which where nobody does.
	Mode Mode
	// Sections asked for, in their order; nil stands for those of the mode, the empty list for none.
	Sections []string
	// Depth is how many agents have handed the request on.
	Depth int
	// AssistantName is what the assistant goes by; AgentName if it is blank.
	AssistantName, AgentName string
	// Description of the agent; may be empty.
	Description string
	// Model the prompt is made for.
	Model string
	// Thinking is how long the model should think before it answers; empty is Off.
	Thinking Thinking
	// StablePrefix and DynamicSuffix stand around the sections; may be blank.
	StablePrefix, DynamicSuffix template.Text
	// Instructions in their order; blank ones are left out.
	Instructions []template.Text
	// Behavior and ToolsText replace Capstan's own texts if they are not nil, even by the empty text.
	Behavior, ToolsText *template.Text
	// Loaded skills stand in the prompt whole, Available ones are listed.
	Loaded, Available []Skill
	// Tools that the model is offered, in their order.
	Tools []Tool
	// TurnInstructions are overlays, mode, expression and guardrails; may be blank.
	TurnInstructions template.Text
	// Guardrails are the profile's. They are part of TurnInstructions, and stand by themselves in a prompt that was not asked for
	// that section: no mode and no choice of sections leaves them out. May be blank.
	Guardrails template.Text
	// Subject of the conversation; may be empty.
	Subject string
	// Contributions to the live context, in their order.
	Contributions []Contribution
	// Now is the time the environment speaks of, in the agent's time zone.
	Now time.Time
}

// System is a finished system prompt.
type System struct {
	// Text of both parts.
	Text string
	// Report on the text.
	Report Report
}

// Report says what a system prompt is made of. Lengths are in Unicode code points.
type Report struct {
	// Mode of the prompt.
	Mode Mode `json:"mode"`
	// Chars is the length of the whole text.
	Chars int `json:"chars"`
	// StableChars is the length of the stable part: the place of the cache boundary.
	StableChars int `json:"stableChars"`
	// DynamicChars is the length of the rest, the blank line between the parts included.
	DynamicChars int `json:"dynamicChars"`
	// SectionsAsked are the sections that were to be rendered, in order.
	SectionsAsked []string `json:"sectionsAsked"`
	// Sections are those that were not blank, in order.
	Sections []string `json:"sections"`
	// ToolCount is the number of tools the model is offered.
	ToolCount int `json:"toolCount"`
	// Contributions that the live context holds, in order.
	Contributions []Contributed `json:"contributions,omitempty"`
	// PromptHash is the SHA-256 of the whole text, in hexadecimal.
	PromptHash string `json:"promptHash"`
	// RenderHash is the SHA-256 of the canonical JSON {"text": stable part}, in hexadecimal.
	RenderHash string `json:"renderHash"`
}

// Contributed says how much of a contribution the prompt holds, in Unicode code points.
type Contributed struct {
	Name    string `json:"name"`
	Trusted bool   `json:"trusted,omitempty"`
	Chars   int    `json:"chars"`
	LeftOut int    `json:"leftOut,omitempty"`
}

// ModeOf returns the mode of a prompt: the Turn's, else the profile's, else Minimal for a sub-agent, else Full.
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

// Make renders the system prompt. It returns an *invalid.Error for an unknown mode or section, and for a tool that no
// model could be told of.
func Make(in Input) (System, error) {
	asked, err := choose(in)
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
	if !slices.ContainsFunc(asked, func(s section) bool { return s.name == SectionTurnInstructions }) {
		r.add(guardrails)
	}
	r.end()
	return r.system(asked)
}

// rendering is one making of a prompt.
type rendering struct {
	Input
	// stable and dynamic are the pieces of the two parts.
	stable, dynamic []string
	// rendered are the names of the sections that were not blank.
	rendered []string
	// contributed is what the live context holds.
	contributed []Contributed
	// noticed is true when a piece has said what a fence is.
	noticed bool
}

// begin writes what stands before the sections.
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

// add writes a section, unless it is blank. What follows a dynamic section is dynamic, whatever it is.
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

// end writes what stands after the sections.
func (r *rendering) end() {
	if r.Mode != None && !r.DynamicSuffix.Blank() {
		r.dynamic = append(r.dynamic, r.authored(r.DynamicSuffix))
	}
}

// authored joins texts as their authors wrote them, with the notice before them if they hold fences and no piece has had
// it yet.
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
		parts = append([]string{fence.Notice}, parts...)
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

// choose returns the sections that the input asks for.
func choose(in Input) ([]section, error) {
	chosen, err := named(in.Sections)
	if err != nil {
		return nil, err
	}
	switch in.Mode {
	case Full, Task, Minimal:
	case None: // it has no sections, but a wrong name would show as soon as another mode is chosen
		return nil, nil
	default:
		return nil, invalid.Field("PromptProfile spec.mode", "%q is not a mode: use Full, Minimal, Task or None", in.Mode)
	}
	if in.Sections == nil {
		return ofMode(in.Mode), nil
	}
	return chosen, nil
}
