package tool

import (
	"cmp"
	"slices"
)

// Selection configures Select.
type Selection struct {
	// Most is the maximum number of tools, at least 1.
	Most int
	// Semantic ranks the tools by how well their words match Query. Otherwise their order decides.
	Semantic bool
	Query    string
	// Similar returns how similar texts about tools are to Query, or nil for a text for which that is not known. It is
	// called if tools are ranked. If it is nil, or returns nil, words alone decide.
	Similar func(texts []string) []*float64
	// Pinned are the names of the tools that are selected first.
	Pinned []string
}

// Select returns the selected tools, in their original order, and the number of tools that it has left out. Pinned
// tools are selected first; a pinned name is the one that the model sees or the one that the server uses. The other
// tools follow, best first if s.Semantic is set. Otherwise, and for equal scores, their order decides.
func Select(tools []Tool, s Selection) (kept []Tool, leftOut int) {
	most := max(1, s.Most)
	if len(tools) <= most {
		return tools, 0
	}
	var scores []float64
	if s.Semantic {
		scores = rank(tools, s.Query, s.Similar)
	}
	order := make([]int, len(tools))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if pinned := cmp.Compare(pinOrder(tools[a], s.Pinned), pinOrder(tools[b], s.Pinned)); pinned != 0 ||
			scores == nil || pinOrder(tools[a], s.Pinned) == 0 {
			return pinned
		}
		return cmp.Compare(scores[b], scores[a])
	})
	chosen := order[:most]
	slices.Sort(chosen)
	for _, i := range chosen {
		kept = append(kept, tools[i])
	}
	return kept, len(tools) - most
}

// pinOrder returns 0 for a pinned tool and 1 for any other.
func pinOrder(t Tool, pinned []string) int {
	if slices.Contains(pinned, t.Name) || t.Source.Name != "" && slices.Contains(pinned, t.Source.Name) {
		return 0
	}
	return 1
}
