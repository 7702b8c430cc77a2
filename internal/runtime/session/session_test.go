package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/store/sqlite/sqlitetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func now() time.Time { return time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC) }

// journals are the stores that the tests run against.
var journals = map[string]func(t *testing.T) journal.Journal{
	"memory": func(*testing.T) journal.Journal { return &journaltest.Store{} },
	"sqlite": func(t *testing.T) journal.Journal {
		t.Helper()
		return sqlitetest.Open(t)
	},
}

// answered returns an answered Turn with messages of the user, the assistant and tools.
func answered(uid string) session.Turn {
	return session.Turn{
		UID: uid, Name: "turn-" + uid, ContextTokens: 30,
		Usage: model.Usage{InputTokens: 20, OutputTokens: 10, ReasoningTokens: 5, CacheReadTokens: 3},
		Cost:  &finalize.Cost{Amount: "0.1", Currency: "USD"},
		Messages: []model.Message{
			{Role: model.RoleUser, Content: "What of <" + uid + ">?"},
			{
				Role: model.RoleAssistant,
				ToolCalls: []model.ToolCall{
					{ID: "c1", Name: "find", Arguments: `{"n": 1.0}`},
					{ID: "c2", Name: "send", Arguments: "no JSON"},
				},
			},
			{Role: model.RoleTool, ToolCallID: "c1", Content: ""},
			{Role: model.RoleTool, ToolCallID: "c2", Content: "sent \u2028 ü"},
			{Role: model.RoleAssistant, Content: "Done."},
		},
	}
}

func add(t *testing.T, j journal.Journal, turns ...session.Turn) (at session.End) {
	t.Helper()
	for _, turn := range turns {
		var err error
		if at, err = session.Add(t.Context(), "s", turn, session.ExternalState{}, journal.Options{Journal: j, Now: now}); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

func recall(t *testing.T, j journal.Journal) *session.Conversation {
	t.Helper()
	c, err := session.Recall(t.Context(), j, "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// withoutCheckpoints returns Turns without the checkpoints that Add has set.
func withoutCheckpoints(turns []session.Turn) []session.Turn {
	turns = slices.Clone(turns)
	for i := range turns {
		turns[i].Checkpoint = nil
	}
	return turns
}

func TestHistory(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			failed := session.Turn{
				UID: "c", Name: "turn-c", Usage: model.Usage{InputTokens: 7},
				Cost: &finalize.Cost{Amount: "0.02", Currency: "USD"},
			}
			want := []session.Turn{answered("a"), answered("b"), failed}
			totals := session.Totals{
				Turns: 3, Usage: model.Usage{InputTokens: 47, OutputTokens: 20, ReasoningTokens: 10, CacheReadTokens: 6},
				Cost: &finalize.Cost{Amount: "0.22", Currency: "USD"}, ContextTokens: 30,
				KnownCost: decimal.RequireFromString("0.22"),
			}
			tail := session.End{Position: 3, Last: "turn-c", Totals: totals, Number: 3, Added: now()}
			if diff := cmp.Diff(tail, add(t, j, want...)); diff != "" {
				t.Errorf("the end after Add must have the context tokens of the last answered Turn: -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(session.End{Position: 3, Last: "turn-c", Totals: totals, Number: 2, Added: now()},
				add(t, j, answered("b"))); diff != "" {
				t.Errorf("Add of a Turn that the history already has: -want +got:\n%s", diff)
			}
			got := recall(t, j)
			if diff := cmp.Diff(want, withoutCheckpoints(got.Turns)); diff != "" || got.First != 1 || got.Through != 3 ||
				len(got.SHA256) != 64 {
				t.Errorf("Recall has entries %d to %d: -want +got:\n%s", got.First, got.Through, diff)
			}
			if diff := cmp.Diff(totals, got.Totals); diff != "" {
				t.Errorf("totals: -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(append(answered("a").Messages, answered("b").Messages...), got.Messages()); diff != "" {
				t.Errorf("messages: -want +got:\n%s", diff)
			}
			latest, err := session.Latest(t.Context(), j, "s", nil)
			if diff := cmp.Diff(session.End{Position: 3, Last: "turn-c", Totals: totals}, latest); diff != "" || err != nil {
				t.Errorf("Latest (error %v): -want +got:\n%s", err, diff)
			}
			other, err := session.Recall(t.Context(), j, "other", nil)
			if diff := cmp.Diff(&session.Conversation{First: 1}, other); diff != "" || err != nil {
				t.Errorf("Recall of another Session (error %v): -want +got:\n%s", err, diff)
			}
			if latest, err := session.Latest(t.Context(), j, "other", nil); err != nil || latest.Position != 0 {
				t.Errorf("Latest of another Session = %+v, %v; want no entry", latest, err)
			}
		})
	}
}

// TestAPartOfAHistory reads the part to which a Turn refers. This part must stay the same while the conversation grows.
// If an entry is missing, the whole part counts as lost.
func TestAPartOfAHistory(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			add(t, j, answered("a"), answered("b"))
			before := recall(t, j)
			add(t, j, answered("c"))
			again, err := session.Read(t.Context(), j, "s", before.First, before.Through, nil)
			if diff := cmp.Diff(before, again); diff != "" || err != nil {
				t.Errorf("Read (error %v): -before +again:\n%s", err, diff)
			}
			if c, err := session.Read(t.Context(), j, "s", 2, 4, nil); !errors.Is(err, session.ErrLost) {
				t.Errorf("Read = %+v, %v; want ErrLost: entry 4 is missing", c, err)
			}
			if c, err := session.Read(t.Context(), j, "other", 1, 1, nil); !errors.Is(err, session.ErrLost) {
				t.Errorf("Read = %+v, %v; want ErrLost: there is no such journal", c, err)
			}
			if c, err := session.Read(t.Context(), j, "other", 1, 0, nil); err != nil || len(c.Turns) != 0 {
				t.Errorf("Read = %+v, %v; want an empty conversation", c, err)
			}
		})
	}
}

// TestAHistoryOfAnOlderVersion checks entries without a checkpoint.
func TestAHistoryOfAnOlderVersion(t *testing.T) {
	j := &journaltest.Store{}
	for i, uid := range []string{"a", "b"} {
		payload, err := json.Marshal(answered(uid))
		if err != nil {
			t.Fatal(err)
		}
		e := journal.Entry{Seq: int64(i + 1), Epoch: 1, Kind: journal.SessionTurn, Version: 1, Time: now(), Payload: payload}
		if err := j.Append(t.Context(), "s", e); err != nil {
			t.Fatal(err)
		}
	}
	if c := recall(t, j); c.Totals.Turns != 2 || len(c.Turns) != 2 || c.Totals.Cost.Amount != "0.2" {
		t.Errorf("Recall = %+v, want both Turns", c)
	}
	if latest, err := session.Latest(t.Context(), j, "s", nil); err != nil || latest.Totals.Turns != 2 || latest.Position != 2 {
		t.Errorf("Latest = %+v, %v; want both Turns", latest, err)
	}
	for _, after := range []int64{0, 2} {
		at, err := session.Add(t.Context(), "s", answered("c"), session.ExternalState{After: after}, journal.Options{Journal: j, Now: now})
		if err != nil || at.Number != 3 || at.Totals.Usage.InputTokens != 60 {
			t.Errorf("Add after entry %d = %+v, %v; want number 3 with the totals of all Turns", after, at, err)
		}
	}
}

// counting is a journal that counts the entries that are read.
type counting struct {
	journal.Journal
	entries int
}

// Read counts the entries.
func (c *counting) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for e, err := range c.Journal.Read(ctx, uid, after) {
			if c.entries++; !yield(e, err) {
				return
			}
		}
	}
}

// TestAddReadsOneEntry checks that the number of entries that Add reads does not grow with the conversation.
func TestAddReadsOneEntry(t *testing.T) {
	j := &counting{Journal: &journaltest.Store{}}
	for i := range int64(50) {
		j.entries = 0
		at, err := session.Add(t.Context(), "s", answered(fmt.Sprint(i)), session.ExternalState{After: i},
			journal.Options{Journal: j, Now: now})
		if err != nil || at.Number != i+1 || j.entries > 1 {
			t.Fatalf("Add = %+v, %v after %d entries; want number %d and at most one entry", at, err, j.entries, i+1)
		}
	}
	j.entries = 0
	if latest, err := session.Latest(t.Context(), j, "s", nil); err != nil || latest.Totals.Turns != 50 || j.entries != 1 {
		t.Errorf("Latest = %+v, %v after %d entries; want 50 Turns and one entry", latest, err, j.entries)
	}
}

func TestTotalCost(t *testing.T) {
	turn := func(amount, currency string) session.Turn {
		return session.Turn{Usage: model.Usage{InputTokens: 1}, Cost: &finalize.Cost{Amount: amount, Currency: currency}}
	}
	unpriced, idle := session.Turn{Usage: model.Usage{InputTokens: 1}}, session.Turn{}
	partly := unpriced
	partly.KnownCost = decimal.RequireFromString("0.5")
	for name, tc := range map[string]struct {
		reason string
		h      []session.Turn
		want   *finalize.Cost
		known  string
	}{
		"empty": {"a Session without Turns has no cost", nil, nil, "0"},
		"one": {
			"the cost of one Turn is the total",
			[]session.Turn{turn("0.1", "USD")},
			&finalize.Cost{Amount: "0.1", Currency: "USD"}, "0.1",
		},
		"sum": {
			"three times 0.1 is exactly 0.3",
			[]session.Turn{turn("0.1", "USD"), turn("0.1", "USD"), turn("0.1", "USD")},
			&finalize.Cost{Amount: "0.3", Currency: "USD"}, "0.3",
		},
		"currencies": {"costs in two currencies have no sum", []session.Turn{turn("1", "USD"), turn("1", "EUR")}, nil, "2"},
		"unpriced": {
			"the total is unknown if one cost is unknown",
			[]session.Turn{turn("1", "USD"), unpriced, turn("1", "USD")},
			nil, "2",
		},
		"partly priced": {"the known part of a cost counts", []session.Turn{turn("1", "USD"), partly}, nil, "1.5"},
		"no usage": {
			"a Turn without usage needs no price",
			[]session.Turn{idle, turn("1", "USD")},
			&finalize.Cost{Amount: "1", Currency: "USD"}, "1",
		},
		"invalid amount": {"an invalid amount has no sum", []session.Turn{turn("much", "USD"), turn("1", "USD")}, nil, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			for i, turn := range tc.h {
				turn.UID = fmt.Sprint(i)
				add(t, j, turn)
			}
			got := recall(t, j).Totals
			if diff := cmp.Diff(tc.want, got.Cost); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if got.KnownCost.String() != tc.known {
				t.Errorf("%s: the known cost is %s, want %s", tc.reason, got.KnownCost, tc.known)
			}
		})
	}
}

// TestConcurrentAdd adds each Turn in several goroutines, as zombie processes do. Each Turn must be added only once.
func TestConcurrentAdd(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			const turns, each = 5, 4
			var wg sync.WaitGroup
			for i := range turns {
				for range each {
					wg.Go(func() {
						uid := fmt.Sprintf("u%d", i)
						at, err := session.Add(t.Context(), "s", answered(uid), session.ExternalState{},
							journal.Options{Journal: j, Now: now})
						if err != nil || at.Number == 0 {
							t.Errorf("Add(%s) = %+v, %v; want a number", uid, at, err)
						}
					})
				}
			}
			wg.Wait()
			if c := recall(t, j); len(c.Turns) != turns || c.Totals.Turns != turns || c.Totals.Usage.InputTokens != 20*turns {
				t.Errorf("Recall = %d Turns with %+v, want %d", len(c.Turns), c.Totals, turns)
			}
		})
	}
}

var errBroken = errors.New("the disk is full")

// failing is a journal whose next appends fail; left is their number. If written is true, a failing append writes its
// entries nevertheless.
type failing struct {
	*journaltest.Store
	left    int
	written bool
}

// Append fails while there are failures left.
func (f *failing) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if f.left == 0 {
		return f.Store.Append(ctx, uid, entries...)
	}
	f.left--
	if f.written {
		if err := f.Store.Append(ctx, uid, entries...); err != nil {
			return err
		}
	}
	return errBroken
}

func TestAStoreThatFails(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written %t", written), func(t *testing.T) {
			j := &failing{Store: &journaltest.Store{}, left: 1, written: written}
			at := add(t, j, answered("a"))
			if c := recall(t, j); len(c.Turns) != 1 || at.Number != 1 {
				t.Errorf("Recall = %d Turns after Add returned %+v; want the Turn once", len(c.Turns), at)
			}
		})
	}
	t.Run("until the run ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		j := &failing{Store: &journaltest.Store{}, left: 1}
		if h, err := session.Add(ctx, "s", answered("a"), session.ExternalState{},
			journal.Options{Journal: j, Now: now}); !errors.Is(err, context.Canceled) || h != (session.End{}) {
			t.Errorf("Add = %v, %v; want the error of the context", h, err)
		}
	})
}

// purged is a journal that is being purged: its entries are gone, but its end is still known.
type purged struct {
	journaltest.Store
	tries int
}

// Append returns ErrSequence for every append.
func (p *purged) Append(context.Context, string, ...journal.Entry) error {
	p.tries++
	return journal.ErrSequence
}

// TestAHistoryThatIsBeingPurged checks that Add stops after a few tries, without adding the Turn.
func TestAHistoryThatIsBeingPurged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, since := &purged{}, time.Now()
		h, err := session.Add(t.Context(), "s", answered("a"), session.ExternalState{}, journal.Options{Journal: j, Now: now})
		if took := time.Since(since); !errors.Is(err, journal.ErrSequence) || h != (session.End{}) || j.tries != 10 ||
			took < time.Second || took > 10*time.Second {
			t.Errorf("Add = %+v, %v after %d tries in %s; want ErrSequence after 10 tries and 1 s to 10 s", h, err, j.tries, took)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			j := &purged{}
			if _, err := session.Add(ctx, "s", answered("a"), session.ExternalState{},
				journal.Options{Journal: j, Now: now}); !errors.Is(err, context.DeadlineExceeded) || j.tries != 1 {
				t.Errorf("Add: %v after %d tries, want the error of the context after 1", err, j.tries)
			}
		})
	})
}

func TestInvalidHistory(t *testing.T) {
	j := &journaltest.Store{}
	err := j.Append(t.Context(), "s", journal.Entry{
		Seq: 1, Epoch: 1, Kind: journal.SessionTurn, Version: 1, Time: now(),
		Payload: []byte(`[]`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := session.Recall(t.Context(), j, "s", nil); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("Recall = %v, %v; want ErrDamaged", c, err)
	}
}

// TestAdmission checks that Read calls admit with the size of the history before it reads an entry, and that Outline
// calls admit for one entry at a time.
func TestAdmission(t *testing.T) {
	j, full := &counting{Journal: &journaltest.Store{}}, errors.New("there is not enough memory")
	sizes := []int{100, 100_000, 200_000} // the last two are artifacts
	for i, size := range sizes {
		turn := answered(fmt.Sprint(i))
		turn.Messages[0].Content = strings.Repeat("m", size)
		if _, err := session.Add(t.Context(), "s", turn, session.ExternalState{}, journal.Options{Journal: j, Now: now}); err != nil {
			t.Fatal(err)
		}
	}
	var asked []int64
	admit := func(bytes int64) error {
		if asked = append(asked, bytes); bytes > 300_000 {
			return full
		}
		return nil
	}
	j.entries = 0
	if _, err := session.Read(t.Context(), j, "s", 1, 3, admit); !errors.Is(err, full) || j.entries != 0 || len(asked) != 1 {
		t.Errorf("Read: %v after %d entries and admissions of %v bytes; want %v after one admission", err, j.entries, asked, full)
	}
	asked = nil
	whole, err := session.Read(t.Context(), j, "s", 1, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	outline, err := session.Outline(t.Context(), j, "s", 1, 3, admit)
	if err != nil || outline.SHA256 != whole.SHA256 || outline.Turns != nil || len(asked) != len(sizes) ||
		asked[2] < 200_000 || asked[2] > 201_000 {
		t.Errorf("Outline = %+v, %v after admissions of %v bytes; want the digest, no Turns, and one admission for each entry",
			outline, err, asked)
	}
	for n := range 8 {
		if whole.Kept(n) != outline.Kept(n) {
			t.Errorf("Kept(%d) = %d of the outline, want %d", n, outline.Kept(n), whole.Kept(n))
		}
	}
}
