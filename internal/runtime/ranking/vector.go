package ranking

import (
	"encoding/binary"
	"math"
)

// Vector is an embedding: the meaning of a text as numbers that a model has computed.
type Vector struct {
	// Space names the model and everything else that the numbers depend on. Vectors of different spaces cannot be
	// compared.
	Space string
	// Values are the numbers. The vector has the length 1.
	Values []float32
}

// Given reports whether there is a vector.
func (v Vector) Given() bool { return v.Space != "" && len(v.Values) > 0 }

// Similarity returns the similarity of two vectors: the cosine of their angle, from -1 to 1. ok is false if the vectors
// cannot be compared.
func (v Vector) Similarity(o Vector) (cosine float64, ok bool) {
	if !v.Given() || v.Space != o.Space || len(v.Values) != len(o.Values) {
		return 0, false
	}
	for i, f := range v.Values {
		cosine += float64(f) * float64(o.Values[i])
	}
	return min(max(cosine, -1), 1), !math.IsNaN(cosine)
}

// Bytes returns the values for a store.
func (v Vector) Bytes() []byte {
	data := make([]byte, 0, 4*len(v.Values))
	for _, f := range v.Values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(f))
	}
	return data
}

// SimilarityTo returns the similarity to a vector of the same space whose values a store has kept as bytes.
func (v Vector) SimilarityTo(data []byte) (cosine float64, ok bool) {
	if !v.Given() || len(data) != 4*len(v.Values) {
		return 0, false
	}
	for i, f := range v.Values {
		cosine += float64(f) * float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	}
	return min(max(cosine, -1), 1), !math.IsNaN(cosine)
}

// Blend returns a score from 0 to 1 for each text: how well its words and its meaning match a query. words are scores
// of at least 0. meaning are similarities; a similarity is nil if it is unknown.
//
// Blend first scales both: the scores so that the best is 1, and the similarities so that the highest is 1 and the
// lowest is 0, because each model uses another part of the range. It does not scale equal similarities, or a single
// one. The result is the mean of the two, or the scaled score alone for a text without a similarity. This is the convex
// combination of Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval" (2023).
func Blend(words []float64, meaning []*float64) []float64 {
	best, lowest, highest := 0.0, math.Inf(1), math.Inf(-1)
	for i, w := range words {
		best = max(best, w)
		if m := meaning[i]; m != nil {
			lowest, highest = min(lowest, *m), max(highest, *m)
		}
	}
	all := make([]float64, len(words))
	for i, w := range words {
		if best > 0 {
			all[i] = w / best
		}
		m := meaning[i]
		switch {
		case m == nil:
		case highest > lowest:
			all[i] = (all[i] + (*m-lowest)/(highest-lowest)) / 2
		default:
			all[i] = (all[i] + max(0, *m)) / 2
		}
	}
	return all
}
