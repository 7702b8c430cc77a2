package journaltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

// MemoryStore is a journal with tasks and memories.
type MemoryStore interface {
	TaskStore
	store.Meter
	store.Memories
}

// RunMemories tests the contract of a MemoryStore. open returns a new, empty store and closes it when the test ends.
// reopen returns the same store after a restart.
func RunMemories(t *testing.T, open func(t *testing.T) MemoryStore, reopen func(t *testing.T, s MemoryStore) MemoryStore) {
	t.Run("memories are stored with the end of their task, once", func(t *testing.T) { testMemoriesStored(t, open(t), reopen) })
	t.Run("memories are stored as soon as they are found", func(t *testing.T) { testMemoriesOfAttempt(t, open(t), reopen) })
	t.Run("an owner finds only its own memories", func(t *testing.T) { testMemoriesFound(t, open(t)) })
	t.Run("memories are found by their vectors", func(t *testing.T) { testVectorsOfMemories(t, open(t), reopen) })
	t.Run("a space may have any characters", func(t *testing.T) { testSpaceWithAnyCharacters(t, open(t)) })
	t.Run("vectors of another length are replaced", func(t *testing.T) { testVectorsOfAnotherLength(t, open(t), reopen) })
	t.Run("memories count as used space", func(t *testing.T) { testUseOfMemories(t, open(t)) })
	t.Run("the same memory is kept once, with its newest Turn", func(t *testing.T) { testMemoryLearnedAgain(t, open(t)) })
	t.Run("an owner keeps a limited number and size", func(t *testing.T) { testLimitsOfOwners(t, open(t)) })
	t.Run("a deleted Turn or Session leaves nothing", func(t *testing.T) { testMemoriesRetired(t, open(t)) })
	t.Run("a note about the end of a time to live runs out", func(t *testing.T) { testNotesRunOut(t, open(t)) })
	t.Run("the memories of a user are deleted, and not learned again", func(t *testing.T) { testMemoriesDeleted(t, open(t)) })
	t.Run("a deletion ends tasks whose Turns have no record", func(t *testing.T) { testMemoriesDeletedWithoutRecord(t, open(t)) })
	t.Run("only the memories of a scope are deleted", func(t *testing.T) { testMemoriesOfScopeDeleted(t, open(t), reopen) })
	t.Run("memories are listed page by page", func(t *testing.T) { testMemoriesListed(t, open(t)) })
	t.Run("expired memories are neither found nor kept", func(t *testing.T) { testMemoriesExpire(t, open(t)) })
	t.Run("the kinds of tasks are independent", func(t *testing.T) { testTaskKinds(t, open(t)) })
	t.Run("observations are kept until their Turn is deleted", func(t *testing.T) { testObservations(t, open(t), reopen) })
	t.Run("concurrent tasks of one owner respect its limit", func(t *testing.T) { testConcurrentTasksOfOwner(t, open(t)) })
	t.Run("a call whose context has ended does nothing", func(t *testing.T) { testEndedContextOfMemories(t, open(t)) })
}

// learnedFrom returns a memory that was learned from a Turn of Ada, at the time later(minutes). Its namespace is the
// part of the UID before the hyphen.
func learnedFrom(uid, text string, minutes int, change ...func(*memories.Memory)) memories.Memory {
	namespace, _, _ := strings.Cut(uid, "-")
	m := memories.Memory{
		Namespace: namespace, Agent: "desk", Scope: memories.User, Text: text, Confidence: 80, Requester: "ada@example.com",
		Turn: "turn-" + uid, TurnUID: uid, Model: "p/m", Learned: later(minutes), Expires: later(minutes + 1000),
	}
	for _, f := range change {
		f(&m)
	}
	m.Identify()
	return m
}

func ofSession(uid string) func(*memories.Memory) {
	return func(m *memories.Memory) { m.Scope, m.Session, m.SessionUID = memories.Session, "talk", uid }
}

func ofUser(name string) func(*memories.Memory) {
	return func(m *memories.Memory) { m.Requester = name }
}

// endLearning ends a Turn of a requester, and adds the task of learning from the Turn.
func endLearning(t testing.TB, s MemoryStore, uid, requester string) {
	t.Helper()
	r := recordOf(uid, 0)
	r.Namespace, _, _ = strings.Cut(uid, "-")
	r.Turn, r.Agent, r.Session, r.Requester = "turn-"+uid, "desk", "talk", requester
	e := ending(1, 1, r)
	k := taskOf(uid)
	k.Kind, k.Requester = task.Learn, requester
	e.Tasks = []task.Task{k}
	add(t, s, uid, nil, e)
}

// learn ends a Turn, and completes the learning task of the Turn with memories.
func learn(t *testing.T, s MemoryStore, uid string, all ...memories.Memory) {
	t.Helper()
	requester := "ada@example.com"
	if len(all) > 0 {
		requester = all[0].Requester
	}
	endLearning(t, s, uid, requester)
	k := claim(t, s, "", later(0), uid)
	expectError(t, "FinishTask", s.FinishTask(t.Context(), k.Held(), learnedResult(all...), 0), nil)
	expectError(t, "PublishTask", s.PublishTask(t.Context(), k.Held(), later(1)), nil)
}

func learnedResult(all ...memories.Memory) task.Result {
	return task.Result{Learned: &task.Learned{Memories: all, MaxItems: 100, Kept: map[memories.Scope]int{memories.User: len(all)}}}
}

// list returns the memories that a selector selects, newest first.
func list(t *testing.T, s MemoryStore, sel store.MemorySelector) []memories.Memory {
	t.Helper()
	all, err := s.ListMemories(t.Context(), store.MemoryQuery{MemorySelector: sel})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// expectMemories expects the texts of the selected memories, newest first.
func expectMemories(t *testing.T, s MemoryStore, what string, sel store.MemorySelector, want ...string) {
	t.Helper()
	var got []string
	for _, m := range list(t, s, sel) {
		got = append(got, m.Text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: -want +got:\n%s", what, diff)
	}
}

// expectFound expects the texts of the memories that a search for text finds among the memories of an owner, in any
// order.
func expectFound(t *testing.T, s MemoryStore, o memories.Owner, text string, now time.Time, want ...string) {
	t.Helper()
	found, err := s.FindMemories(t.Context(), []memories.Owner{o}, memories.Search{Words: memories.Query(text)}, now)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range found {
		got = append(got, m.Text)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a search for %q in the memories of %+v: -want +got:\n%s", text, o, diff)
	}
}

func testMemoriesStored(t *testing.T, s MemoryStore, reopen func(t *testing.T, s MemoryStore) MemoryStore) {
	add(t, s, "uid-talk", nil, entry(1, 1))
	endLearning(t, s, "a-1", "ada@example.com")
	k := claim(t, s, "", later(0), "a-1")
	if k.Kind != task.Learn {
		t.Errorf("the kind is %q, want %q", k.Kind, task.Learn)
	}
	want := []memories.Memory{
		learnedFrom("a-1", "Has an HP 4000 \u2028'\"; 東京", 0),
		learnedFrom("a-1", "Asks about printers.", 0, ofSession("uid-talk")),
	}
	stale := task.Held{UID: k.UID, Kind: k.Kind, Claim: k.Claim - 1}
	expectError(t, "FinishTask of an old claim", s.FinishTask(t.Context(), stale, learnedResult(want...), 0), task.ErrLost)
	expectMemories(t, s, "before the task ends", store.MemorySelector{})
	expectError(t, "FinishTask", s.FinishTask(t.Context(), k.Held(), learnedResult(want...), 0), nil)
	s = reopen(t, s) // killed before the result is published
	store.SortNewestFirst(want)
	if diff := cmp.Diff(want, list(t, s, store.MemorySelector{})); diff != "" {
		t.Errorf("after a restart: -want +got:\n%s", diff)
	}
	k = claim(t, s, "", later(30), "a-1")
	if diff := cmp.Diff(&task.Learned{Kept: map[memories.Scope]int{memories.User: 2}}, k.Result.Learned); diff != "" {
		t.Errorf("the result of another executor: -want +got:\n%s", diff)
	}
	expectError(t, "PublishTask", s.PublishTask(t.Context(), k.Held(), later(31)), nil)
}

// testMemoriesOfAttempt checks that memories are stored together with the partial result, and not again by the end of
// the task.
func testMemoriesOfAttempt(t *testing.T, s MemoryStore, reopen func(t *testing.T, s MemoryStore) MemoryStore) {
	endLearning(t, s, "a-1", "ada@example.com")
	h := claim(t, s, "", later(0), "a-1").Held()
	expectError(t, "BeginTask", s.BeginTask(t.Context(), h, starting(later(0))), nil)
	found := learnedResult(learnedFrom("a-1", "first", 0), learnedFrom("a-1", "second", 0))
	found.Learned.Scopes = []memories.Scope{memories.User}
	for range 2 { // a repetition changes nothing
		expectError(t, "ChargeTask", s.ChargeTask(t.Context(), h, task.Charge{Found: &found}), nil)
	}
	s = reopen(t, s) // killed before the next question
	all := list(t, s, store.MemorySelector{})
	if len(all) != 2 {
		t.Fatalf("after a restart there are %+v, want two memories", all)
	}
	k := claim(t, s, "", later(30), "a-1")
	want := &task.Learned{Scopes: []memories.Scope{memories.User}, Kept: map[memories.Scope]int{memories.User: 2}}
	if k.Partial == nil || !cmp.Equal(want, k.Partial.Learned) {
		t.Fatalf("the partial result of another executor is %+v, want the result of the first attempt without the memories", k.Partial)
	}
	if n, err := s.DeleteMemories(t.Context(), store.MemorySelector{Namespace: "a", ID: all[0].ID}, later(31), 1); n != 1 || err != nil {
		t.Errorf("DeleteMemories: %d, %v; want 1", n, err)
	}
	expectError(t, "FinishTask", s.FinishTask(t.Context(), k.Held(), *k.Partial, 0), nil)
	expectMemories(t, s, "after one memory was deleted before the end", store.MemorySelector{}, all[1].Text)
	expectError(t, "PublishTask", s.PublishTask(t.Context(), k.Held(), later(31)), nil)

	endLearning(t, s, "a-2", "ada@example.com")
	h = claim(t, s, "", later(0), "a-2").Held()
	found = learnedResult(learnedFrom("a-2", "of a deleted Turn", 0))
	expectError(t, "ChargeTask of another Turn", s.ChargeTask(t.Context(), h, task.Charge{Found: &found}), nil)
	retire(t, s, later(1), "a-2")
	expectError(t, "ChargeTask after the deletion", s.ChargeTask(t.Context(), h, task.Charge{Found: &found}), task.ErrLost)
	expectMemories(t, s, "after the Turn was deleted", store.MemorySelector{}, all[1].Text)
}

func testMemoriesFound(t *testing.T, s MemoryStore) {
	add(t, s, "uid-talk", nil, entry(1, 1))
	add(t, s, "uid-other", nil, entry(1, 1))
	learn(t, s, "a-1", learnedFrom("a-1", "Has an HP printer.", 1), learnedFrom("a-1", "The printer is broken.", 1, ofSession("uid-talk")))
	learn(t, s, "a-2", learnedFrom("a-2", "Bob owns the printer.", 2, ofUser("bob")),
		learnedFrom("a-2", "The printer is new.", 2, ofUser("bob"), ofSession("uid-other")))
	learn(t, s, "b-1", learnedFrom("b-1", "Ada has a printer elsewhere.", 3))
	other := learnedFrom("a-3", "Another Agent knows a printer.", 4, func(m *memories.Memory) { m.Agent = "sales" })
	learn(t, s, "a-3", other)
	ada := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "ada@example.com"}
	expectFound(t, s, ada, "printer", later(5), "Has an HP printer.")
	expectFound(t, s, ada, "nothing of this", later(5), "Has an HP printer.")
	expectFound(t, s, ada, "", later(5), "Has an HP printer.")
	talk := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.Session, ID: "uid-talk"}
	expectFound(t, s, talk, "PRINTER!", later(5), "The printer is broken.")
	expectFound(t, s, memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.Session, ID: "ada@example.com"}, "printer", later(5))
	expectFound(t, s, memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "uid-talk"}, "printer", later(5))
	expectFound(t, s, memories.Owner{Namespace: "c", Agent: "desk", Scope: memories.User, ID: "ada@example.com"}, "printer", later(5))
	var many []memories.Memory
	for i := range 90 {
		many = append(many, learnedFrom("a-4", fmt.Sprintf("Number %d is a fact.", i), 10, ofUser("eve")))
	}
	needle := learnedFrom("a-4", memories.Clean("Needle from 東京, نرم\u200cافزار."), 5, ofUser("eve"))
	learn(t, s, "a-4", append(many, needle)...)
	eve := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "eve"}
	for _, text := range []string{
		"needle", "where is the NEEDLE?", "京", "کدام نرم\u200cافزار", `' OR "1" = 1 needle`, strings.Repeat("word ", 500) + "needle",
	} {
		search := memories.Search{Words: memories.Query(text)}
		found, err := s.FindMemories(t.Context(), []memories.Owner{eve}, search, later(20))
		if err != nil || !slices.ContainsFunc(found, func(m memories.Memory) bool { return m.ID == needle.ID }) {
			t.Errorf("%q finds %d memories (error %v) without the old memory that has the word", text, len(found), err)
		}
	}
	found, err := s.FindMemories(t.Context(), []memories.Owner{eve}, memories.Search{Words: []string{"unknown"}}, later(20))
	if len(found) != memories.MaxNewest || err != nil {
		t.Errorf("an unknown word finds %d memories (error %v), want the newest %d", len(found), err, memories.MaxNewest)
	}
}

// testUseOfMemories checks that memories and their vectors count for their namespace until they are deleted.
func testUseOfMemories(t *testing.T, s MemoryStore) {
	use := func() int64 {
		t.Helper()
		u, err := s.Use(t.Context())
		if err != nil || u.Bytes < u.Namespaces["a"]+u.Namespaces["b"] {
			t.Errorf("Use: %+v, %v", u, err)
		}
		return u.Namespaces["a"]
	}
	learn(t, s, "b-1", learnedFrom("b-1", "Likes tea.", 1))
	learn(t, s, "a-1")
	none := use()
	first, second := learnedFrom("a-2", "Likes bicycles.", 1), learnedFrom("a-2", "Has an HP 4000.", 2)
	learn(t, s, "a-2", first, second)
	learned := use()
	// The second Turn has a journal, too, whose size is that of the first one or less.
	if least := int64(2 * (512 + len(first.Text) + len(second.Text))); learned-2*none < least/2 {
		t.Errorf("two memories count as about %d bytes, want more than %d", learned-2*none, least/2)
	}
	vector := ranking.Vector{Space: "m", Values: make([]float32, 1000)}
	vector.Values[0] = 1
	expectError(t, "EmbedMemories", s.EmbedMemories(t.Context(), []memories.Embedded{{ID: first.ID, Vector: vector}}), nil)
	if got := use() - learned; got != 4000 {
		t.Errorf("a vector of 1000 numbers counts as %d bytes, want 4000", got)
	}
	if n, err := s.DeleteMemories(t.Context(), store.MemorySelector{Namespace: "a", ID: first.ID}, later(3), 10); n != 1 || err != nil {
		t.Errorf("DeleteMemories: %d, %v", n, err)
	}
	if got, want := learned-use(), int64(512+4*len(first.Text)); got != want {
		t.Errorf("a deleted memory counted as %d bytes, want %d", got, want)
	}
}

func testMemoryLearnedAgain(t *testing.T, s MemoryStore) {
	learn(t, s, "a-1", learnedFrom("a-1", "Has a cat.", 10))
	learn(t, s, "a-2", learnedFrom("a-2", "has a CAT", 20))
	learn(t, s, "a-3", learnedFrom("a-3", "Has a cat!", 15)) // an older Turn whose task was late
	all := list(t, s, store.MemorySelector{})
	if len(all) != 1 || all[0].TurnUID != "a-2" || all[0].Text != "has a CAT" || !all[0].Learned.Equal(later(20)) {
		t.Errorf("the memories are %+v, want one memory, from the newest Turn", all)
	}
	retire(t, s, later(30), "a-1", "a-3")
	expectMemories(t, s, "after the other Turns were deleted", store.MemorySelector{}, "has a CAT")
	ada := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "ada@example.com"}
	expectFound(t, s, ada, "cat", later(30), "has a CAT")
	retire(t, s, later(30), "a-2")
	expectMemories(t, s, "after the Turn was deleted", store.MemorySelector{})
	expectFound(t, s, ada, "cat", later(30))
}

func testLimitsOfOwners(t *testing.T, s MemoryStore) {
	keep := func(uid string, maxItems int, all ...memories.Memory) {
		t.Helper()
		endLearning(t, s, uid, "ada@example.com")
		k := claim(t, s, "", later(0), uid)
		r := learnedResult(all...)
		r.Learned.MaxItems = maxItems
		expectError(t, "FinishTask", s.FinishTask(t.Context(), k.Held(), r, 0), nil)
	}
	keep("a-1", 3, learnedFrom("a-1", "one", 1), learnedFrom("a-1", "of bob", 1, ofUser("bob")))
	keep("a-2", 3, learnedFrom("a-2", "two", 2), learnedFrom("a-2", "of bob, too", 2, ofUser("bob")))
	keep("a-3", 3, learnedFrom("a-3", "three", 3))
	keep("a-4", 3, learnedFrom("a-4", "four", 4))
	ada := store.MemorySelector{Requester: "ada@example.com"}
	expectMemories(t, s, "the newest of the owner", ada, "four", "three", "two")
	expectMemories(t, s, "the memories of another owner", store.MemorySelector{Requester: "bob"}, "of bob, too", "of bob")
	keep("a-5", 1, learnedFrom("a-5", "five", 5))
	expectMemories(t, s, "after the limit was lowered", ada, "five")
	var large []memories.Memory
	for i := range 200 {
		large = append(large, learnedFrom("a-6", fmt.Sprintf("%03d", i)+strings.Repeat("ö", 400), 6))
	}
	keep("a-6", 500, large...)
	bytes := 0
	for _, m := range list(t, s, ada) {
		bytes += len(m.Text)
	}
	if bytes > memories.MaxOwnerBytes || bytes < memories.MaxOwnerBytes-1000 {
		t.Errorf("an owner has %d bytes, want %d to %d", bytes, memories.MaxOwnerBytes-1000, memories.MaxOwnerBytes)
	}
}

func testMemoriesListed(t *testing.T, s MemoryStore) {
	var want []string
	for i := range 5 {
		uid := fmt.Sprintf("a-%d", i)
		learn(t, s, uid, learnedFrom(uid, fmt.Sprintf("number %d", i), i/2))
	}
	for _, m := range list(t, s, store.MemorySelector{}) {
		want = append(want, m.ID)
	}
	var got []string
	q := store.MemoryQuery{Limit: 2}
	for {
		page, err := s.ListMemories(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for i := range page {
			got = append(got, page[i].ID)
		}
		q.After = store.MemoryPositionOf(&page[len(page)-1])
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 5 {
		t.Errorf("pages of 2: -want +got:\n%s", diff)
	}
	for what, tc := range map[string]struct {
		sel  store.MemorySelector
		want int
	}{
		"turn": {store.MemorySelector{Turn: "turn-a-3"}, 1}, "namespace": {store.MemorySelector{Namespace: "b"}, 0},
		"agent": {store.MemorySelector{Agent: "desk"}, 5}, "scope": {store.MemorySelector{Scope: memories.Session}, 0},
		"session": {store.MemorySelector{Session: "talk"}, 0}, "id": {store.MemorySelector{ID: want[2]}, 1},
		"three fields": {store.MemorySelector{Requester: "ada@example.com", Scope: memories.User, Turn: "turn-a-1"}, 1},
	} {
		if n := len(list(t, s, tc.sel)); n != tc.want {
			t.Errorf("by %s: %d memories, want %d", what, n, tc.want)
		}
	}
}

// testTaskKinds checks that a Turn may have a task of each kind, and that each kind has its own limits.
func testTaskKinds(t *testing.T, s MemoryStore) {
	e := ending(1, 1, recordOf("a-1", 0))
	second := taskOf("a-1")
	second.Kind = task.Learn
	e.Tasks = []task.Task{taskOf("a-1"), second}
	add(t, s, "a-1", nil, e)
	one, two := claim(t, s, "", later(0), "a-1"), claim(t, s, "", later(0), "a-1")
	if one.Kind == two.Kind {
		t.Fatalf("both tasks have the kind %q", one.Kind)
	}
	start := starting(later(1))
	start.MaxPerHour, start.MaxTokensPerDay = 1, 10
	expectError(t, "BeginTask", s.BeginTask(t.Context(), one.Held(), start), nil)
	expectError(t, "BeginTask of the other kind", s.BeginTask(t.Context(), two.Held(), start), nil)
	expectError(t, "FinishTask", s.FinishTask(t.Context(), one.Held(), task.Result{Skipped: task.Expired}, 0), nil)
	expectError(t, "RenewTask of the other kind", s.RenewTask(t.Context(), two.Held(), later(90)), nil)
	retire(t, s, later(2), "a-1")
	expectError(t, "RenewTask after the deletion", s.RenewTask(t.Context(), two.Held(), later(90)), task.ErrLost)
	claim(t, s, "", later(200), "")
}

func testObservations(t *testing.T, s MemoryStore, reopen func(t *testing.T, s MemoryStore) MemoryStore) {
	add(t, s, "uid-talk", nil, entry(1, 1))
	of := func(uid string, minutes int) memories.Observation {
		return memories.Observation{
			TurnUID: uid, Namespace: "a", Turn: "turn-" + uid, Agent: "desk", Requester: "ada", Time: later(minutes),
			Details: memories.Details{
				Reason: "Completed", Strategy: "ToolAssisted", Tools: []string{"search"}, Recalled: []string{"m1"}, ElapsedMilliseconds: 7,
			},
		}
	}
	want := []memories.Observation{of("a-2", 2), of("a-1", 1)}
	want[0].Session, want[0].SessionUID = "talk", "uid-talk"
	for _, o := range want {
		expectError(t, "Observe before the Turn has a journal", s.Observe(t.Context(), o), nil)
		add(t, s, o.TurnUID, nil, entry(1, 1))
		expectError(t, "Observe", s.Observe(t.Context(), o), nil)
		expectError(t, "Observe again", s.Observe(t.Context(), o), nil)
	}
	s = reopen(t, s)
	left := func(what string, want ...memories.Observation) {
		t.Helper()
		got, err := s.Observations(t.Context(), "a", "desk", 10)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s (error %v): -want +got:\n%s", what, err, diff)
		}
	}
	left("after a restart", want...)
	retire(t, s, later(5), "uid-talk")
	left("after the Session was deleted", want[1])
	retire(t, s, later(5), "a-1")
	expectError(t, "Observe a deleted Turn", s.Observe(t.Context(), want[1]), nil)
	left("after the Turn was deleted")
	forgotten := of("a-3", 3)
	add(t, s, forgotten.TurnUID, nil, entry(1, 1))
	expectError(t, "Observe", s.Observe(t.Context(), forgotten), nil)
	left("before a Turn was forgotten", forgotten)
	expectError(t, "Forget", s.Forget(t.Context(), later(5), forgotten.TurnUID), nil)
	expectError(t, "Observe a forgotten Turn", s.Observe(t.Context(), forgotten), nil)
	left("after the Turn was forgotten")
	expectError(t, "Revive", s.Revive(t.Context(), "a-1"), nil)
	expectError(t, "Observe a revived Turn", s.Observe(t.Context(), want[1]), nil)
	left("after the Turn was revived", want[1])
}

func testConcurrentTasksOfOwner(t *testing.T, s MemoryStore) {
	const turns = 12
	var held []task.Held
	for i := range turns {
		uid := fmt.Sprintf("a-%02d", i)
		endLearning(t, s, uid, "ada@example.com")
		held = append(held, claim(t, s, "", later(0), uid).Held())
	}
	var group sync.WaitGroup
	for i, h := range held {
		group.Go(func() {
			r := learnedResult(learnedFrom(h.UID, "shared", i), learnedFrom(h.UID, "own "+h.UID, i),
				learnedFrom(h.UID, "of bob", i, ofUser("bob")))
			r.Learned.MaxItems = 5
			if err := s.FinishTask(t.Context(), h, r, 0); err != nil {
				t.Errorf("FinishTask: %v", err)
			}
		})
	}
	group.Wait()
	for requester, limit := range map[string]int{"ada@example.com": 5, "bob": 1} {
		if n := len(list(t, s, store.MemorySelector{Requester: requester})); n > limit || n == 0 {
			t.Errorf("%s has %d memories, want 1 to %d", requester, n, limit)
		}
	}
}

func testEndedContextOfMemories(t *testing.T, s MemoryStore) {
	learn(t, s, "a-1", learnedFrom("a-1", "of ada", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ada := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "ada@example.com"}
	_, found := s.FindMemories(ctx, []memories.Owner{ada}, memories.Search{Words: []string{"ada"}}, endTime)
	_, listed := s.ListMemories(ctx, store.MemoryQuery{})
	_, deleted := s.DeleteMemories(ctx, store.MemorySelector{}, endTime, 10)
	_, purged := s.PurgeMemories(ctx, later(10_000), 10)
	_, observed := s.Observations(ctx, "a", "desk", 10)
	_, unembedded := s.UnembeddedMemories(ctx, []memories.Owner{ada}, "m", endTime, 10)
	for name, err := range map[string]error{
		"FindMemories": found, "ListMemories": listed, "DeleteMemories": deleted,
		"SetExpired": s.SetExpired(ctx, "a-1", later(1)), "PurgeMemories": purged, "Observations": observed,
		"UnembeddedMemories": unembedded, "EmbedMemories": s.EmbedMemories(ctx, []memories.Embedded{{ID: "m"}}),
		"Observe": s.Observe(ctx, memories.Observation{TurnUID: "a-1"}),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the error of the context", name, err)
		}
	}
	expectMemories(t, s, "afterwards", store.MemorySelector{}, "of ada")
}
