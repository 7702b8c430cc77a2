package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// longestID is the maximum number of characters shown of a name or an ID.
const longestID = 256

// row is a line of a report: a name and a value. Neither contains line feeds or tabs.
type row struct{ name, value string }

// table aligns rows in columns. It leaves out rows with an empty value.
func table(rows []row) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		if r.value != "" {
			fmt.Fprintf(w, "  %s\t%s\n", r.name, r.value) //nolint:errcheck // because a strings.Builder takes all
		}
	}
	w.Flush() //nolint:errcheck,gosec // because a strings.Builder takes all
	return b.String()
}

// reportRows returns rows that describe how the messages were made.
func reportRows(p *prepare.Prepared) []row {
	r, from := p.Report, p.Report.Provenance
	return []row{
		{"promptProfile", termsafe.Line(fmt.Sprintf("%s (%s %s)", r.Profile.Name, r.Profile.ID, r.Profile.Version), longestID)},
		{"promptRenderHash", r.RenderHash},
		{"promptHash", r.PromptHash},
		{"contextHash", r.ContextHash},
		{"mode", string(r.Mode)},
		{"sections", cmp.Or(names(r.Sections), "none")},
		{"blank sections", names(blankSections(r))},
		{"stableChars", termsafe.Thousands(r.StableChars)},
		{"dynamicChars", termsafe.Thousands(r.DynamicChars)},
		{"tools", cmp.Or(names(toolNames(p)), "none")},
		{"expression", expressionText(p.Assembly.Expression)},
		{"responseStyle", styleText(p.Assembly.ResponseStyle)},
		{"overlays", names(from.UsedOverlayIDs)},
		{"guardrails", names(from.UsedGuardrailIDs)},
		{"memories", usedOf(from.UsedMemoryIDs, from.DroppedMemoryIDs)},
		{"enrichments", usedOf(from.UsedEnrichmentIDs, from.DroppedEnrichmentIDs)},
		{"contributions", contributionsText(r)},
	}
}

// names returns names and IDs as a list on one line.
func names(all []string) string {
	shown := make([]string, 0, len(all))
	for _, name := range all {
		shown = append(shown, termsafe.Line(name, longestID))
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

// usedOf returns how many of the candidates were used, or an empty string if there were none.
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
			parts = append(parts, f.name+" "+termsafe.Line(f.have, longestID))
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
		parts = append(parts, fmt.Sprintf("%s (%s, %s characters)", termsafe.Line(c.Name, longestID), trust, termsafe.Thousands(c.Chars)))
	}
	return strings.Join(parts, ", ")
}

// leftOutRows returns rows that name what was left out of the prompt, and why.
func leftOutRows(p *prepare.Prepared) []row {
	var rows []row
	for _, d := range p.Assembly.Dropped {
		rows = append(rows, row{d.Kind + " " + termsafe.Line(d.ID, longestID), d.Reason})
	}
	for _, c := range p.Report.Contributions {
		if c.LeftOut > 0 {
			rows = append(rows, row{
				"contribution " + termsafe.Line(c.Name, longestID),
				fmt.Sprintf("cut by %s characters", termsafe.Thousands(c.LeftOut)),
			})
		}
	}
	return rows
}
