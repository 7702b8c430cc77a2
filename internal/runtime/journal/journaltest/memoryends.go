package journaltest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

func testMemoriesRetired(t *testing.T, s MemoryStore) {
	for _, uid := range []string{"uid-talk", "uid-gone", "uid-over", "uid-used"} {
		add(t, s, uid, nil, entry(1, 1))
	}
	inOver := func(m *memories.Memory) { m.Session, m.SessionUID = "over", "uid-over" }
	learn(t, s, "a-7", learnedFrom("a-7", "of a Session whose time is over", 1, ofSession("uid-over")))
	learn(t, s, "a-8", learnedFrom("a-8", "of a user in such a Session", 1, inOver))
	setExpired(t, s, "uid-over", later(60))
	expectMemories(t, s, "before an expired Session was retired", store.MemorySelector{},
		"of a user in such a Session", "of a Session whose time is over")
	retire(t, s, later(50), "uid-over")
	expectMemories(t, s, "after the time of a Session was over", store.MemorySelector{}, "of a user in such a Session")
	retire(t, s, later(50), "a-8")
	learn(t, s, "b-1", learnedFrom("b-1", "of an expired Session, late", 1, ofSession("uid-over")),
		learnedFrom("b-1", "of a user in an expired Session, late", 1, inOver))
	late := list(t, s, store.MemorySelector{})
	if len(late) != 1 || late[0].Text != "of a user in an expired Session, late" || late[0].SessionUID != "" || late[0].Session != "over" {
		t.Errorf("a task that ended after the time of its Session has learned %+v, want only the memory about the user", late)
	}
	retire(t, s, later(50), "b-1")
	inUsed := func(m *memories.Memory) { m.Session, m.SessionUID = "used", "uid-used" }
	learn(t, s, "a-9", learnedFrom("a-9", "of a user in a Session that is used", 1, inUsed))
	expectError(t, "Forget", s.Forget(t.Context(), later(50), "uid-used", ""), nil)
	expectMemories(t, s, "after a Session was forgotten", store.MemorySelector{})
	expectLive(t, s, "a-7", "a-9", "uid-gone", "uid-talk", "uid-used")
	learn(t, s, "b-2", learnedFrom("b-2", "of a user in a forgotten Session", 1, inUsed))
	expectError(t, "Observe", s.Observe(t.Context(), memories.Observation{
		TurnUID: "b-2", Namespace: "a", Turn: "b-2", Agent: "desk", Session: "used", SessionUID: "uid-used", Time: endTime,
	}), nil)
	if all, err := s.Observations(t.Context(), "a", "desk", 10); len(all) > 0 || err != nil {
		t.Errorf("a forgotten Session has the observations %+v, %v; want none", all, err)
	}
	expectMemories(t, s, "after a task learned in a forgotten Session", store.MemorySelector{})
	retire(t, s, later(50), "b-2")
	learn(t, s, "a-1", learnedFrom("a-1", "of a Turn", 1), learnedFrom("a-1", "of its Session", 1, ofSession("uid-talk")))
	inTalk := func(m *memories.Memory) { m.Session, m.SessionUID = "talk", "uid-talk" }
	learn(t, s, "a-2", learnedFrom("a-2", "of a user in a Session", 2, inTalk))
	learn(t, s, "a-3", learnedFrom("a-3", "of a Turn whose time is over", 3))
	learn(t, s, "a-4", learnedFrom("a-4", "of a Turn that is deleted early", 4))
	for _, uid := range []string{"a-3", "a-4", "unknown", ""} {
		setExpired(t, s, uid, later(60))
	}
	setExpired(t, s, "a-4", time.Time{}) // the deletion has failed, and people delete the Turn
	retire(t, s, later(50), "a-1", "a-3", "a-4")
	expectMemories(t, s, "after Turns were deleted", store.MemorySelector{}, "of a Turn whose time is over", "of a user in a Session")
	retire(t, s, later(50), "")
	expectMemories(t, s, "after an object without a UID was retired", store.MemorySelector{},
		"of a Turn whose time is over", "of a user in a Session")
	retire(t, s, later(50), "uid-talk")
	expectMemories(t, s, "after the Session was deleted", store.MemorySelector{}, "of a Turn whose time is over")

	endLearning(t, s, "a-5", "ada@example.com")
	k := claim(t, s, "", later(0), "a-5")
	retire(t, s, later(51), "uid-gone")
	expectError(t, "FinishTask", s.FinishTask(t.Context(), k.Held(), learnedResult(
		learnedFrom("a-5", "of a deleted Session", 5, ofSession("uid-gone")),
		learnedFrom("a-5", "of an unknown Session", 5, ofSession("uid-x")),
	), 0), nil)
	expectError(t, "PublishTask", s.PublishTask(t.Context(), k.Held(), later(52)), nil)
	endLearning(t, s, "a-6", "ada@example.com")
	k = claim(t, s, "", later(0), "a-6")
	retire(t, s, later(51), "a-6")
	expectError(t, "FinishTask of a deleted Turn", s.FinishTask(t.Context(), k.Held(), learnedResult(learnedFrom("a-6", "late", 6)),
		0), task.ErrLost)
	expectMemories(t, s, "of objects that were deleted before their task ended", store.MemorySelector{}, "of a Turn whose time is over")
	if _, err := s.Purge(t.Context(), later(100), 100); err != nil {
		t.Fatal(err)
	}
	claim(t, s, "", later(100), "")
}

func setExpired(t *testing.T, s MemoryStore, uid string, until time.Time) {
	t.Helper()
	expectError(t, "SetExpired", s.SetExpired(t.Context(), uid, until), nil)
}

// testNotesRunOut checks that the note about an object counts at the time at which the object is retired or forgotten,
// and stays the same from then on.
func testNotesRunOut(t *testing.T, s MemoryStore) {
	inSession := func(uid string) func(*memories.Memory) {
		return func(m *memories.Memory) { m.Session, m.SessionUID = "talk", uid }
	}
	retired := func(uid string) { retire(t, s, later(50), uid) }
	forgotten := func(uid string) {
		t.Helper()
		expectError(t, "Forget", s.Forget(t.Context(), later(50), uid), nil)
	}
	none, always := time.Time{}, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	before := later(50).Add(-time.Microsecond)
	for name, tc := range map[string]struct {
		until time.Time
		// end retires or forgets a Session.
		end func(uid string)
		// further is a note that is too late.
		further time.Time
		kept    bool
	}{
		"retired at the end of the note":   {later(50), retired, none, true},
		"retired after the note":           {before, retired, always, false},
		"retired with a permanent note":    {always, func(uid string) { retire(t, s, later(50_000_000), uid) }, none, true},
		"retired without a note":           {none, retired, always, false},
		"forgotten at the end of the note": {later(50), forgotten, none, true},
		"forgotten after the note":         {before, forgotten, always, false},
		"forgotten without a note":         {none, forgotten, always, false},
		"retired and then forgotten": {later(50), func(uid string) {
			retired(uid)
			expectError(t, "Forget", s.Forget(t.Context(), later(90), uid), nil)
		}, none, true},
		"forgotten again and retired later": {later(50), func(uid string) {
			forgotten(uid)
			expectError(t, "Forget", s.Forget(t.Context(), later(80), uid), nil)
			retire(t, s, later(90), uid)
		}, none, true},
		"forgotten after the note was removed": {later(90), func(uid string) {
			setExpired(t, s, uid, none)
			forgotten(uid)
		}, always, false},
	} {
		n := strings.ReplaceAll(name, " ", "")
		uid, turn, late := "uid-"+n, "a-1"+n, "a-2"+n
		add(t, s, uid, nil, entry(1, 1))
		text := func(of string) string { return of + " a session that was " + name }
		learn(t, s, turn, learnedFrom(turn, text("about a user in"), 1, inSession(uid)), learnedFrom(turn, text("of"), 1, ofSession(uid)))
		setExpired(t, s, uid, tc.until)
		tc.end(uid)
		setExpired(t, s, uid, tc.further)
		learn(t, s, late, learnedFrom(late, text("late about a user in"), 2, inSession(uid)),
			learnedFrom(late, text("late of"), 2, ofSession(uid)))
		retire(t, s, later(99), uid)
		var want []string
		if tc.kept {
			want = []string{text("late about a user in"), text("about a user in")}
		}
		expectMemories(t, s, "of a session that was "+name, store.MemorySelector{}, want...)
		retire(t, s, later(99), turn, late)
		expectMemories(t, s, "after its Turns were deleted", store.MemorySelector{})
	}
	learn(t, s, "a-3", learnedFrom("a-3", "of a Turn whose note has run out", 1))
	learn(t, s, "a-4", learnedFrom("a-4", "of a Turn with a note", 1))
	setExpired(t, s, "a-3", later(49))
	setExpired(t, s, "a-4", later(49))
	setExpired(t, s, "a-4", always) // the deletion has succeeded
	retire(t, s, later(50), "a-3", "a-4")
	expectMemories(t, s, "after the Turns were deleted", store.MemorySelector{}, "of a Turn with a note")
}

func testMemoriesDeleted(t *testing.T, s MemoryStore) {
	learn(t, s, "a-1", learnedFrom("a-1", "of ada", 1))
	learn(t, s, "a-2", learnedFrom("a-2", "of bob", 2, ofUser("bob")))
	learn(t, s, "b-1", learnedFrom("b-1", "of ada elsewhere", 3))
	expectError(t, "Observe", s.Observe(t.Context(), memories.Observation{
		TurnUID: "a-1", Namespace: "a", Turn: "turn-a-1", Agent: "desk", Requester: "ada@example.com", Time: endTime,
	}), nil)
	endLearning(t, s, "a-3", "ada@example.com")
	k := claim(t, s, "", later(0), "a-3")
	endLearning(t, s, "a-4", "bob")
	sel := store.MemorySelector{Namespace: "a", Requester: "ada@example.com"}
	n, err := s.DeleteMemories(t.Context(), sel, later(5), 100)
	if n != 1 || err != nil {
		t.Errorf("DeleteMemories: %d, %v; want 1", n, err)
	}
	expectError(t, "FinishTask after the deletion", s.FinishTask(t.Context(), k.Held(), learnedResult(learnedFrom("a-3", "late", 3)),
		0), task.ErrLost)
	expectMemories(t, s, "after the deletion", store.MemorySelector{}, "of ada elsewhere", "of bob")
	if all, err := s.Observations(t.Context(), "a", "desk", 10); len(all) > 0 || err != nil {
		t.Errorf("%v (error %v), want no observation", all, err)
	}
	claim(t, s, "", later(0), "a-4")
	bob := list(t, s, store.MemorySelector{Requester: "bob"})[0]
	if n, err := s.DeleteMemories(t.Context(), store.MemorySelector{Namespace: "b", ID: bob.ID}, later(6), 100); n != 0 || err != nil {
		t.Errorf("DeleteMemories of another namespace: %d, %v; want 0", n, err)
	}
	if n, err := s.DeleteMemories(t.Context(), store.MemorySelector{Namespace: "a", ID: bob.ID}, later(6), 100); n != 1 || err != nil {
		t.Errorf("DeleteMemories of one: %d, %v; want 1", n, err)
	}
	expectMemories(t, s, "after the deletion of one", store.MemorySelector{}, "of ada elsewhere")
}

// testMemoriesDeletedWithoutRecord checks that a deletion also ends the selected tasks whose Turns have no record, and
// only these tasks.
func testMemoriesDeletedWithoutRecord(t *testing.T, s MemoryStore) {
	endLearning(t, s, "a-1", "ada@example.com")
	endLearning(t, s, "a-2", "bob")
	if n, err := s.PurgeRecords(t.Context(), later(1), 10); n != 2 || err != nil {
		t.Fatalf("PurgeRecords: %d, %v; want 2", n, err)
	}
	for _, sel := range []store.MemorySelector{
		{Namespace: "a", Requester: "eve"},
		{Namespace: "a", Session: "another"},
		{Namespace: "a", Turn: "turn-a-3"},
		{Namespace: "b", Requester: "ada@example.com"},
		{Namespace: "a", Requester: "ada@example.com"},
	} {
		if _, err := s.DeleteMemories(t.Context(), sel, later(2), 100); err != nil {
			t.Fatal(err)
		}
	}
	k := claim(t, s, "", later(3), "a-2")
	claim(t, s, "", later(3), "")
	if _, err := s.DeleteMemories(t.Context(), store.MemorySelector{Namespace: "a", Session: "talk"}, later(4), 100); err != nil {
		t.Fatal(err)
	}
	expectError(t, "RenewTask after the deletion", s.RenewTask(t.Context(), k.Held(), later(90)), task.ErrLost)
}

// testMemoriesOfScopeDeleted checks that a deletion of the memories of a scope keeps all other memories, and that
// waiting tasks then learn only in the other scopes.
func testMemoriesOfScopeDeleted(t *testing.T, s MemoryStore, reopen func(t *testing.T, s MemoryStore) MemoryStore) {
	add(t, s, "uid-talk", nil, entry(1, 1))
	learn(t, s, "a-1", learnedFrom("a-1", "about the user", 1), learnedFrom("a-1", "about the talk", 2, ofSession("uid-talk")))
	expectError(t, "Observe", s.Observe(t.Context(), memories.Observation{
		TurnUID: "a-1", Namespace: "a", Turn: "turn-a-1", Agent: "desk", Requester: "ada@example.com", Time: endTime,
	}), nil)
	endLearning(t, s, "a-2", "ada@example.com")
	endLearning(t, s, "a-3", "ada@example.com")
	endLearning(t, s, "a-4", "bob")
	k := claim(t, s, "", later(3), "a-2")
	expectError(t, "BeginTask", s.BeginTask(t.Context(), k.Held(), starting(later(3))), nil)
	c := asking(budget.Limits{})
	c.Found = &task.Result{Learned: &task.Learned{Scopes: []memories.Scope{memories.User}, Refused: 7}}
	expectError(t, "ChargeTask", s.ChargeTask(t.Context(), k.Held(), c), nil)

	sel := store.MemorySelector{Namespace: "a", Requester: "ada@example.com", Scope: memories.Session}
	for _, want := range []int{1, 0} {
		if n, err := s.DeleteMemories(t.Context(), sel, later(4), 100); n != want || err != nil {
			t.Errorf("DeleteMemories: %d, %v; want %d", n, err, want)
		}
	}
	expectError(t, "ChargeTask of an attempt that asks in the scope", s.ChargeTask(t.Context(), k.Held(), task.Charge{}), task.ErrLost)
	s = reopen(t, s)
	expectMemories(t, s, "after the deletion", store.MemorySelector{}, "about the user")
	if all, err := s.Observations(t.Context(), "a", "desk", 10); len(all) != 1 || err != nil {
		t.Errorf("%d observations (error %v), want 1, because observations have no scope", len(all), err)
	}
	found := map[string]*task.Result{}
	for _, uid := range []string{"a-3", "a-4", "a-2"} { // in the order in which they are due
		found[uid] = claim(t, s, "", later(100), uid).Partial
	}
	if diff := cmp.Diff(map[string]*task.Result{
		"a-2": {Learned: &task.Learned{Scopes: []memories.Scope{memories.User, memories.Session}, Refused: 7}},
		"a-3": {Learned: &task.Learned{Scopes: []memories.Scope{memories.Session}}},
		"a-4": nil,
	}, found); diff != "" {
		t.Errorf("the partial results of the tasks: -want +got:\n%s", diff)
	}
	expectAccounts(t, s, spent("x", 0, 10, "0.1"))
}

func testMemoriesExpire(t *testing.T, s MemoryStore) {
	learn(t, s, "a-1", learnedFrom("a-1", "old cat", 1), learnedFrom("a-1", "new cat", 50))
	ada := memories.Owner{Namespace: "a", Agent: "desk", Scope: memories.User, ID: "ada@example.com"}
	expectFound(t, s, ada, "cat", later(1000), "old cat", "new cat")
	expectFound(t, s, ada, "cat", later(1001), "new cat")
	expectFound(t, s, ada, "", later(1050))
	for _, want := range []int{1, 0} {
		if n, err := s.PurgeMemories(t.Context(), later(1001), 10); n != want || err != nil {
			t.Errorf("PurgeMemories: %d, %v; want %d", n, err, want)
		}
	}
	expectMemories(t, s, "after the purge", store.MemorySelector{}, "new cat")
}
