package session_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func now() time.Time { return time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC) }

// journals are the stores that a test runs against.
var journals = map[string]func(t *testing.T) journal.Journal{
	"memory": func(*testing.T) journal.Journal { return &journaltest.Memory{} },
	"sqlite": func(t *testing.T) journal.Journal {
		t.Helper()
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "journal.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	},
}

// answered is a Turn with all that a message can hold.
func answered(uid string) session.Turn {
	return session.Turn{
		UID: uid, Name: "turn-" + uid, ContextTokens: 30, Usage: model.Usage{InputTokens: 20, OutputTokens: 10, ReasoningTokens: 5, CacheReadTokens: 3},
		Cost: &finalize.Cost{Amount: "0.1", Currency: "USD"},
		Messages: []model.Message{
			{Role: model.RoleUser, Content: "What of <" + uid + ">?"},
			{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{{ID: "c1", Name: "find", Arguments: `{"n": 1.0}`}, {ID: "c2", Name: "send", Arguments: "no JSON"}}},
			{Role: model.RoleTool, ToolCallID: "c1", Content: ""},
			{Role: model.RoleTool, ToolCallID: "c2", Content: "sent \u2028 ü"},
			{Role: model.RoleAssistant, Content: "Done."},
		},
	}
}

func add(t *testing.T, j journal.Journal, turns ...session.Turn) session.History {
	t.Helper()
	var h session.History
	for _, turn := range turns {
		var err error
		if h, err = session.Add(t.Context(), "s", turn, journal.Options{Journal: j, Now: now}); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestHistory(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			failed := session.Turn{UID: "c", Name: "turn-c", Usage: model.Usage{InputTokens: 7}, Cost: &finalize.Cost{Amount: "0.02", Currency: "USD"}}
			want := session.History{answered("a"), answered("b"), failed}
			if diff := cmp.Diff(want, add(t, j, want...)); diff != "" {
				t.Errorf("Add: -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(want, add(t, j, answered("b"), want[2])); diff != "" {
				t.Errorf("a Turn that is there already is not added again: -want +got:\n%s", diff)
			}
			got, err := session.Load(t.Context(), j, "s")
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("Load (error %v): -want +got:\n%s", err, diff)
			}
			if other, err := session.Load(t.Context(), j, "other"); err != nil || len(other) != 0 || other.Number("a") != 0 {
				t.Errorf("Load of another Session = %v, %v; want nothing", other, err)
			}
			for uid, number := range map[string]int64{"a": 1, "b": 2, "c": 3, "d": 0} {
				if got.Number(uid) != number {
					t.Errorf("Turn %q has number %d, want %d", uid, got.Number(uid), number)
				}
			}
			if diff := cmp.Diff(append(answered("a").Messages, answered("b").Messages...), got.Messages()); diff != "" {
				t.Errorf("messages, in order and as they were said: -want +got:\n%s", diff)
			}
			wantTotals := session.Totals{
				Turns: 3, Usage: model.Usage{InputTokens: 47, OutputTokens: 20, ReasoningTokens: 10, CacheReadTokens: 6},
				Cost: &finalize.Cost{Amount: "0.22", Currency: "USD"}, ContextTokens: 30,
				KnownCost: decimal.RequireFromString("0.22"),
			}
			if diff := cmp.Diff(wantTotals, got.Totals()); diff != "" {
				t.Errorf("totals; what begins the next Turn is what the last answered one ended with: -want +got:\n%s", diff)
			}
		})
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
		h      session.History
		want   *finalize.Cost
		known  string
	}{
		"empty":      {"nothing costs nothing", nil, nil, "0"},
		"one":        {"as it is", session.History{turn("0.1", "USD")}, &finalize.Cost{Amount: "0.1", Currency: "USD"}, "0.1"},
		"sum":        {"0.1 three times is 0.3", session.History{turn("0.1", "USD"), turn("0.1", "USD"), turn("0.1", "USD")}, &finalize.Cost{Amount: "0.3", Currency: "USD"}, "0.3"},
		"currencies": {"amounts of two currencies have no sum", session.History{turn("1", "USD"), turn("1", "EUR")}, nil, "2"},
		"unpriced":   {"a cost that is not whole is none", session.History{turn("1", "USD"), unpriced, turn("1", "USD")}, nil, "2"},
		"partly":     {"of a Turn of which some is known, that counts", session.History{turn("1", "USD"), partly}, nil, "1.5"},
		"idle":       {"a Turn that used nothing needs no price", session.History{idle, turn("1", "USD")}, &finalize.Cost{Amount: "1", Currency: "USD"}, "1"},
		"rubbish":    {"an amount that is none has no sum", session.History{turn("much", "USD"), turn("1", "USD")}, nil, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.h.Totals()
			if diff := cmp.Diff(tc.want, got.Cost); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if got.KnownCost.String() != tc.known {
				t.Errorf("%s: %s is known, want %s", tc.reason, got.KnownCost, tc.known)
			}
		})
	}
}

// TestTurnsAreAddedAtOnce is what zombies do: each Turn is there once, whoever adds it and however often.
func TestTurnsAreAddedAtOnce(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			const turns, each = 5, 4
			var wg sync.WaitGroup
			for i := range turns {
				for range each {
					wg.Go(func() {
						uid := fmt.Sprintf("u%d", i)
						h, err := session.Add(t.Context(), "s", answered(uid), journal.Options{Journal: j, Now: now})
						if err != nil || h.Number(uid) == 0 {
							t.Errorf("Add(%s) = %d Turns, %v; want it among them", uid, len(h), err)
						}
					})
				}
			}
			wg.Wait()
			h, err := session.Load(t.Context(), j, "s")
			if err != nil || len(h) != turns {
				t.Errorf("Load = %d Turns, %v; want %d", len(h), err, turns)
			}
		})
	}
}

var errBroken = errors.New("the disk is full")

// failing is a journal whose next appends fail, after they were done if written is set.
type failing struct {
	*journaltest.Memory
	left    int
	written bool
}

// Append fails while there are failures left.
func (f *failing) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if f.left == 0 {
		return f.Memory.Append(ctx, uid, entries...)
	}
	f.left--
	if f.written {
		if err := f.Memory.Append(ctx, uid, entries...); err != nil {
			return err
		}
	}
	return errBroken
}

func TestAStoreThatFails(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written %t", written), func(t *testing.T) {
			j := &failing{Memory: &journaltest.Memory{}, left: 1, written: written}
			h := add(t, j, answered("a"))
			if got, err := session.Load(t.Context(), j, "s"); err != nil || len(got) != 1 || len(h) != 1 {
				t.Errorf("Load = %d Turns, %v after Add returned %d; want it there once", len(got), err, len(h))
			}
		})
	}
	t.Run("for good", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		j := &failing{Memory: &journaltest.Memory{}, left: 1}
		if h, err := session.Add(ctx, "s", answered("a"), journal.Options{Journal: j, Now: now}); !errors.Is(err, context.Canceled) || h != nil {
			t.Errorf("Add = %v, %v; want it given up with the life of the run", h, err)
		}
	})
}

// purged is a journal that is being purged: its entries are gone, and where it ended is not.
type purged struct {
	journaltest.Memory
	tries int
}

// Append refuses all.
func (p *purged) Append(context.Context, string, ...journal.Entry) error {
	p.tries++
	return journal.ErrSequence
}

// TestAHistoryThatIsBeingPurged takes no Turn, and must not keep the store busy.
func TestAHistoryThatIsBeingPurged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, since := &purged{}, time.Now()
		h, err := session.Add(t.Context(), "s", answered("a"), journal.Options{Journal: j, Now: now})
		if took := time.Since(since); !errors.Is(err, journal.ErrSequence) || h != nil || j.tries != 10 || took < time.Second || took > 10*time.Second {
			t.Errorf("Add = %v, %v after %d tries in %s; want it given up after 10 in some seconds", h, err, j.tries, took)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			j := &purged{}
			if _, err := session.Add(ctx, "s", answered("a"), journal.Options{Journal: j, Now: now}); !errors.Is(err, context.DeadlineExceeded) || j.tries != 1 {
				t.Errorf("Add: %v after %d tries, want the end of the run", err, j.tries)
			}
		})
	})
}

func TestRubbishInAHistory(t *testing.T) {
	j := &journaltest.Memory{}
	err := j.Append(t.Context(), "s", journal.Entry{Seq: 1, Epoch: 1, Kind: journal.SessionTurn, Version: 1, Time: now(), Payload: []byte(`[]`)})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := session.Load(t.Context(), j, "s"); err == nil {
		t.Errorf("Load = %v, want an error that names the entry", h)
	}
}
