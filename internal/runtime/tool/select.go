package tool

import (
	"cmp"
	"slices"
)

// Selection chooses among tools.
type Selection struct {
	// Most is how many are offered, at least 1.
	Most int
	// Semantic ranks them by how well their words fit Query, and else their order decides.
	Semantic bool
	Query    string
	// Pinned are the names of those that are offered in any case.
	Pinned []string
}

// Select returns the tools to offer, in their order, and how many it has left out. The pinned ones are the first to have a
// place, by the name that the model knows or by that of their server; the others follow in their order, or best first. Those
// that fit the query as well as each other follow in their order.
func Select(tools []Tool, s Selection) (kept []Tool, leftOut int) {
	most := max(1, s.Most)
	if len(tools) <= most {
		return tools, 0
	}
	var scores []float64
	if s.Semantic {
		scores = rank(tools, s.Query)
	}
	order := make([]int, len(tools))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if pinned := cmp.Compare(rung(tools[a], s.Pinned), rung(tools[b], s.Pinned)); pinned != 0 || scores == nil || rung(tools[a], s.Pinned) == 0 {
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

// rung is 0 for a pinned tool and 1 for any other.
func rung(t Tool, pinned []string) int {
	if slices.Contains(pinned, t.Name) || t.Source.Name != "" && slices.Contains(pinned, t.Source.Name) {
		return 0
	}
	return 1
}
