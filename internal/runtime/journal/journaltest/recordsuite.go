package journaltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// RecordStore is a journal with records of Turns.
type RecordStore interface {
	journal.Journal
	store.Keeper
	store.Records
}

// RunRecords tests the contract of a RecordStore. open returns a new, empty store and closes it when the test ends.
// reopen returns the same store after a restart.
func RunRecords(t *testing.T, open func(t *testing.T) RecordStore, reopen func(t *testing.T, s RecordStore) RecordStore) {
	t.Run("a record is written with the end of its Turn, once", func(t *testing.T) { testRecordWithEnd(t, open(t), reopen) })
	t.Run("an entry sets the number in the record of a Turn", func(t *testing.T) { testTurnNumber(t, open(t)) })
	t.Run("records without an entry are added once", func(t *testing.T) { testRecordWithoutEntry(t, open(t)) })
	t.Run("a requester may contain U+0000", func(t *testing.T) { testRequesterWithNUL(t, open(t)) })
	t.Run("records are returned in pages, newest first", func(t *testing.T) { testRecordPages(t, open(t)) })
	t.Run("a page of records has a limited size", func(t *testing.T) { testRecordPageBytes(t, open(t)) })
	t.Run("records are selected", func(t *testing.T) { testRecordsSelected(t, open(t)) })
	t.Run("old records are purged, oldest first", func(t *testing.T) { testRecordsPurged(t, open(t)) })
	t.Run("the namespace with the most records is trimmed", func(t *testing.T) { testRecordsTrimmed(t, open(t)) })
	t.Run("selected records are deleted", func(t *testing.T) { testRecordsDeleted(t, open(t)) })
	t.Run("feedback is stored with the newest record", func(t *testing.T) { testFeedback(t, open(t)) })
	t.Run("records with comments are selected", func(t *testing.T) { testCommentedRecords(t, open(t)) })
	t.Run("a record outlives the journal of its Turn", func(t *testing.T) { testRecordOutlivesJournal(t, open(t)) })
	t.Run("a call whose context has ended does nothing", func(t *testing.T) { testEndedContextOfRecords(t, open(t)) })
}

// recordOf returns the record of a Turn that ended the given number of minutes after entryTime.
func recordOf(uid string, minutes int) turnrecord.Record {
	return turnrecord.Record{
		UID: uid, Namespace: "helpdesk", Turn: "turn-" + uid, Agent: "desk", Reason: "Completed",
		Completed: entryTime.Add(time.Duration(minutes) * time.Minute).UTC().Truncate(time.Microsecond),
	}
}

// fullRecord returns a record that is as complete as a record can be at the end of a Turn. It has no feedback,
// evaluations or expenses.
func fullRecord(uid string) turnrecord.Record {
	r := recordOf(uid, 0)
	r.Session, r.Requester = "talk", "ada@example.com"
	r.Details = turnrecord.Details{
		Key: "support.chat.turn", Strategy: "ToolAssisted", Tools: []string{"a", "b\u0000<"}, PromptRenderHash: "r", ContextHash: "c",
		Labels: map[string]string{"team": "red"}, Prompt: &turnrecord.Prompt{Profile: "p", ID: "i", Version: "1", Tags: []string{"x"}},
		Models: []turnrecord.Model{
			{
				Provider: "p", Model: "m", Usage: model.Usage{InputTokens: 3, CacheCreationTokens: 1},
				Cost: &turnrecord.Cost{Amount: "0", Currency: "EUR"},
			},
			{Provider: "p", Model: "n", Usage: model.Usage{OutputTokens: 2, Estimated: true}},
		},
		ElapsedMilliseconds: 12, TurnNumber: 3,
	}
	return r
}

func ending(seq, epoch int64, r turnrecord.Record) journal.Entry {
	e := entry(seq, epoch)
	e.Kind, e.TurnRecord = journal.Finalized, &r
	return e
}

// records returns the records of a query.
func records(t *testing.T, s store.Records, q store.RecordQuery) []turnrecord.Record {
	t.Helper()
	all, _, err := s.Records(t.Context(), q)
	if err != nil {
		t.Fatalf("Records: %v", err)
	}
	return all
}

func uidsOf(all []turnrecord.Record) string {
	var uids []string
	for _, r := range all {
		uids = append(uids, r.UID)
	}
	return strings.Join(uids, " ")
}

func testRecordWithEnd(t *testing.T, s RecordStore, reopen func(t *testing.T, s RecordStore) RecordStore) {
	want := fullRecord("a")
	add(t, s, "a", nil, entry(1, 2), ending(2, 2, want))
	add(t, s, "first", nil, ending(1, 1, fullRecord("first"))) // the very first entry of a journal
	// A refused append leaves no record.
	add(t, s, "b", nil, entry(1, 2))
	add(t, s, "b", journal.ErrSequence, ending(1, 2, fullRecord("b")))
	add(t, s, "b", journal.ErrFenced, ending(2, 1, fullRecord("b")))
	// A Turn keeps its first record.
	other := fullRecord("a")
	other.Reason = "Cancelled"
	add(t, s, "a", nil, ending(3, 2, other))
	expect(t, s, "a", entry(1, 2), finalized(2, 2), finalized(3, 2))
	s = reopen(t, s)
	if diff := cmp.Diff([]turnrecord.Record{fullRecord("first"), want}, normalizeFeedback(records(t, s, store.RecordQuery{}))); diff != "" {
		t.Errorf("records: -want +got:\n%s", diff)
	}
}

// testTurnNumber checks that an entry, such as one of a Session, sets the number in the record of a Turn. It must
// change nothing else, and nothing at all if it is refused or the Turn has no record.
func testTurnNumber(t *testing.T, s RecordStore) {
	add(t, s, "a", nil, ending(1, 1, fullRecord("a")))
	add(t, s, "b", nil, ending(1, 1, recordOf("b", 1)))
	f := turnrecord.Feedback{User: "ada", Score: "0.5", Time: entryTime.UTC()}
	if err := s.AddFeedback(t.Context(), "helpdesk", "turn-a", "", f); err != nil {
		t.Fatal(err)
	}
	numbered := func(seq, epoch int64, uid string, number int64) journal.Entry {
		e := entry(seq, epoch)
		e.Kind, e.TurnNumber = journal.SessionTurn, &journal.TurnNumber{TurnUID: uid, Number: number}
		return e
	}
	plain := func(seq int64) journal.Entry {
		e := entry(seq, 2)
		e.Kind = journal.SessionTurn
		return e
	}
	add(t, s, "s", nil, numbered(1, 2, "a", 12))
	add(t, s, "s", nil, numbered(2, 2, "unknown", 13))
	add(t, s, "s", nil, numbered(3, 2, "b", 14))
	add(t, s, "s", journal.ErrSequence, numbered(3, 2, "a", 15))
	add(t, s, "s", journal.ErrFenced, numbered(4, 1, "a", 16))
	expect(t, s, "s", plain(1), plain(2), plain(3))
	a, b := fullRecord("a"), recordOf("b", 1)
	a.Feedback, a.TurnNumber, b.TurnNumber = []turnrecord.Feedback{f}, 12, 14
	if diff := cmp.Diff([]turnrecord.Record{b, a}, normalizeFeedback(records(t, s, store.RecordQuery{}))); diff != "" {
		t.Errorf("records: -want +got:\n%s", diff)
	}
}

// normalizeFeedback replaces each empty list of feedback by nil, because stores may return either.
func normalizeFeedback(all []turnrecord.Record) []turnrecord.Record {
	for i := range all {
		if len(all[i].Feedback) == 0 {
			all[i].Feedback = nil
		}
	}
	return all
}

func finalized(seq, epoch int64) journal.Entry {
	e := entry(seq, epoch)
	e.Kind = journal.Finalized
	return e
}

// testRequesterWithNUL checks that a requester with U+0000, which a column of PostgreSQL cannot hold, does not prevent
// the end of a Turn, its tasks and the records of other Turns. A store may replace the character.
func testRequesterWithNUL(t *testing.T, s RecordStore) {
	a, b := recordOf("a", 1), recordOf("b", 2)
	a.Requester, b.Requester = "ada\u0000", "ada\u0000"
	end := ending(1, 1, a)
	end.Tasks = []task.Task{{
		UID: "a", Kind: task.Learn, Namespace: a.Namespace, Turn: a.Turn, Agent: a.Agent, Requester: a.Requester, Created: entryTime,
	}}
	add(t, s, "a", nil, end)
	if n, err := s.AddRecords(t.Context(), b, recordOf("c", 3)); n != 2 || err != nil {
		t.Errorf("AddRecords: %d, %v; want two new records", n, err)
	}
	got := map[string]string{}
	for _, r := range records(t, s, store.RecordQuery{}) {
		got[r.UID] = strings.ReplaceAll(r.Requester, "\u0000", "\ufffd")
	}
	if want := map[string]string{"a": "ada\ufffd", "b": "ada\ufffd", "c": ""}; !maps.Equal(got, want) {
		t.Errorf("the requesters are %q, want %q", got, want)
	}
}

func testRecordWithoutEntry(t *testing.T, s RecordStore) {
	add(t, s, "a", nil, ending(1, 1, recordOf("a", 1)))
	late := recordOf("a", 2)
	if n, err := s.AddRecords(t.Context(), late, recordOf("b", 3), recordOf("b", 4)); n != 1 || err != nil {
		t.Errorf("AddRecords: %d, %v; want one new record", n, err)
	}
	if n, err := s.AddRecords(t.Context()); n != 0 || err != nil {
		t.Errorf("AddRecords without records: %d, %v; want 0", n, err)
	}
	want := []turnrecord.Record{recordOf("b", 3), recordOf("a", 1)}
	if diff := cmp.Diff(want, normalizeFeedback(records(t, s, store.RecordQuery{}))); diff != "" {
		t.Errorf("records: -want +got:\n%s", diff)
	}
	missing, err := s.Unrecorded(t.Context(), []string{"a", "x", "b", "y"})
	slices.Sort(missing)
	if err != nil || !slices.Equal(missing, []string{"x", "y"}) {
		t.Errorf("Unrecorded: %v, %v; want x and y", missing, err)
	}
	// Several processes add the same records at the same time.
	var all sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 4 {
		all.Go(func() {
			n, err := s.AddRecords(t.Context(), recordOf("c", 1), recordOf("d", 1))
			if err != nil {
				t.Errorf("AddRecords: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
		})
	}
	all.Wait()
	if total != 2 {
		t.Errorf("four concurrent calls have added %d records, want 2", total)
	}
}

func testRecordPages(t *testing.T, s RecordStore) {
	var all []turnrecord.Record
	for i := range store.MaxRecords + 20 {
		all = append(all, recordOf(fmt.Sprintf("u%04d", i), i/3)) // three Turns end at the same time
	}
	if _, err := s.AddRecords(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	if n := len(records(t, s, store.RecordQuery{Limit: 10_000})); n != store.MaxRecords {
		t.Errorf("the largest page has %d records, want %d", n, store.MaxRecords)
	}
	if got := uidsOf(records(t, s, store.RecordQuery{Limit: 4})); got != "u0519 u0518 u0517 u0516" {
		t.Errorf("the first page has %s, want the newest records", got)
	}
	var got []string
	for r, err := range store.AllRecords(t.Context(), s, store.RecordQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.UID)
	}
	if len(got) != len(all) || !slices.IsSortedFunc(got, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("all pages have %d records, want %d, newest first", len(got), len(all))
	}
}

// testRecordPageBytes checks that large details and many comments limit the number of records in a page.
func testRecordPageBytes(t *testing.T, s RecordStore) {
	var large []turnrecord.Record
	const tools, nameBytes, commented = turnrecord.MaxTools, 100, 8
	for i := range 2 * store.PageRecordBytes / (tools * nameBytes) {
		r := recordOf(fmt.Sprintf("u%04d", i), i)
		for range tools {
			r.Tools = append(r.Tools, strings.Repeat("x", nameBytes))
		}
		large = append(large, r)
	}
	for i := range commented {
		r := recordOf(fmt.Sprintf("v%04d", i), len(large)+i)
		r.Namespace = "sales"
		large = append(large, r)
	}
	if _, err := s.AddRecords(t.Context(), large...); err != nil {
		t.Fatal(err)
	}
	for i := range commented * turnrecord.MaxFeedback {
		r := large[len(large)-1-i%commented]
		f := turnrecord.Feedback{User: fmt.Sprint("user ", i), Score: "1", Comment: strings.Repeat("<", turnrecord.MaxComment)}
		if err := s.AddFeedback(t.Context(), r.Namespace, r.Turn, r.UID, f); err != nil {
			t.Fatal(err)
		}
	}
	for namespace, perRecord := range map[string]int{
		"helpdesk": tools * nameBytes, "sales": turnrecord.MaxFeedback * turnrecord.MaxComment * len(`\u003c`),
	} {
		q := store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: namespace}}
		want := 0
		for _, r := range large {
			if r.Namespace == namespace {
				want++
			}
		}
		var got, pages int
		for more := true; more; pages++ {
			var page []turnrecord.Record
			var err error
			if page, more, err = s.Records(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			if len(page)*perRecord > store.PageRecordBytes+perRecord {
				t.Errorf("a page has %d records of more than %d bytes each, want at most %d bytes and one record",
					len(page), perRecord, store.PageRecordBytes)
			}
			if got += len(page); len(page) > 0 {
				q.After = store.PositionOf(&page[len(page)-1])
			}
		}
		all := 0
		for _, err := range store.AllRecords(t.Context(), s, store.RecordQuery{RecordSelector: q.RecordSelector}) {
			if err != nil {
				t.Fatal(err)
			}
			all++
		}
		if got != want || all != want || pages > 3 {
			t.Errorf("namespace %s: %d records in %d pages, and %d in all, want %d in at most 3 pages", namespace, got, pages, all, want)
		}
	}
}

func testRecordsSelected(t *testing.T, s RecordStore) {
	a, b, c := recordOf("a", 1), recordOf("b", 2), recordOf("c", 3)
	b.Namespace, b.Session, c.Agent, c.Requester, c.Turn = "sales", "talk", "other", "eve", "turn-a"
	if _, err := s.AddRecords(t.Context(), a, b, c); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		q    store.RecordQuery
		want string
	}{
		"all":       {store.RecordQuery{}, "c b a"},
		"namespace": {store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}}, "c a"},
		"agent":     {store.RecordQuery{RecordSelector: store.RecordSelector{Agent: "desk"}}, "b a"},
		"session":   {store.RecordQuery{RecordSelector: store.RecordSelector{Session: "talk"}}, "b"},
		"requester": {store.RecordQuery{RecordSelector: store.RecordSelector{Requester: "eve"}}, "c"},
		"turn":      {store.RecordQuery{RecordSelector: store.RecordSelector{Turn: "turn-a"}}, "c a"},
		"all fields": {
			store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk", Agent: "desk", Turn: "turn-a"}}, "a",
		},
		"none":  {store.RecordQuery{RecordSelector: store.RecordSelector{Agent: "' OR true --"}}, ""},
		"since": {store.RecordQuery{Since: b.Completed}, "c b"},
		"until": {store.RecordQuery{Until: b.Completed}, "a"},
		"after": {store.RecordQuery{After: store.PositionOf(&b)}, "a"},
		"page and fields": {store.RecordQuery{
			RecordSelector: store.RecordSelector{Namespace: "helpdesk"}, After: store.PositionOf(&c), Since: a.Completed, Limit: 1,
		}, "a"},
	} {
		if got := uidsOf(records(t, s, tc.q)); got != tc.want {
			t.Errorf("%s: records %q, want %q", name, got, tc.want)
		}
	}
}

func testRecordsPurged(t *testing.T, s RecordStore) {
	if _, err := s.AddRecords(t.Context(), recordOf("c", 3), recordOf("a", 1), recordOf("b", 2)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		reason string
		before time.Time
		limit  int
		want   int
		left   string
	}{
		{"no record is that old", recordOf("", 1).Completed, 10, 0, "c b a"},
		{"no record may be purged", recordOf("", 9).Completed, 0, 0, "c b a"},
		{"the oldest record is purged first", recordOf("", 9).Completed, 1, 1, "c b"},
		{"newer records stay", recordOf("", 3).Completed, 10, 1, "c"},
	} {
		if n, err := s.PurgeRecords(t.Context(), step.before, step.limit); n != step.want || err != nil {
			t.Errorf("PurgeRecords: %d, %v; want %d: %s", n, err, step.want, step.reason)
		}
		if got := uidsOf(records(t, s, store.RecordQuery{})); got != step.left {
			t.Errorf("left: %q, want %q: %s", got, step.left, step.reason)
		}
	}
	expectDeletedUntil(t, s, "helpdesk", recordOf("b", 2).Completed)
	expectDeletedUntil(t, s, "sales", time.Time{})
}

// expectDeletedUntil checks DeletedUntil of a namespace.
func expectDeletedUntil(t *testing.T, s RecordStore, namespace string, want time.Time) {
	t.Helper()
	if got, err := s.DeletedUntil(t.Context(), namespace); err != nil || !got.Equal(want) {
		t.Errorf("DeletedUntil of namespace %q: %s, %v; want %s", namespace, got, err, want)
	}
}

func testRecordsTrimmed(t *testing.T, s RecordStore) {
	if n, err := s.TrimRecords(t.Context(), 0, 10); n != 0 || err != nil {
		t.Errorf("TrimRecords of an empty store: %d, %v; want 0", n, err)
	}
	other := recordOf("z", 0)
	other.Namespace = "sales"
	if _, err := s.AddRecords(t.Context(), other, recordOf("a", 1), recordOf("b", 2), recordOf("c", 3), recordOf("d", 4)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		max, limit, want int
		left             string
	}{{4, 10, 0, "d c b a z"}, {2, 1, 1, "d c b z"}, {2, 10, 1, "d c z"}, {1, 10, 1, "d z"}, {1, 10, 0, "d z"}} {
		if n, err := s.TrimRecords(t.Context(), step.max, step.limit); n != step.want || err != nil {
			t.Errorf("TrimRecords(%d, %d): %d, %v; want %d", step.max, step.limit, n, err, step.want)
		}
		if got := uidsOf(records(t, s, store.RecordQuery{})); got != step.left {
			t.Errorf("left: %q, want %q", got, step.left)
		}
	}
	for namespace, want := range map[string]time.Time{"helpdesk": recordOf("c", 3).Completed, "sales": {}, "": recordOf("c", 3).Completed} {
		expectDeletedUntil(t, s, namespace, want)
	}
	older := recordOf("e", 1)
	if _, err := s.AddRecords(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	if n, err := s.TrimRecords(t.Context(), 1, 10); n != 1 || err != nil {
		t.Errorf("TrimRecords: %d, %v; want 1", n, err)
	}
	expectDeletedUntil(t, s, "helpdesk", recordOf("c", 3).Completed)
	// Records that ended at the same time are ordered by their UIDs.
	if _, err := s.AddRecords(t.Context(), recordOf("g", 5), recordOf("F", 5), recordOf("h", 5)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.TrimRecords(t.Context(), 2, 10); n != 2 || err != nil {
		t.Errorf("TrimRecords: %d, %v; want 2", n, err)
	}
	if got := uidsOf(records(t, s, store.RecordQuery{})); got != "h g z" {
		t.Errorf("left: %q, want the newest two by time and UID, and that of the other namespace", got)
	}
}

func testRecordsDeleted(t *testing.T, s RecordStore) {
	a, b, c := recordOf("a", 1), recordOf("b", 2), recordOf("c", 3)
	a.Requester, b.Requester, c.Requester, c.Namespace = "eve", "eve", "eve", "sales"
	if _, err := s.AddRecords(t.Context(), a, b, c, recordOf("d", 4)); err != nil {
		t.Fatal(err)
	}
	sel := store.RecordSelector{Namespace: "helpdesk", Requester: "eve"}
	for _, step := range []struct {
		limit, want int
		left        string
	}{{1, 1, "d c b"}, {10, 1, "d c"}, {10, 0, "d c"}} {
		if n, err := s.DeleteRecords(t.Context(), sel, step.limit); n != step.want || err != nil {
			t.Errorf("DeleteRecords: %d, %v; want %d", n, err, step.want)
		}
		if got := uidsOf(records(t, s, store.RecordQuery{})); got != step.left {
			t.Errorf("left: %q, want %q: no other record may be deleted", got, step.left)
		}
	}
	expectDeletedUntil(t, s, "", time.Time{}) // because it does not cover records that a user deletes
}

func testRecordOutlivesJournal(t *testing.T, s RecordStore) {
	record := fullRecord("a")
	add(t, s, "a", nil, ending(1, 1, record))
	first := turnrecord.Feedback{User: "ada", Score: "0.5", Comment: "it says 42", Time: entryTime.UTC()}
	if err := s.AddFeedback(t.Context(), record.Namespace, record.Turn, "a", first); err != nil {
		t.Fatal(err)
	}
	if err := s.Retire(t.Context(), entryTime, "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.AddFeedback(t.Context(), record.Namespace, record.Turn, "a", first); !errors.Is(err, store.ErrTurnDeleted) {
		t.Errorf("AddFeedback with a comment: %v, want ErrTurnDeleted", err)
	}
	second := turnrecord.Feedback{User: "eve", Score: "1", Time: entryTime.UTC()}
	if err := s.AddFeedback(t.Context(), record.Namespace, record.Turn, "", second); err != nil {
		t.Errorf("AddFeedback without a comment: %v", err)
	}
	first.Comment = ""
	if diff := cmp.Diff([]turnrecord.Feedback{first, second}, records(t, s, store.RecordQuery{})[0].Feedback); diff != "" {
		t.Errorf("the feedback to a deleted Turn must have only scores: -want +got:\n%s", diff)
	}
	if n, err := s.Purge(t.Context(), entryTime, 10); n != 1 || err != nil {
		t.Fatalf("Purge: %d, %v; want 1", n, err)
	}
	if got := uidsOf(records(t, s, store.RecordQuery{})); got != "a" {
		t.Errorf("records: %q, want the record of the Turn whose journal was purged", got)
	}
}

func testEndedContextOfRecords(t *testing.T, s RecordStore) {
	if _, err := s.AddRecords(t.Context(), recordOf("a", 1)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func() error{
		"AddRecords":    func() error { _, err := s.AddRecords(ctx, recordOf("b", 2)); return err },
		"Unrecorded":    func() error { _, err := s.Unrecorded(ctx, []string{"a"}); return err },
		"Records":       func() error { _, _, err := s.Records(ctx, store.RecordQuery{}); return err },
		"PurgeRecords":  func() error { _, err := s.PurgeRecords(ctx, entryTime.Add(time.Hour), 1); return err },
		"TrimRecords":   func() error { _, err := s.TrimRecords(ctx, 0, 1); return err },
		"DeletedUntil":  func() error { _, err := s.DeletedUntil(ctx, "helpdesk"); return err },
		"DeleteRecords": func() error { _, err := s.DeleteRecords(ctx, store.RecordSelector{}, 1); return err },
		"AddFeedback":   func() error { return s.AddFeedback(ctx, "helpdesk", "turn-a", "", turnrecord.Feedback{}) },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the error of the context", name, err)
		}
	}
	if got := uidsOf(records(t, s, store.RecordQuery{})); got != "a" {
		t.Errorf("records: %q, want no change", got)
	}
}
