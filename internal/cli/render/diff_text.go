package render

import (
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// text returns the comparison for a person. A line of a message always starts with a space, a plus, a minus, a
// backslash or an at sign, so no message can imitate the headings.
func (c *comparison) text() string {
	if !c.differs() {
		return fmt.Sprintf("%s: the prompts are the same: %d messages, promptHash %s\n", c.turn, len(c.after.Messages),
			c.after.Report.PromptHash)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: the prompts differ\n", c.turn)
	fmt.Fprintf(&b, "--- %s: %s\n", c.oldPath, strings.Join(c.fromOther, ", "))
	fmt.Fprintf(&b, "+++ %s\n", c.newPath)
	b.WriteString(c.changes())
	return b.String()
}

// changes returns the changed messages, and the report.
func (c *comparison) changes() string {
	var b strings.Builder
	for _, m := range c.messages {
		b.WriteString("\n" + m.heading() + "\n" + hunks(m.Diff))
	}
	b.WriteString("\nReport\n" + output.Table(c.changedRows()))
	before, after := leftOutRows(c.before), leftOutRows(c.after)
	for _, list := range []struct {
		title string
		rows  []output.Row
	}{{"Newly left out", without(after, before)}, {"No longer left out", without(before, after)}} {
		if len(list.rows) > 0 {
			b.WriteString("\n" + list.title + "\n" + output.Table(list.rows))
		}
	}
	return b.String()
}

// heading returns a line that says which message changed, and how.
func (m messageChange) heading() string {
	role := string(m.Role)
	if m.OldRole != "" {
		role = arrow(string(m.OldRole), role)
	}
	sizes := termsafe.Thousands(chars(m.after))
	switch m.Change {
	case removed:
		sizes = termsafe.Thousands(chars(m.before))
	case changed:
		sizes = arrow(termsafe.Thousands(chars(m.before)), sizes)
	case added:
	}
	text := fmt.Sprintf("%d. %s (%s) %s, %s characters", m.Position, m.Name, role, strings.ToLower(string(m.Change)), sizes)
	if from, to := m.before.StableChars, m.after.StableChars; from != to && m.Change == changed {
		text += ", cache boundary at " + arrow(termsafe.Thousands(from), termsafe.Thousands(to))
	}
	return text
}

// hunks returns a unified diff without the lines that name the files.
func hunks(diff string) string {
	if i := strings.Index(diff, "\n@@ "); i >= 0 {
		return diff[i+1:]
	}
	return ""
}

func arrow(from, to string) string {
	if from == to {
		return from
	}
	return from + " → " + to
}

// changedRows returns the rows of the report with their old and new values. The value of a row that has not changed is
// empty. The value of a list names the added and removed items.
func (c *comparison) changedRows() []output.Row {
	before, after := reportRows(c.before), reportRows(c.after)
	lists := map[string]string{
		"sections": listChange(c.before.Report.Sections, c.after.Report.Sections),
		"tools":    c.toolsText(),
		// The change of the sections implies the change of the blank sections.
		"blank sections": "",
	}
	rows := []output.Row{
		{Name: "model", Value: changedValue(c.before.Provider+":"+c.before.Model, c.after.Provider+":"+c.after.Model)},
		{Name: "messages", Value: changedValue(fmt.Sprint(len(c.before.Messages)), fmt.Sprint(len(c.after.Messages)))},
	}
	for i := range after {
		value, isList := lists[after[i].Name]
		if !isList {
			value = changedValue(before[i].Value, after[i].Value)
		}
		rows = append(rows, output.Row{Name: after[i].Name, Value: value})
	}
	return rows
}

// changedValue returns both values, or an empty string if they are equal.
func changedValue(before, after string) string {
	if before == after {
		return ""
	}
	if before == "" {
		before = "none"
	}
	if after == "" {
		after = "none"
	}
	return before + " → " + after
}

// listChange returns the items that a list gained and lost, or its new order.
func listChange(before, after []string) string {
	isIn := func(list []string) func(string) bool {
		return func(s string) bool { return slices.Contains(list, s) }
	}
	text := gainsAndLosses(slices.DeleteFunc(slices.Clone(after), isIn(before)),
		slices.DeleteFunc(slices.Clone(before), isIn(after)), nil)
	if text == "" && !slices.Equal(before, after) {
		text = "now in the order " + names(after)
	}
	return text
}

func (c *comparison) toolsText() string {
	byChange := map[change][]string{}
	for _, t := range c.tools {
		byChange[t.Change] = append(byChange[t.Change], t.Name)
	}
	return gainsAndLosses(byChange[added], byChange[removed], byChange[changed])
}

// gainsAndLosses returns the added, the removed and the changed items of a list on one line.
func gainsAndLosses(gained, lost, modified []string) string {
	var parts []string
	for _, p := range []struct {
		verb string
		list []string
	}{{"added", gained}, {"removed", lost}, {"changed", modified}} {
		if len(p.list) > 0 {
			parts = append(parts, p.verb+" "+names(p.list))
		}
	}
	return strings.Join(parts, "; ")
}

// without returns the rows that are not in others.
func without(rows, others []output.Row) []output.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r output.Row) bool { return slices.Contains(others, r) })
}

// The colours of a diff, as terminal escape sequences.
const (
	colourAdded   = "\x1b[32m"
	colourRemoved = "\x1b[31m"
	colourHunk    = "\x1b[36m"
	colourEnd     = "\x1b[0m"
)

// Coloured adds colours to a diff. It returns the diff unchanged if Out is not a colour terminal or if NO_COLOR is
// set (see no-color.org).
func Coloured(env terminal.Environment, diff string) string {
	noColour, _ := env.LookupEnv("NO_COLOR")
	if !env.OutIsTerminal || noColour != "" || env.IsDumb() {
		return diff
	}
	var b strings.Builder
	for line := range strings.Lines(diff) {
		colour := map[byte]string{'+': colourAdded, '-': colourRemoved, '@': colourHunk}[line[0]]
		if colour == "" {
			b.WriteString(line)
			continue
		}
		body, found := strings.CutSuffix(line, "\n")
		b.WriteString(colour + body + colourEnd)
		if found {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
