package render

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// reportRows returns rows that describe how the messages were made.
func reportRows(p *prepare.Prepared) []output.Row {
	r, from := p.Report, p.Report.Provenance
	return []output.Row{
		{Name: "promptProfile", Value: termsafe.Line(
			fmt.Sprintf("%s (%s %s)", r.Profile.Name, r.Profile.ID, r.Profile.Version), output.LongestID)},
		{Name: "promptRenderHash", Value: r.RenderHash},
		{Name: "promptHash", Value: r.PromptHash},
		{Name: "contextHash", Value: r.ContextHash},
		{Name: "mode", Value: string(r.Mode)},
		{Name: "sections", Value: cmp.Or(names(r.Sections), "none")},
		{Name: "blank sections", Value: names(blankSections(r))},
		{Name: "stableChars", Value: termsafe.Thousands(r.StableChars)},
		{Name: "dynamicChars", Value: termsafe.Thousands(r.DynamicChars)},
		{Name: "tools", Value: cmp.Or(names(toolNames(p)), "none")},
		{Name: "expression", Value: expressionText(p.Assembly.Expression)},
		{Name: "responseStyle", Value: styleText(p.Assembly.ResponseStyle)},
		{Name: "overlays", Value: names(from.UsedOverlayIDs)},
		{Name: "guardrails", Value: names(from.UsedGuardrailIDs)},
		{Name: "memories", Value: usedOf(from.UsedMemoryIDs, from.DroppedMemoryIDs)},
		{Name: "enrichments", Value: usedOf(from.UsedEnrichmentIDs, from.DroppedEnrichmentIDs)},
		{Name: "contributions", Value: contributionsText(r)},
	}
}

// names returns names or IDs as a list on one line.
func names(all []string) string {
	shown := make([]string, 0, len(all))
	for _, name := range all {
		shown = append(shown, termsafe.Line(name, output.LongestID))
	}
	return strings.Join(shown, ", ")
}

// blankSections returns the sections that the prompt should have and that had no content.
func blankSections(r prepare.Report) []string {
	return slices.DeleteFunc(slices.Clone(r.SectionsAsked), func(name string) bool { return slices.Contains(r.Sections, name) })
}

func toolNames(p *prepare.Prepared) []string {
	all := make([]string, 0, len(p.Tools))
	for _, t := range p.Tools {
		all = append(all, t.Name)
	}
	return all
}

// usedOf returns how many candidates were used, and which, or an empty string if there were no candidates.
func usedOf(used, dropped []string) string {
	if len(used)+len(dropped) == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %d", len(used), len(used)+len(dropped))
	if len(used) > 0 {
		text += ": " + names(used)
	}
	return text
}

// expressionText returns the fields of an expression that differ from the default.
func expressionText(e turncontext.Expression) string {
	d := turncontext.DefaultExpression()
	var parts []string
	for _, f := range []struct{ name, have, usual string }{
		{"tone", e.Tone, d.Tone},
		{"directness", string(e.Directness), string(d.Directness)},
		{"warmth", string(e.Warmth), string(d.Warmth)},
		{"humor", string(e.Humor), string(d.Humor)},
		{"initiative", string(e.Initiative), string(d.Initiative)},
		{"explanationDensity", string(e.ExplanationDensity), string(d.ExplanationDensity)},
	} {
		if f.have != f.usual && f.have != "" {
			parts = append(parts, f.name+" "+termsafe.Line(f.have, output.LongestID))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "default")
}

func styleText(s turncontext.ResponseStyle) string {
	var parts []string
	if s.PreferMarkdown != nil {
		parts = append(parts, fmt.Sprintf("preferMarkdown %t", *s.PreferMarkdown))
	}
	if s.MaxAnswerChars != nil {
		parts = append(parts, "maxAnswerChars "+termsafe.Thousands(*s.MaxAnswerChars))
	}
	return strings.Join(parts, ", ")
}

func contributionsText(r prepare.Report) string {
	parts := make([]string, 0, len(r.Contributions))
	for _, c := range r.Contributions {
		trust := "untrusted"
		if c.Trusted {
			trust = "trusted"
		}
		parts = append(parts, fmt.Sprintf("%s (%s, %s characters)",
			termsafe.Line(c.Name, output.LongestID), trust, termsafe.Thousands(c.Chars)))
	}
	return strings.Join(parts, ", ")
}

// leftOutRows returns rows that name what was left out of the prompt, and why.
func leftOutRows(p *prepare.Prepared) []output.Row {
	var rows []output.Row
	for _, d := range p.Assembly.Dropped {
		rows = append(rows, output.Row{Name: d.Kind + " " + termsafe.Line(d.ID, output.LongestID), Value: d.Reason})
	}
	for _, c := range p.Report.Contributions {
		if c.LeftOut > 0 {
			rows = append(rows, output.Row{
				Name:  "contribution " + termsafe.Line(c.Name, output.LongestID),
				Value: fmt.Sprintf("cut by %s characters", termsafe.Thousands(c.LeftOut)),
			})
		}
	}
	return rows
}
