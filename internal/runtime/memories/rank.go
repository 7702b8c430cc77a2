package memories

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/ranking"
)

// The weights of the text and of the age of a memory. A memory of the age halfLife has half the age weight of a new
// memory.
const (
	textWeight = 0.75
	ageWeight  = 0.25
	halfLife   = 30 * 24 * time.Hour
)

// Ranked is a memory with its relevance to a text, from 0 to 1.
type Ranked struct {
	Memory
	Relevance float64
}

// Rank returns the memories that match a text best, at most limit, best match first. Words that a memory shares with
// the text, similarity to the text and a young age raise its rank. Rank leaves out expired memories. If no memory has a
// similarity, only words and age count; see ranking.Blend.
func Rank(candidates []Memory, text string, now time.Time, limit int) []Ranked {
	var all []Ranked
	var texts [][]string
	var similarities []*float64
	seen := map[string]bool{}
	for _, m := range candidates {
		if same := normal(m.Text); m.Expires.After(now) && !seen[same] {
			seen[same] = true // a Session and a user may have the same memory
			all, texts = append(all, Ranked{Memory: m}), append(texts, ranking.Words(m.Text))
			similarities = append(similarities, m.Similarity)
		}
	}
	scores := ranking.Blend(ranking.BM25(texts, Query(text)), similarities)
	for i := range all {
		age := max(0, now.Sub(all[i].Learned))
		relevance := ageWeight/(1+float64(age)/float64(halfLife)) + textWeight*scores[i]
		all[i].Relevance = math.Round(relevance*1e6) / 1e6
	}
	slices.SortFunc(all, func(a, b Ranked) int {
		return cmp.Or(cmp.Compare(b.Relevance, a.Relevance), b.Learned.Compare(a.Learned), strings.Compare(a.ID, b.ID))
	})
	return all[:min(len(all), max(0, limit))]
}
