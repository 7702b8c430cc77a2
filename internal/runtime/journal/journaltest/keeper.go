package journaltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
)

// Keeper is a store of journals with retention.
type Keeper interface {
	journal.Journal
	store.Keeper
	store.Meter
}

// RunKeeper tests the contract of a Keeper. open returns a new, empty Keeper and closes it when the test ends. settle
// makes the numbers of Size exact, and returns the same Keeper. It may close and reopen the Keeper for this.
func RunKeeper(t *testing.T, open func(t *testing.T) Keeper, settle func(t *testing.T, k Keeper) Keeper) {
	t.Run("a retired journal is not listed, but can be read", func(t *testing.T) { testRetire(t, open(t)) })
	t.Run("a retired journal whose object exists again is revived", func(t *testing.T) { testRevive(t, open(t), settle) })
	t.Run("UIDs are returned in pages", func(t *testing.T) { testUIDs(t, open(t)) })
	t.Run("journals that were retired early enough are purged, oldest first", func(t *testing.T) { testPurge(t, open(t)) })
	t.Run("a purged journal leaves nothing", func(t *testing.T) { testNothingIsLeft(t, open(t)) })
	t.Run("a giant journal is purged as a whole", func(t *testing.T) { testPurgeOfGiant(t, open(t), settle) })
	t.Run("a purge leaves nothing of a concurrent append", func(t *testing.T) { testPurgeDuringAppends(t, open(t)) })
	t.Run("a call whose context has ended does nothing", func(t *testing.T) { testEndedContextOfKeeper(t, open(t)) })
	t.Run("the use is counted for each namespace", func(t *testing.T) { testUse(t, open(t)) })
	t.Run("the size counts journals, entries and artifacts", func(t *testing.T) { testSize(t, open(t), settle) })
}

func testRetire(t *testing.T, k Keeper) {
	for _, uid := range []string{"a", "b", "c"} {
		add(t, k, uid, nil, entry(1, 1))
	}
	retire(t, k, entryTime, "b", "unknown", "b")
	retire(t, k, entryTime)
	expectLive(t, k, "a", "c")
	expect(t, k, "b", entry(1, 1))
	add(t, k, "b", nil, entry(2, 1)) // by a run that has not stopped yet
	expect(t, k, "b", entry(1, 1), entry(2, 1))
	expectLive(t, k, "a", "c")
	add(t, k, "unknown", nil, entry(1, 1)) // this journal did not exist when it was retired
	expectLive(t, k, "a", "c", "unknown")
}

func testRevive(t *testing.T, k Keeper, settle func(t *testing.T, k Keeper) Keeper) {
	for _, uid := range []string{"a", "b", "c", "live"} {
		add(t, k, uid, nil, entry(1, 1))
	}
	retire(t, k, entryTime, "c", "b", "a")
	expectRetired(t, k, "", 2, "a", "b")
	expectRetired(t, k, "b", 2, "c")
	for range 2 {
		if err := k.Revive(t.Context(), "a", "c", "unknown", "live"); err != nil {
			t.Fatal(err)
		}
	}
	expectLive(t, k, "a", "c", "live")
	expectRetired(t, k, "", 10, "b")
	retire(t, k, entryTime.Add(time.Hour), "c") // which counts from now on
	if n, err := k.Purge(t.Context(), entryTime, 10); n != 1 || err != nil {
		t.Errorf("Purge: %d, %v; want 1", n, err)
	}
	expect(t, k, "a", entry(1, 1))
	expect(t, k, "c", entry(1, 1))
	checkSize(t, settle(t, k), store.Size{Journals: 3, Retired: 1, Entries: 3})
}

func testUIDs(t *testing.T, k Keeper) {
	var want []string
	for i := range 25 {
		uid := fmt.Sprintf("uid-%02d", i)
		add(t, k, uid, nil, entry(1, 1), entry(2, 1))
		if i%5 == 0 {
			retire(t, k, entryTime, uid)
		} else {
			want = append(want, uid)
		}
	}
	var got []string
	for after := ""; ; after = got[len(got)-1] {
		page, err := k.UIDs(t.Context(), after, 6)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		if len(page) > 6 {
			t.Errorf("a page has %d UIDs, want at most 6", len(page))
		}
		got = append(got, page...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("UIDs: -want +got:\n%s", diff)
	}
	// Upper case comes before lower case with any collation of the database.
	add(t, k, "Upper", nil, entry(1, 1))
	if page, err := k.UIDs(t.Context(), "", 1); err != nil || !slices.Equal(page, []string{"Upper"}) {
		t.Errorf("UIDs: %v, %v; want the UIDs in byte order", page, err)
	}
}

func testPurge(t *testing.T, k Keeper) {
	for _, uid := range []string{"newest", "old", "live", "oldest", "older"} {
		add(t, k, uid, nil, entry(1, 1))
	}
	retire(t, k, entryTime.Add(2*time.Hour), "newest")
	retire(t, k, entryTime.Add(time.Hour), "old")
	retire(t, k, entryTime, "older")
	retire(t, k, entryTime.Add(-time.Hour), "oldest")
	retire(t, k, entryTime.Add(-2*time.Hour), "old") // changes nothing, because the journal is retired already
	for _, step := range []struct {
		reason string
		before time.Time
		limit  int
		want   int
		left   []string
	}{
		{"no journal is that old", entryTime.Add(-2 * time.Hour), 10, 0, []string{"newest", "old", "live", "oldest", "older"}},
		{"no journal may be purged", entryTime.Add(24 * time.Hour), 0, 0, []string{"newest", "old", "live", "oldest", "older"}},
		{"the oldest journal is purged first", entryTime.Add(24 * time.Hour), 1, 1, []string{"newest", "old", "live", "older"}},
		{"a journal that was retired exactly at this time is purged, too", entryTime.Add(time.Hour), 10, 2, []string{"newest", "live"}},
		{"fewer journals are left than may be purged", entryTime.Add(24 * time.Hour), 10, 1, []string{"live"}},
		{"a journal that is not retired stays", entryTime.Add(24 * time.Hour), 10, 0, []string{"live"}},
	} {
		if n, err := k.Purge(t.Context(), step.before, step.limit); n != step.want || err != nil {
			t.Errorf("Purge: %d, %v; want %d: %s", n, err, step.want, step.reason)
		}
		var left []string
		for _, uid := range []string{"newest", "old", "live", "oldest", "older"} {
			if got, err := read(t.Context(), k, uid, 0, -1); err != nil {
				t.Fatal(err)
			} else if len(got) > 0 {
				left = append(left, uid)
			}
		}
		if diff := cmp.Diff(step.left, left); diff != "" {
			t.Errorf("%s: -want +got:\n%s", step.reason, diff)
		}
	}
}

func testNothingIsLeft(t *testing.T, k Keeper) {
	same, first := artifactEntry(1, "content")
	for _, uid := range []string{"a", "b"} {
		add(t, k, uid, nil, first)
	}
	retire(t, k, entryTime, "a")
	if n, err := k.Purge(t.Context(), entryTime, 10); n != 1 || err != nil {
		t.Fatalf("Purge: %d, %v; want 1", n, err)
	}
	expect(t, k, "a")
	if got, err := k.Artifact(t.Context(), "a", same.SHA256); !errors.Is(err, journal.ErrNoArtifact) {
		t.Errorf("Artifact: %v, %v; want ErrNoArtifact", got, err)
	}
	if _, err := k.Artifact(t.Context(), "b", same.SHA256); err != nil {
		t.Errorf("Artifact of another UID: %v, want no error", err)
	}
	expect(t, k, "b", asRead(first))
	add(t, k, "a", journal.ErrSequence, entry(2, 1)) // by a run that has not stopped yet
	expectLive(t, k, "b")
	add(t, k, "a", nil, entry(1, 0)) // the old epoch is gone, too
	expectLive(t, k, "a", "b")       // the new journal is not retired
}

func testPurgeOfGiant(t *testing.T, k Keeper, settle func(t *testing.T, k Keeper) Keeper) {
	const batches = 30
	for i := range int64(batches) {
		batch := entries(i*100+1, 100)
		for n := range batch[:4] {
			batch[n].Artifacts = []journal.Artifact{journal.NewArtifact(fmt.Append(nil, i, n))}
		}
		add(t, k, "giant", nil, batch...)
	}
	add(t, k, "small", nil, entry(1, 1))
	add(t, k, "stays", nil, entry(1, 1))
	retire(t, k, entryTime, "giant")
	retire(t, k, entryTime.Add(time.Second), "small")
	if n, err := k.Purge(t.Context(), entryTime.Add(time.Second), 10); n != 2 || err != nil {
		t.Errorf("Purge: %d, %v; want 2", n, err)
	}
	expect(t, k, "giant")
	expect(t, k, "small")
	expect(t, k, "stays", entry(1, 1))
	checkSize(t, settle(t, k), store.Size{Journals: 1, Entries: 1})
}

func testPurgeDuringAppends(t *testing.T, k Keeper) {
	for round := range 20 {
		uid := fmt.Sprintf("turn-%d", round)
		var group sync.WaitGroup
		begun := make(chan struct{})
		group.Go(func() {
			for seq := int64(1); ; seq++ {
				e := entry(seq, 1)
				e.Artifacts = []journal.Artifact{{SHA256: fmt.Sprint(seq), Bytes: 1, Data: []byte{1}}}
				if err := k.Append(t.Context(), uid, e); err != nil {
					if !errors.Is(err, journal.ErrSequence) || seq == 1 {
						t.Errorf("Append: %v, want ErrSequence once the journal is gone", err)
					}
					return
				}
				if seq == 2 {
					close(begun)
				}
			}
		})
		<-begun
		retire(t, k, entryTime, uid)
		if n, err := k.Purge(t.Context(), entryTime, 10); n != 1 || err != nil {
			t.Fatalf("Purge: %d, %v; want 1", n, err)
		}
		group.Wait()
		expect(t, k, uid)
		for seq := range 20 {
			if _, err := k.Artifact(t.Context(), uid, fmt.Sprint(seq)); !errors.Is(err, journal.ErrNoArtifact) {
				t.Errorf("Artifact: %v, want ErrNoArtifact", err)
			}
		}
	}
}

func testEndedContextOfKeeper(t *testing.T, k Keeper) {
	add(t, k, "a", nil, entry(1, 1))
	add(t, k, "b", nil, entry(1, 1))
	retire(t, k, entryTime, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, purged := k.Purge(ctx, entryTime, 10)
	_, uids := k.UIDs(ctx, "", 10)
	_, retired := k.RetiredUIDs(ctx, "", 10)
	_, sized := k.Size(ctx)
	for name, err := range map[string]error{
		"Retire": k.Retire(ctx, entryTime, "b"), "Forget": k.Forget(ctx, entryTime, "b"), "Purge": purged, "UIDs": uids, "Size": sized,
		"RetiredUIDs": retired, "Revive": k.Revive(ctx, "a"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the error of the context", name, err)
		}
	}
	if n != 0 {
		t.Errorf("Purge has deleted %d journals, want none", n)
	}
	expectLive(t, k, "b")
	expect(t, k, "a", entry(1, 1))
}

func testSize(t *testing.T, k Keeper, settle func(t *testing.T, k Keeper) Keeper) {
	_, first := artifactEntry(1, "one")
	_, again := artifactEntry(2, "one")
	_, other := artifactEntry(3, "other")
	for _, uid := range []string{"a", "b", "c"} {
		add(t, k, uid, nil, first, again)
		add(t, k, uid, journal.ErrSequence, again)
	}
	add(t, k, "c", nil, other)
	retire(t, k, entryTime, "a", "b")
	retire(t, k, entryTime.Add(time.Second), "a", "b")
	k = settle(t, k)
	checkSize(t, k, store.Size{Journals: 3, Retired: 2, Entries: 7, Artifacts: 4})
	if _, err := k.Purge(t.Context(), entryTime, 1); err != nil {
		t.Fatal(err)
	}
	checkSize(t, settle(t, k), store.Size{Journals: 2, Retired: 1, Entries: 5, Artifacts: 3})
}

// testUse tests Use with two namespaces, a journal without a namespace from an older version, and a journal that grows
// after it was retired.
func testUse(t *testing.T, k Keeper) {
	in := func(namespace string, entries ...journal.Entry) []journal.Entry {
		for i := range entries {
			entries[i].Namespace = namespace
		}
		return entries
	}
	_, large := artifactEntry(2, "content of an artifact")
	want := map[string]int64{}
	checkUse := func() {
		t.Helper()
		got, err := k.Use(t.Context())
		if diff := cmp.Diff(want, got.Namespaces); diff != "" || err != nil || got.Bytes < want["a"]+want["b"] {
			t.Errorf("Use: %d bytes in all (error %v): namespaces: -want +got:\n%s", got.Bytes, err, diff)
		}
	}
	checkUse()
	add(t, k, "a-1", nil, in("a", entry(1, 1), large)...)
	add(t, k, "a-2", nil, in("a", entry(1, 1))...)
	add(t, k, "b-1", nil, in("b", entry(1, 1))...)
	add(t, k, "old", nil, entry(1, 1))
	one, two := store.BytesOf([]journal.Entry{entry(1, 1)}), store.BytesOf([]journal.Entry{entry(1, 1), large})
	if one < 128 || two <= 2*one {
		t.Errorf("an entry counts as %d bytes, and together with an entry that has an artifact as %d; "+
			"want at least 128, and more than twice as many", one, two)
	}
	want["a"], want["b"] = one+two, one
	checkUse()
	add(t, k, "a-1", journal.ErrSequence, in("a", large)...) // a refused append does not count
	retire(t, k, entryTime, "a-1")
	checkUse() // a retired journal still counts
	add(t, k, "a-1", nil, in("a", entry(3, 1))...)
	add(t, k, "old", nil, in("b", entry(2, 1))...) // gives the journal a namespace
	want["a"], want["b"] = want["a"]+one, want["b"]+2*one
	checkUse()
	if _, err := k.Purge(t.Context(), entryTime, 10); err != nil {
		t.Fatal(err)
	}
	want["a"] = one
	checkUse()
}

// checkSize compares the size of a Keeper. It accepts any positive number of bytes.
func checkSize(t *testing.T, k Keeper, want store.Size) {
	t.Helper()
	got, err := k.Size(t.Context())
	if err != nil || got.Bytes <= 0 {
		t.Errorf("Size: %+v, %v; want more than 0 bytes", got, err)
	}
	want.Bytes = got.Bytes
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Size: -want +got:\n%s", diff)
	}
}

func retire(t *testing.T, k Keeper, when time.Time, uids ...string) {
	t.Helper()
	if err := k.Retire(t.Context(), when, uids...); err != nil {
		t.Fatalf("Retire(%v): %v", uids, err)
	}
}

func expectLive(t *testing.T, k Keeper, want ...string) {
	t.Helper()
	got, err := k.UIDs(t.Context(), "", 1000)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("UIDs (error %v): -want +got:\n%s", err, diff)
	}
}

// expectRetired compares a page of the UIDs of retired journals.
func expectRetired(t *testing.T, k Keeper, after string, limit int, want ...string) {
	t.Helper()
	got, err := k.RetiredUIDs(t.Context(), after, limit)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("RetiredUIDs (error %v): -want +got:\n%s", err, diff)
	}
}
