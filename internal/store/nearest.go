package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
)

// Nearest finds the memories of an owner whose vectors are most similar to the vector To. The zero value finds no
// memories.
//
// Nearest compares all vectors. An owner has at most memories.MaxItems memories, so an index would be slower to write
// and no faster to search.
type Nearest struct {
	// To is the vector with which the vectors of the memories are compared.
	To ranking.Vector
	// similarity maps the ID of each added memory to the similarity of its vector.
	similarity map[string]float64
}

// Add adds the vector of a memory, as bytes. The vector must be of the same space as To. Add ignores a vector that
// cannot be compared with To.
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

// SetSimilarities sets the similarity of each memory whose vector was added.
func (n *Nearest) SetSimilarities(all []memories.Memory) {
	for i := range all {
		if s, ok := n.similarity[all[i].ID]; ok {
			all[i].Similarity = &s
		}
	}
}
