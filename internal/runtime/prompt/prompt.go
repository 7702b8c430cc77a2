// Package prompt makes the system prompt: tagged sections in two parts, a stable one that is the same for every Turn of
// an agent and its profile, so that providers can cache it, and a dynamic one that is not.
package prompt

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/fence"
)

// Agent is the part of an agent that its prompt speaks of.
type Agent struct {
	// Name of the agent.
	Name string
	// Description of what it is for; may be empty.
	Description string
	// Instructions of its own, a template; may be empty.
	Instructions string
}

// Profile is what the prompt says.
type Profile struct {
	// AssistantName is what the assistant goes by; the agent's name if empty.
	AssistantName string
	// SystemPrompt, DeveloperPrompt and Instructions are templates; at least one is not blank.
	SystemPrompt, DeveloperPrompt, Instructions string
	// Behavior replaces Capstan's own text if it is not nil, even by the empty text.
	Behavior *string
}

// Input is all that a system prompt is made of.
type Input struct {
	Agent   Agent
	Profile Profile
	// Model the prompt is made for.
	Model string
	// Scope of the templates.
	Scope Scope
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
	// Chars is the length of the whole text.
	Chars int `json:"chars"`
	// StableChars is the length of the stable part.
	StableChars int `json:"stableChars"`
	// DynamicChars is the length of the rest, the blank line between the parts included.
	DynamicChars int `json:"dynamicChars"`
	// SectionsAsked are the sections that were to be rendered, in order.
	SectionsAsked []string `json:"sectionsAsked"`
	// Sections are those that were not blank, in order.
	Sections []string `json:"sections"`
	// PromptHash is the SHA-256 of the whole text, in hexadecimal.
	PromptHash string `json:"promptHash"`
	// RenderHash is the SHA-256 of the canonical JSON {"text": stable part}, in hexadecimal.
	RenderHash string `json:"renderHash"`
}

// section is one tagged part of the prompt. An empty body leaves it out, unless keep says that it stands all the same.
type section struct {
	name, tag string
	dynamic   bool
	render    func(*rendering) (body string, keep bool, err error)
}

// rendering is one making of a prompt.
type rendering struct {
	Input
	// noticed is true when a section has said what a fence is.
	noticed bool
}

// notice returns the texts with the notice before them if they need it and no section had it yet.
func (r *rendering) notice(fenced bool, parts []string) []string {
	if !fenced || r.noticed {
		return parts
	}
	r.noticed = true
	return append([]string{fence.Notice}, parts...)
}

// sections of the prompt in their order; the dynamic ones come last.
var sections = []section{
	{name: "agent", tag: "agent", render: renderAgent},
	{name: "instructions", tag: "instructions", render: renderInstructions},
	{name: "behavior", tag: "behavior", render: renderBehavior},
	{name: "environment", tag: "environment", dynamic: true, render: renderEnvironment},
}

// Make renders the system prompt. It returns a *TemplateError for a text that does not render, or if nothing instructs
// the model.
func Make(in Input) (System, error) {
	var stable, dynamic []string
	var report Report
	r := &rendering{Input: in}
	for _, s := range sections {
		report.SectionsAsked = append(report.SectionsAsked, s.name)
		body, keep, err := s.render(r)
		if err != nil {
			return System{}, err
		}
		if strings.TrimSpace(body) == "" && !keep {
			continue
		}
		report.Sections = append(report.Sections, s.name)
		text := "<" + s.tag + ">\n" + body + "\n</" + s.tag + ">"
		if s.dynamic {
			dynamic = append(dynamic, text)
		} else {
			stable = append(stable, text)
		}
	}
	head := strings.Join(stable, "\n\n")
	text := strings.Join(append(stable, dynamic...), "\n\n")
	report.Chars = utf8.RuneCountInString(text)
	report.StableChars = utf8.RuneCountInString(head)
	report.DynamicChars = report.Chars - report.StableChars
	report.PromptHash = canonical.Sum([]byte(text))
	hash, err := canonical.Hash(map[string]string{"text": head})
	if err != nil {
		return System{}, err
	}
	report.RenderHash = hash
	return System{Text: text, Report: report}, nil
}

func renderAgent(in *rendering) (string, bool, error) {
	name := fence.Line(in.Profile.AssistantName)
	if name == "" {
		name = fence.Line(in.Agent.Name)
	}
	lines := []string{"- Name: " + name}
	if d := fence.Line(in.Agent.Description); d != "" {
		lines = append(lines, "- Description: "+d)
	}
	lines = append(lines, "- Model: "+fence.Line(in.Model))
	return strings.Join(lines, "\n"), false, nil
}

// Fields of the texts, as messages name them.
const (
	FieldSystemPrompt      = "PromptProfile spec.identity.systemPrompt"
	FieldDeveloperPrompt   = "PromptProfile spec.identity.developerPrompt"
	FieldInstructions      = "PromptProfile spec.instructions"
	FieldBehavior          = "PromptProfile spec.overrides.behavior"
	FieldAgentInstructions = "Agent spec.instructions"
)

func renderInstructions(in *rendering) (string, bool, error) {
	p := in.Profile
	if strings.TrimSpace(p.SystemPrompt+p.DeveloperPrompt+p.Instructions) == "" {
		return "", false, &TemplateError{Field: "PromptProfile spec", Reason: "at least one of identity.systemPrompt, identity.developerPrompt and instructions must be given and not blank"}
	}
	var parts []string
	fenced := false
	for _, t := range []struct{ field, text string }{
		{FieldSystemPrompt, p.SystemPrompt},
		{FieldDeveloperPrompt, p.DeveloperPrompt},
		{FieldInstructions, p.Instructions},
		{FieldAgentInstructions, in.Agent.Instructions},
	} {
		body, untrusted, err := in.Scope.render(t.field, t.text)
		if err != nil {
			return "", false, err
		}
		if body = strings.Trim(body, "\r\n"); strings.TrimSpace(body) != "" {
			parts = append(parts, body)
			fenced = fenced || untrusted
		}
	}
	return strings.Join(in.notice(fenced, parts), "\n\n"), false, nil
}

func renderBehavior(in *rendering) (string, bool, error) {
	if in.Profile.Behavior == nil {
		return behaviorChat, false, nil
	}
	body, untrusted, err := in.Scope.render(FieldBehavior, *in.Profile.Behavior)
	return strings.Join(in.notice(untrusted, []string{body}), "\n\n"), true, err
}

func renderEnvironment(in *rendering) (string, bool, error) {
	day := func(offset int) string {
		return Day(in.Now, offset).Format("Monday, January 2, 2006 (2006-01-02)")
	}
	return fmt.Sprintf("- Today: %s\n- Current time: %s\n- Yesterday: %s\n- Tomorrow: %s",
		day(0), in.Now.Format("15:04 MST"), day(-1), day(1)), false, nil
}

// Day returns the calendar day so many days after that of a time, in the zone of the time. The result is good for
// formatting its date only: it is noon in UTC, because the same hour of another day need not exist where clocks change.
func Day(t time.Time, offset int) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day+offset, 12, 0, 0, 0, time.UTC)
}
