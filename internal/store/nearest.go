package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
)

// Nearest finds the memories of an owner whose vectors are most similar to another one. The zero value finds none.
//
// It looks at each vector. An owner has at most memories.MaxItems, so an index would be slower to write and no faster
// to search.
type Nearest struct {
	// To is the vector to which the others are compared.
	To ranking.Vector
	// similarity is that of each memory with a vector, by its ID.
	similarity map[string]float64
}

// Add adds the vector of a memory, as bytes. It must be of the same space.
func (n *Nearest) Add(id string, vector []byte) {
	s, ok := n.To.SimilarityTo(vector)
	if !ok {
		return
	}
	if n.similarity == nil {
		n.similarity = map[string]float64{}
	}
	n.similarity[id] = s
}

// IDs returns the IDs of the most similar memories, at most memories.MaxNearest.
func (n *Nearest) IDs() []string {
	ids := slices.SortedFunc(maps.Keys(n.similarity), func(a, b string) int {
		return cmp.Or(cmp.Compare(n.similarity[b], n.similarity[a]), strings.Compare(a, b))
	})
	return ids[:min(len(ids), memories.MaxNearest)]
}

// Rate sets the similarity of memories.
func (n *Nearest) Rate(all []memories.Memory) {
	for i := range all {
		if s, ok := n.similarity[all[i].ID]; ok {
			all[i].Similarity = &s
		}
	}
}
