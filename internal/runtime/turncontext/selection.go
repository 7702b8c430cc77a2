package turncontext

import (
	"cmp"
	"slices"
)

const (
	// MaxMemories is the maximum number of memories in a prompt.
	MaxMemories = 10
	// MaxEnrichments is the maximum number of enrichments in a prompt.
	MaxEnrichments = 8
)

// The reasons why an item is dropped.
const (
	overCap      = "over the cap"
	notForModels = "its audience is Product"
	rendersBlank = "it renders blank"
	isBlank      = "it is blank"
)

// Dropped is an item that was given but is not in the prompt.
type Dropped struct {
	// Kind is the kind of the item: memory, enrichment, fact, preference, overlay, guardrail, expression, mode, tone,
	// text, contribution, subject or skill.
	Kind string `json:"kind"`
	ID   string `json:"id"`
	// Reason says why the item was dropped.
	Reason string `json:"reason"`
}

// selectMemories returns the most relevant memories and the remaining memories, both in the order of relevance. It
// selects at most limit memories, and never more than MaxMemories.
func selectMemories(candidates []Memory, limit int) (used, dropped []Memory) {
	ordered := slices.SortedStableFunc(slices.Values(candidates), func(a, b Memory) int {
		return cmp.Compare(b.Relevance, a.Relevance)
	})
	limit = min(max(limit, 0), MaxMemories, len(ordered))
	return ordered[:limit], ordered[limit:]
}

// selectEnrichments returns the most important enrichments, at most MaxEnrichments, and the remaining enrichments, both
// in the order of importance.
func selectEnrichments(candidates []Enrichment) (used, dropped []Enrichment) {
	rank := map[Level]int{High: 0, Medium: 1, "": 1, Low: 2}
	ordered := slices.SortedStableFunc(slices.Values(candidates), func(a, b Enrichment) int {
		return rank[a.Importance] - rank[b.Importance]
	})
	most := min(MaxEnrichments, len(ordered))
	return ordered[:most], ordered[most:]
}
