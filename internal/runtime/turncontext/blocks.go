package turncontext

import (
	"cmp"
	"strings"
)

// Lines returns the lines of the session block, one for each known field. A nil Session has none.
func (s *Session) Lines() []string {
	if s == nil {
		return nil
	}
	var lines []string
	for _, l := range []struct{ name, value string }{
		{"State", s.State},
		{"Summary", s.Summary},
		{"Unresolved", strings.Join(s.UnresolvedQuestions, "; ")},
		{"Momentum", string(s.Momentum)},
	} {
		if !blank(l.value) {
			lines = append(lines, l.name+": "+l.value)
		}
	}
	return lines
}

// Block is a piece of context that the model receives.
type Block struct {
	ID         string `json:"id"`
	Label      string `json:"label"`
	Content    string `json:"content"`
	Source     string `json:"source,omitempty"`
	Category   string `json:"category"`
	Importance Level  `json:"importance,omitempty"`
	Freshness  string `json:"freshness,omitempty"`
}

// blocks returns the blocks that the model receives: session, memories, facts, preferences, enrichments and data.
func blocks(turnName string, c Context) []Block {
	all := []Block{}
	if lines := c.Session.Lines(); len(lines) > 0 {
		all = append(all, Block{
			ID: "session-" + cmp.Or(c.Session.ID, turnName), Label: "Session Context", Content: strings.Join(lines, "\n"),
			Source: "session", Category: "session",
		})
	}
	for _, m := range c.Memories {
		label := "Memory"
		if m.Scope != "" {
			label += " [" + m.Scope + "]"
		}
		all = append(all, Block{
			ID: "memory-" + m.ID, Label: label, Content: m.Text, Source: m.Scope, Category: "memory", Freshness: m.Freshness,
		})
	}
	for _, f := range c.Facts {
		all = append(all, Block{ID: "fact-" + f.ID, Label: "Fact", Content: f.Text, Source: f.Source, Category: "fact"})
	}
	if len(c.Preferences) > 0 {
		all = append(all, Block{
			ID: "preferences", Label: "Preferences", Content: strings.Join(c.Preferences, "\n"), Category: "preference",
		})
	}
	for _, e := range c.Enrichments {
		all = append(all, Block{
			ID: "enrichment-" + e.ID, Label: e.Label(), Content: e.Content, Source: e.Source, Category: "enrichment",
			Importance: e.Importance,
		})
	}
	if c.Data != "" {
		all = append(all, Block{ID: "data", Label: "Data", Content: c.Data, Category: "data"})
	}
	return all
}

// Label returns the title of an enrichment. If the title is blank, it returns the kind and the source.
func (e Enrichment) Label() string {
	switch {
	case !blank(e.Title):
		return e.Title
	case e.Source == "":
		return e.Kind
	}
	return e.Kind + " from " + e.Source
}
