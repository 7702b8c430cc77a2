package turncontext

import (
	"cmp"
	"slices"
)

const (
	// MaxMemories is how many memories a prompt has at most.
	MaxMemories = 10
	// MaxEnrichments is how many enrichments a prompt has at most.
	MaxEnrichments = 8
)

// The reasons for which a candidate is dropped.
const (
	overCap      = "over the cap"
	notForModels = "its audience is Product"
	rendersBlank = "it renders blank"
	isBlank      = "it is blank"
)

// Dropped is something that was given and is not in the prompt.
type Dropped struct {
	// Kind of it: memory, enrichment, fact, preference, overlay, guardrail, expression, mode, text, contribution, subject or skill.
	Kind string `json:"kind"`
	ID   string `json:"id"`
	// Reason why it was left out.
	Reason string `json:"reason"`
}

// selectMemories returns the most relevant memories, at most so many and never over MaxMemories, and the rest, each in the order of relevance.
func selectMemories(candidates []Memory, most int) (used, dropped []Memory) {
	ordered := slices.SortedStableFunc(slices.Values(candidates), func(a, b Memory) int {
		return cmp.Compare(b.Relevance, a.Relevance)
	})
	most = min(max(most, 0), MaxMemories, len(ordered))
	return ordered[:most], ordered[most:]
}

// selectEnrichments returns the most important enrichments, at most MaxEnrichments, and the rest, each in the order of
// importance.
func selectEnrichments(candidates []Enrichment) (used, dropped []Enrichment) {
	rank := map[Level]int{High: 0, Medium: 1, "": 1, Low: 2}
	ordered := slices.SortedStableFunc(slices.Values(candidates), func(a, b Enrichment) int {
		return rank[a.Importance] - rank[b.Importance]
	})
	most := min(MaxEnrichments, len(ordered))
	return ordered[:most], ordered[most:]
}
