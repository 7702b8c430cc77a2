package tool

import (
	"cmp"
	"slices"
)

// Selection configures Select.
type Selection struct {
	// Most is the maximum number of tools, at least 1.
	Most int
	// Semantic ranks the tools by how well they match Query. If Semantic is false, the order of the tools decides.
	Semantic bool
	Query    string
	// Similar returns the similarity of each text about a tool to Query, or nil for a text whose similarity is unknown.
	// It is called only if tools are ranked. If Similar is nil, or returns nil, only words are compared.
	Similar func(texts []string) []*float64
	// Pinned are the names of the tools that are selected first.
	Pinned []string
}

// Select returns the selected tools, in their original order, and the number of tools that it has left out. It selects
// pinned tools first. A pinned name may be the name that the model sees or the name that the server uses. If s.Semantic
// is true, the tools with the best scores follow. If it is false, and for equal scores, the order of the tools decides.
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

// pinOrder returns 0 for a pinned tool and 1 for any other tool.
func pinOrder(t Tool, pinned []string) int {
	if slices.Contains(pinned, t.Name) || t.Source.Name != "" && slices.Contains(pinned, t.Source.Name) {
		return 0
	}
	return 1
}
