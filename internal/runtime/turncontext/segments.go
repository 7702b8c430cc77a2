package turncontext

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
)

// Segment is one piece of instruction and where it comes from.
type Segment struct {
	ID     string `json:"id"`
	Source string `json:"source,omitempty"`
	Text   string `json:"text"`
	// Priority by which the pieces are sorted when they are joined.
	Priority Level `json:"priority"`
}

// Segments are the instructions of a Turn, each list in the order in which it was given.
type Segments struct {
	System    []Segment `json:"system"`
	Developer []Segment `json:"developer"`
	Guardrail []Segment `json:"guardrail"`
}

// The ids of the segments that Capstan names.
const (
	segmentBaseSystem    = "base-system"
	segmentBaseDeveloper = "base-developer"
	segmentShapingMode   = "shaping-mode"
)

func segments(in Input) Segments {
	s := Segments{System: []Segment{}, Developer: []Segment{}, Guardrail: []Segment{}}
	if !blank(in.Identity.SystemPrompt) {
		s.System = append(s.System, Segment{segmentBaseSystem, "identity", in.Identity.SystemPrompt, High})
	}
	if !blank(in.Identity.DeveloperPrompt) {
		s.Developer = append(s.Developer, Segment{segmentBaseDeveloper, "identity", in.Identity.DeveloperPrompt, High})
	}
	for _, o := range in.overlays() {
		s.Developer = append(s.Developer, Segment{o.ID, o.Source, o.Text, cmp.Or(o.Priority, Medium)})
	}
	if mode := cmp.Or(line(in.Turn.Mode), line(in.Profile.Mode)); mode != "" {
		s.Developer = append(s.Developer, Segment{segmentShapingMode, "shaping", "Current mode: " + mode, Medium})
	}
	for _, g := range in.guardrails() {
		s.Guardrail = append(s.Guardrail, Segment{g.ID, g.Source, g.Rule, cmp.Or(g.Priority, Medium)})
	}
	return s
}

// sorted returns the texts of segments, the highest priority first, without the blank ones.
func sorted(all []Segment) []string {
	rank := map[Level]int{High: 0, Medium: 1, Low: 2}
	ordered := slices.SortedStableFunc(slices.Values(all), func(a, b Segment) int { return rank[a.Priority] - rank[b.Priority] })
	var texts []string
	for _, s := range ordered {
		if !blank(s.Text) {
			texts = append(texts, strings.TrimSpace(s.Text))
		}
	}
	return texts
}

// guardrailHeading stands above the guardrails in a prompt.
const guardrailHeading = "## Guardrails\nThese rules constrain everything above. Where an instruction and one of these rules differ, the rule holds."

// Instructions is the text of the Turn's own instructions: overlays and mode, expression and style, then the guardrails.
// The identity's prompts are not in it; they stand in the prompt's instructions. It is empty where there is nothing to say.
func (a Assembly) Instructions() string {
	own := a.Segments.Developer
	if slices.Contains(a.Identity.Summary, developerPromptPresent) {
		own = own[1:] // not by its id, which an overlay may have too
	}
	parts := sorted(own)
	for _, text := range []string{a.Expression.Line(), a.ResponseStyle.Line()} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	if rules := sorted(a.Segments.Guardrail); len(rules) > 0 {
		parts = append(append(parts, guardrailHeading), rules...)
	}
	return strings.Join(parts, "\n\n")
}

// over returns the style with the fields that a later layer gives.
func (s ResponseStyle) over(later ResponseStyle) ResponseStyle {
	return ResponseStyle{
		PreferMarkdown: cmp.Or(later.PreferMarkdown, s.PreferMarkdown),
		MaxAnswerChars: cmp.Or(later.MaxAnswerChars, s.MaxAnswerChars),
	}
}

// Line says the style in one line for the model, empty where nobody said anything.
func (s ResponseStyle) Line() string {
	var parts []string
	if m := s.PreferMarkdown; m != nil && *m {
		parts = append(parts, "write Markdown")
	} else if m != nil {
		parts = append(parts, "write plain text without Markdown")
	}
	if n := s.MaxAnswerChars; n != nil {
		parts = append(parts, fmt.Sprintf("use at most %d characters", *n))
	}
	if len(parts) == 0 {
		return ""
	}
	return "Form of the answer: " + strings.Join(parts, ", ") + "."
}

func blank(text string) bool { return fence.Blank(text) }

func line(text string) string { return fence.Line(text) }
