package fairgate

import "slices"

// InTurn returns elements in the order in which a bounded list takes them: the first of each group, then the second of
// each, and so on. So a group with many elements does not displace those of others. Within a rank and within a group,
// the elements keep their order.
func InTurn[T any](elements []T, groupOf func(T) string) []T {
	var byRank [][]T
	seen := map[string]int{}
	for _, e := range elements {
		group := groupOf(e)
		rank := seen[group]
		seen[group]++
		if rank == len(byRank) {
			byRank = append(byRank, nil)
		}
		byRank[rank] = append(byRank[rank], e)
	}
	return slices.Concat(byRank...)
}
