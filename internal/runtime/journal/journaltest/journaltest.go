// Package journaltest tests the contracts of a store: its journals, and its budgets, records, tasks, memories and
// position. Every store with a database runs these tests against a real one. The type Store is a store in memory, for
// other tests.
package journaltest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// entryTime is the time of all entries, in UTC, with a fraction of a second.
var entryTime = time.Date(2026, 6, 11, 15, 4, 5, 123456789, time.UTC)

func entry(seq, epoch int64) journal.Entry {
	return journal.Entry{
		Seq: seq, Epoch: epoch, Kind: journal.ModelReplied, Version: 3, Time: entryTime,
		Payload: json.RawMessage(fmt.Sprintf(`{"text":"reply %d \u2028 <&>","n":1e400}`, seq)),
	}
}

// entries returns n entries with consecutive sequence numbers. first is the sequence number of the first entry.
func entries(first, n int64) []journal.Entry {
	var all []journal.Entry
	for i := range n {
		all = append(all, entry(first+i, 1))
	}
	return all
}

// Run tests the contract of a journal. open returns a new, empty journal and closes it when the test ends. reopen
// closes a journal that open returned and opens it again, as a restarted process would.
func Run(t *testing.T, open func(t *testing.T) journal.Journal, reopen func(t *testing.T, j journal.Journal) journal.Journal) {
	t.Run("an unknown UID has no entries", func(t *testing.T) {
		expect(t, open(t), "unknown")
	})
	t.Run("entries are read in order and unchanged", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", nil, entry(1, 1), entry(2, 1))
		add(t, j, "b", nil, entry(1, 7))
		add(t, j, "a", nil, entry(3, 2))
		add(t, j, "a", nil)
		expect(t, j, "a", entry(1, 1), entry(2, 1), entry(3, 2))
		expect(t, j, "b", entry(1, 7))
	})
	t.Run("payloads are read byte for byte", func(t *testing.T) { testPayloads(t, open(t)) })
	t.Run("entries survive a restart", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", nil, entry(1, 1))
		j = reopen(t, j)
		expect(t, j, "a", entry(1, 1))
		add(t, j, "a", nil, entry(2, 2))
	})
	t.Run("an older epoch is fenced off and leaves no trace", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", nil, entry(1, 2))
		add(t, j, "a", journal.ErrFenced, entry(2, 1))
		add(t, j, "a", journal.ErrFenced, entry(2, 2), entry(3, 1))
		expect(t, j, "a", entry(1, 2))
	})
	t.Run("a gap or a repetition is refused and leaves no trace", func(t *testing.T) {
		j := open(t)
		add(t, j, "a", journal.ErrSequence, entry(2, 1))
		add(t, j, "a", nil, entry(1, 1))
		add(t, j, "a", journal.ErrSequence, entry(1, 1))
		add(t, j, "a", journal.ErrSequence, entry(2, 1), entry(4, 1))
		expect(t, j, "a", entry(1, 1))
	})
	t.Run("a read may begin and stop anywhere", func(t *testing.T) { testReadPositions(t, open(t)) })
	t.Run("a journal of many pages is read as one", func(t *testing.T) { testPages(t, open(t)) })
	t.Run("a read holds no lock or connection while its caller works", func(t *testing.T) { testNestedReads(t, open(t)) })
	t.Run("a call whose context has ended does nothing", func(t *testing.T) { testEndedContext(t, open(t)) })
	t.Run("artifacts are kept with their entries", func(t *testing.T) { testArtifacts(t, open(t), reopen) })
	t.Run("a refused append leaves no artifact", func(t *testing.T) { testRefusedAppends(t, open(t)) })
	t.Run("one of several concurrent writers wins, and other journals are not affected", func(t *testing.T) {
		testConcurrentWriters(t, open(t))
	})
}

func testPayloads(t *testing.T, j journal.Journal) {
	var want []journal.Entry
	for i, payload := range []string{
		`{"b":1,  "a":2, "a":3}`, `"\u0000 \ud800 \/"`, `1e400`, "\"\xff not UTF-8\"", "null", "",
		`"` + strings.Repeat("eight MiB ", 8<<20/10) + `"`, // an older version without artifacts wrote such payloads
	} {
		e := entry(int64(i+1), 1)
		e.Version, e.Payload = i, nil
		if payload != "" {
			e.Payload = json.RawMessage(payload)
		}
		want = append(want, e)
	}
	add(t, j, "a", nil, want...)
	expect(t, j, "a", want...)
	var all int64
	for _, e := range want {
		payloadBytes(t, j, "a", e.Seq, e.Seq, int64(len(e.Payload)))
		all += int64(len(e.Payload))
	}
	payloadBytes(t, j, "a", 1, 100, all)
	payloadBytes(t, j, "unknown", 1, 100, 0)

	empty := entry(1, 1)
	empty.Payload = json.RawMessage{}
	add(t, j, "b", nil, empty)
	empty.Payload = nil
	expect(t, j, "b", empty)
}

func testReadPositions(t *testing.T, j journal.Journal) {
	add(t, j, "a", nil, entries(1, 5)...)
	for after := range int64(7) {
		got, err := read(t.Context(), j, "a", after, 10)
		var want []journal.Entry
		if after < 5 {
			want = entries(after+1, 5-after)
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("Read after %d (error %v): -want +got:\n%s", after, err, diff)
		}
	}
	for n := 1; n <= 5; n++ {
		got, err := read(t.Context(), j, "a", 0, n)
		if diff := cmp.Diff(entries(1, int64(n)), got); diff != "" || err != nil {
			t.Errorf("Read that stops after %d (error %v): -want +got:\n%s", n, err, diff)
		}
	}
	for uid, want := range map[string]int64{"a": 5, "unknown": 0} {
		if got, err := j.Last(t.Context(), uid); err != nil || got != want {
			t.Errorf("Last(%s) = %d, %v; want %d", uid, got, err, want)
		}
	}
	again := j.Read(t.Context(), "a", 3)
	for range 2 { // a sequence may be read more than once
		var seqs []int64
		for e, err := range again {
			if err != nil {
				t.Fatal(err)
			}
			seqs = append(seqs, e.Seq)
		}
		if diff := cmp.Diff([]int64{4, 5}, seqs); diff != "" {
			t.Errorf("a sequence that is read again: -want +got:\n%s", diff)
		}
	}
}

// testPages reads journals that are larger than one page of a store, by the number of entries and by bytes.
func testPages(t *testing.T, j journal.Journal) {
	const many = 1100
	for from := int64(1); from <= many; from += 100 {
		add(t, j, "many", nil, entries(from, 100)...)
	}
	large := entries(1, 150)
	for i := range large {
		large[i].Payload = json.RawMessage(`"` + strings.Repeat(string(rune('a'+i%26)), journal.MaxPayload-2) + `"`)
	}
	for from := 0; from < len(large); from += 50 {
		add(t, j, "large", nil, large[from:from+50]...)
	}
	expect(t, j, "many", entries(1, many)...)
	expect(t, j, "large", large...)
	got, err := read(t.Context(), j, "many", 513, 300)
	if diff := cmp.Diff(entries(514, 300), got); diff != "" || err != nil {
		t.Errorf("Read of 300 entries after 513 (error %v): -want +got:\n%s", err, diff)
	}
}

// testNestedReads nests reads more deeply than any store has connections, and appends during the innermost read.
func testNestedReads(t *testing.T, j journal.Journal) {
	const depth = 40
	kept := journal.NewArtifact([]byte("kept"))
	first := entry(1, 1)
	first.Artifacts = []journal.Artifact{kept}
	add(t, j, "a", nil, first)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var down func(depth int)
	down = func(depth int) {
		if depth == 0 {
			if err := j.Append(ctx, "a", entry(2, 1)); err != nil {
				t.Fatalf("Append while entries are read: %v", err)
			}
			return
		}
		for _, err := range j.Read(ctx, "a", 0) {
			if err != nil {
				t.Fatalf("Read: %v, want no wait for the outer reads", err)
			}
			if _, err := j.Artifact(ctx, "a", kept.SHA256); err != nil {
				t.Fatalf("Artifact while an entry is read: %v", err)
			}
			down(depth - 1)
			break
		}
	}
	down(depth)
	expect(t, j, "a", entry(1, 1), entry(2, 1))
}

func testEndedContext(t *testing.T, j journal.Journal) {
	add(t, j, "a", nil, entry(1, 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	for e, err := range j.Read(ctx, "a", 0) {
		if n++; !errors.Is(err, context.Canceled) {
			t.Errorf("Read: %v, %v; want the error of the context", e, err)
		}
	}
	if n != 1 {
		t.Errorf("Read yielded %d times, want only the error", n)
	}
	if err := j.Append(ctx, "a", entry(2, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Append: %v, want the context's error", err)
	}
	if _, err := j.Last(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Last: %v, want the context's error", err)
	}
	if _, err := j.Artifact(ctx, "a", "b"); !errors.Is(err, context.Canceled) {
		t.Errorf("Artifact: %v, want the context's error", err)
	}
	if _, err := j.PayloadBytes(ctx, "a", 1, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("PayloadBytes: %v, want the context's error", err)
	}
	expect(t, j, "a", entry(1, 1))
}

func testConcurrentWriters(t *testing.T, j journal.Journal) {
	const writers, journals = 8, 20
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for range writers {
		wg.Go(func() {
			for i := range journals {
				uid := fmt.Sprintf("turn-%d", i)
				switch err := j.Append(t.Context(), uid, entry(1, 1)); {
				case err == nil:
					mu.Lock()
					won[uid]++
					mu.Unlock()
				case !errors.Is(err, journal.ErrSequence):
					t.Errorf("Append(%s): %v, want ErrSequence or nil", uid, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range journals {
		uid := fmt.Sprintf("turn-%d", i)
		if won[uid] != 1 {
			t.Errorf("%d writers wrote entry 1 of %s, want exactly 1", won[uid], uid)
		}
		expect(t, j, uid, entry(1, 1))
	}
}

// read returns at most limit entries after a sequence number. If limit is -1, read returns all of them.
func read(ctx context.Context, j journal.Journal, uid string, after int64, limit int) ([]journal.Entry, error) {
	var got []journal.Entry
	for e, err := range j.Read(ctx, uid, after) {
		if err != nil {
			return got, err
		}
		if got = append(got, e); len(got) == limit {
			break
		}
	}
	return got, nil
}

// comparePayloads compares payloads as a whole, because they may be long. A nil payload differs from an empty payload.
var comparePayloads = cmp.Comparer(func(a, b json.RawMessage) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) })

func add(t testing.TB, j journal.Journal, uid string, want error, entries ...journal.Entry) {
	t.Helper()
	if err := j.Append(t.Context(), uid, entries...); !errors.Is(err, want) {
		t.Fatalf("Append(%s): error %v, want %v", uid, err, want)
	}
}

func expect(t *testing.T, j journal.Journal, uid string, want ...journal.Entry) {
	t.Helper()
	got, err := read(t.Context(), j, uid, 0, -1)
	if err != nil {
		t.Fatalf("Read(%s): %v", uid, err)
	}
	if diff := cmp.Diff(want, got, comparePayloads); diff != "" {
		t.Errorf("Read(%s): -want +got:\n%s", uid, diff)
	}
}

func payloadBytes(t *testing.T, j journal.Journal, uid string, first, last, want int64) {
	t.Helper()
	if got, err := j.PayloadBytes(t.Context(), uid, first, last); err != nil || got != want {
		t.Errorf("PayloadBytes(%s, %d, %d) = %d, %v; want %d", uid, first, last, got, err, want)
	}
}
