package render

import (
	"regexp"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Difference is the difference between two prompts of the same request.
type Difference struct{ comparison comparison }

// Compare compares two prompts.
func Compare(before, after *prepare.Prepared) (*Difference, error) {
	d := &Difference{comparison{before: before, after: after}}
	return d, d.comparison.compare()
}

// Differs reports whether the model receives other messages or tools than before.
func (d *Difference) Differs() bool { return d.comparison.differs() }

// Text returns the changed messages and the report of the prompt for people, as capstan render --diff prints them. It
// has no control characters.
func (d *Difference) Text() string {
	return termsafe.Exact(strings.TrimPrefix(d.comparison.changes(), "\n"))
}

// Record returns the difference in the form of capstan render --diff -o json.
func (d *Difference) Record() any { return d.comparison.record() }

// Messages returns the names of the messages that differ, each once, and "tools" if the tools differ.
func (d *Difference) Messages() []string {
	var names []string
	for _, m := range d.comparison.messages {
		if !slices.Contains(names, m.Name) {
			names = append(names, m.Name)
		}
	}
	if len(d.comparison.tools) > 0 {
		names = append(names, "tools")
	}
	return names
}

// Hunks returns the changed messages and tools without their positions and sizes. Two prompts that change in the same
// way have the same hunks. remove returns a text without the texts that must not be shown. It receives whole messages,
// because a part of JSON is not JSON, and a line of a diff begins with another character.
func (d *Difference) Hunks(remove func(text string) string) (string, error) {
	var b strings.Builder
	for _, m := range d.comparison.messages {
		diff, err := unified(m.Name, remove(m.before.Content), remove(m.after.Content))
		if err != nil {
			return "", err
		}
		b.WriteString(m.Name + " " + strings.ToLower(string(m.Change)))
		if diff == "" && m.Diff != "" {
			b.WriteString(", only in redacted texts")
		}
		b.WriteString("\n" + hunks(diff))
	}
	if text := d.comparison.toolsText(); text != "" {
		b.WriteString("tools " + remove(text) + "\n")
	}
	return termsafe.Exact(hunkHeader.ReplaceAllString(b.String(), "@@")), nil
}

// hunkHeader matches the line of a unified diff with the position of a change.
var hunkHeader = regexp.MustCompile(`(?m)^@@ -\d+(,\d+)? \+\d+(,\d+)? @@$`)

// Unified returns a unified diff of two texts, or an empty text if they are equal. Its first lines contain the name.
func Unified(name, before, after string) (string, error) { return unified(name, before, after) }

// HunksOf returns a unified diff without the lines that name the texts.
func HunksOf(diff string) string { return hunks(diff) }
