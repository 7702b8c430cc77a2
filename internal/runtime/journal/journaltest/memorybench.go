package journaltest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// BenchmarkMemories measures a search among the maximum number of memories of one owner, each with a vector, and the
// ranking of the found memories. open opens an empty store.
func BenchmarkMemories(b *testing.B, open func(b *testing.B) MemoryStore) {
	for _, dimensions := range []int{0, 256, 1536, 4096} {
		b.Run(fmt.Sprint(dimensions), func(b *testing.B) {
			s := open(b)
			random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // because a benchmark needs no secure random numbers
			vector := func() ranking.Vector {
				v := ranking.Vector{Space: "m"}
				for range dimensions {
					v.Values = append(v.Values, random.Float32())
				}
				return v
			}
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			owner := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "ada"}
			l := task.Learned{MaxItems: memories.MaxItems}
			var vectors []memories.Embedded
			for i := range memories.MaxItems {
				m := memories.Memory{
					Namespace: owner.Namespace, Agent: owner.Agent, Scope: owner.Scope, Requester: owner.ID,
					Text:    fmt.Sprintf("The printer %d is in room %d of the house by the river, an HP %d with paper A4.", i, i, i),
					Learned: now.Add(time.Duration(i) * time.Minute), Expires: now.AddDate(1, 0, 0),
				}
				m.Identify()
				l.Memories, vectors = append(l.Memories, m), append(vectors, memories.Embedded{ID: m.ID, Vector: vector()})
			}
			endLearning(b, s, "a-1", owner.ID)
			k := claim(b, s, "", later(0), "a-1")
			expectError(b, "FinishTask", s.FinishTask(b.Context(), k.Held(), task.Result{Learned: &l}, 0), nil)
			expectError(b, "EmbedMemories", s.EmbedMemories(b.Context(), vectors), nil)
			message, query := "Where is the printer 17?", vector()
			for b.Loop() {
				found, _, err := memories.Recall(b.Context(), s, []memories.Owner{owner}, message, query, now.Add(time.Hour), 5,
					func(text string) string { return text })
				if err != nil || len(found) != 5 {
					b.Fatalf("Recall finds %d memories (error %v), want 5", len(found), err)
				}
			}
		})
	}
}
