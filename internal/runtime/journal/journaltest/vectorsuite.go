package journaltest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
)

// testVectorsOfMemories tests the vectors of memories that are not among the newest.
func testVectorsOfMemories(t *testing.T, s MemoryStore, reopen func(t *testing.T, s MemoryStore) MemoryStore) {
	vector := func(space string, values ...float32) ranking.Vector {
		return ranking.Vector{Space: space, Values: values}
	}
	var all []memories.Memory
	var vectors []memories.Embedded
	for i := range 40 {
		m := learnedFrom("a-1", fmt.Sprintf("Number %d is a fact.", i), 100+i)
		all, vectors = append(all, m), append(vectors, memories.Embedded{ID: m.ID, Vector: vector("m", 0, 1)})
	}
	old, worded := learnedFrom("a-1", "Has an HP 4000.", 1), learnedFrom("a-1", "Likes bicycles.", 2)
	other, plain := learnedFrom("a-1", "Is in Oslo.", 3), learnedFrom("a-1", "Drinks tea.", 4)
	stranger := learnedFrom("a-1", "Has a laser, too.", 5, ofUser("bob"))
	learn(t, s, "a-1", append(all, old, worded, other, plain, stranger)...)
	vectors = append(vectors, memories.Embedded{ID: old.ID, Vector: vector("m", 0.6, 0.8)},
		memories.Embedded{ID: worded.ID, Vector: vector("m", -1, 0)}, memories.Embedded{ID: other.ID, Vector: vector("n", 1, 0)},
		memories.Embedded{ID: stranger.ID, Vector: vector("m", 1, 0)}, memories.Embedded{ID: "gone", Vector: vector("m", 1, 0)})
	expectError(t, "EmbedMemories", s.EmbedMemories(t.Context(), vectors), nil)
	s = reopen(t, s)
	ada := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "ada@example.com"}
	similarities := func(search memories.Search) map[string]string {
		t.Helper()
		found, err := s.FindMemories(t.Context(), []memories.Owner{ada}, search, later(200))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, m := range found {
			switch {
			case strings.HasPrefix(m.Text, "Number"): // the newest memories
			case m.Similarity == nil:
				got[m.Text] = "none"
			default:
				got[m.Text] = fmt.Sprintf("%.2f", *m.Similarity)
			}
		}
		return got
	}
	words := memories.Query("tea, bicycles")
	for name, c := range map[string]struct {
		search memories.Search
		want   map[string]string
	}{
		"without a vector": {memories.Search{Words: words}, map[string]string{"Drinks tea.": "none", "Likes bicycles.": "none"}},
		"with a vector": {
			memories.Search{Words: words, Vector: vector("m", 1, 0)},
			map[string]string{"Drinks tea.": "none", "Likes bicycles.": "-1.00", "Has an HP 4000.": "0.60"},
		},
		"with a vector of another model":    {memories.Search{Vector: vector("n", 1, 0)}, map[string]string{"Is in Oslo.": "1.00"}},
		"with a vector of an unknown model": {memories.Search{Vector: vector("o", 1, 0)}, map[string]string{}},
		"with a vector of another length":   {memories.Search{Vector: vector("m", 1)}, map[string]string{}},
	} {
		if diff := cmp.Diff(c.want, similarities(c.search)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	learn(t, s, "a-2", learnedFrom("a-2", "has an hp 4000", 6))
	if got := similarities(memories.Search{Vector: vector("m", 1, 0)}); got["has an hp 4000"] != "0.60" {
		t.Errorf("a memory that was learned again is found as %v, want it with the vector of the first time", got)
	}
	unembedded := func(what, space string, minutes, limit int, want ...string) {
		t.Helper()
		bob := ada
		bob.ID = "bob"
		found, err := s.UnembeddedMemories(t.Context(), []memories.Owner{ada, bob}, space, later(minutes), limit)
		var got []string
		for _, m := range found {
			got = append(got, m.Text)
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("the memories without a vector, %s (error %v): -want +got:\n%s", what, err, diff)
		}
	}
	unembedded("in the usual space", "m", 200, 10, "Drinks tea.", "Is in Oslo.")
	unembedded("at most one of each owner", "m", 200, 1, "Drinks tea.")
	unembedded("in a new space", "o", 200, 3, "Number 39 is a fact.", "Number 38 is a fact.", "Number 37 is a fact.",
		"Has a laser, too.")
	unembedded("none", "o", 200, 0)
	unembedded("after the end of some", "m", 1004, 10)
	marked := []memories.Embedded{{ID: plain.ID, Vector: vector("m")}, {ID: worded.ID, Vector: vector("n")}}
	expectError(t, "EmbedMemories of memories that get no vector", s.EmbedMemories(t.Context(), marked), nil)
	s = reopen(t, s)
	unembedded("without those that get none in the usual space", "m", 200, 10, "Is in Oslo.", "Likes bicycles.")
	for _, space := range []string{"m", "n"} {
		got := similarities(memories.Search{Words: words, Vector: vector(space, 1, 0)})
		if got["Drinks tea."] != "none" || got["Likes bicycles."] != "none" {
			t.Errorf("memories that get no vector are found as %v in the space %q, want both by their words", got, space)
		}
	}
	retire(t, s, later(300), "a-2")
	expectError(t, "EmbedMemories of a memory that is gone", s.EmbedMemories(t.Context(), vectors), nil)
	if got := similarities(memories.Search{Vector: vector("m", 1, 0)}); len(got) > 0 {
		t.Errorf("a memory of a deleted Turn is found: %v", got)
	}
}

// testSpaceWithAnyCharacters checks a space with a character that PostgreSQL does not store. The name of a model is a
// part of the space, and an Agent may name any model.
func testSpaceWithAnyCharacters(t *testing.T, s MemoryStore) {
	m := learnedFrom("a-1", "Drinks tea.", 1)
	learn(t, s, "a-1", m)
	v := ranking.Vector{Space: "bge\x00", Values: []float32{1, 0}}
	owners := []memories.Owner{{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "ada@example.com"}}
	for _, want := range []int{1, 0} {
		found, err := s.UnembeddedMemories(t.Context(), owners, v.Space, later(20), 10)
		if len(found) != want || err != nil {
			t.Errorf("UnembeddedMemories: %d memories, %v; want %d", len(found), err, want)
		}
		expectError(t, "EmbedMemories", s.EmbedMemories(t.Context(), []memories.Embedded{{ID: m.ID, Vector: v}}), nil)
	}
	found, err := s.FindMemories(t.Context(), owners, memories.Search{Vector: v}, later(20))
	if err != nil || len(found) != 1 || found[0].Similarity == nil {
		t.Errorf("FindMemories: %+v, %v; want a memory with a similarity", found, err)
	}
}

// testVectorsOfAnotherLength checks that an owner's vectors of another length than the newest are dropped.
func testVectorsOfAnotherLength(t *testing.T, s MemoryStore, reopen func(t *testing.T, s MemoryStore) MemoryStore) {
	one, two, three, four := learnedFrom("a-1", "one", 1), learnedFrom("a-1", "two", 2), learnedFrom("a-1", "three", 3),
		learnedFrom("a-1", "four", 4)
	unequal, stranger := learnedFrom("a-1", "unequal", 5), learnedFrom("a-1", "of bob", 6, ofUser("bob"))
	learn(t, s, "a-1", one, two, three, four, unequal, stranger)
	embed := func(space string, length int, all ...memories.Memory) (vectors []memories.Embedded) {
		for _, m := range all {
			v := ranking.Vector{Space: space, Values: make([]float32, length)}
			if length > 0 {
				v.Values[0] = 1
			}
			vectors = append(vectors, memories.Embedded{ID: m.ID, Vector: v})
		}
		return vectors
	}
	ada := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "ada@example.com"}
	bob := ada
	bob.ID = "bob"
	expect := func(what, space string, want ...string) {
		t.Helper()
		found, err := s.UnembeddedMemories(t.Context(), []memories.Owner{ada, bob}, space, later(20), 10)
		var got []string
		for _, m := range found {
			got = append(got, m.Text)
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("the memories without a vector of the space %s, %s (error %v): -want +got:\n%s", space, what, err, diff)
		}
	}
	first := slices.Concat(embed("m", 2, one, two, stranger), embed("m", 0, three), embed("n", 3, unequal))
	expectError(t, "EmbedMemories", s.EmbedMemories(t.Context(), first), nil)
	expect("at first", "m", "unequal", "four")
	expectError(t, "EmbedMemories without a vector", s.EmbedMemories(t.Context(), embed("m", 0, four)), nil)
	expect("after a memory got none", "m", "unequal")
	expectError(t, "EmbedMemories of another length", s.EmbedMemories(t.Context(), embed("m", 3, one)), nil)
	s = reopen(t, s)
	expect("after the length has changed", "m", "unequal", "two")
	expect("in which one memory has a vector", "n", "four", "three", "two", "one", "of bob")
	found, err := s.FindMemories(t.Context(), []memories.Owner{ada, bob}, memories.Search{Vector: embed("m", 3, one)[0].Vector}, later(20))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found {
		if (m.Similarity != nil) != (m.ID == one.ID) {
			t.Errorf("%q is found with the similarity %v, want one only for %q", m.Text, m.Similarity, one.Text)
		}
	}
	both := slices.Concat(embed("m", 2, one), embed("m", 4, two))
	expectError(t, "EmbedMemories of two lengths", s.EmbedMemories(t.Context(), both), nil)
	expect("after two lengths, of which the last counts", "m", "unequal", "one")
}
