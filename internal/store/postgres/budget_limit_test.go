package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// ledgerStore is a store of journals with a ledger of budgets.
type ledgerStore interface {
	journal.Journal
	budget.Ledger
}

// flakyModel is a model that takes a second for each request, uses fewer tokens than the requests reserve, and fails
// from time to time. Some of the failed requests were not sent.
type flakyModel struct{}

// Generate returns a reply or an error.
func (flakyModel) Generate(ctx context.Context, _ *model.Request) (*model.Reply, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, &model.Error{Kind: model.Cancelled, Message: "cancelled", MayBeBilled: true}
	}
	used := model.Usage{InputTokens: 50 + rand.Int64N(50), OutputTokens: 1 + rand.Int64N(100)}
	switch rand.IntN(8) {
	case 0:
		return nil, &model.Error{Kind: model.Overloaded, Message: "busy", Usage: used}
	case 1:
		return nil, &model.Error{Kind: model.Overloaded, Message: "the circuit breaker is open", Unsent: true}
	}
	return &model.Reply{Text: "Fine.", FinishReason: model.FinishStop, Usage: used}, nil
}

// tightBudget is a Budget that lets Turns wait. Its limits are raised whenever all unfinished Turns wait for it.
type tightBudget struct {
	mu                  sync.Mutex
	tokens, turns       int64
	generation          int64
	unfinished, waiting int // the number of Turns that have not ended, and how many of them wait
	moreTokens          int64
	moreTurns           int64
	raised              chan struct{}
	parked, kills       int
	// check is called before the Budget is raised.
	check func(budget.Limits)
}

// rules returns the Budget with its current limits.
func (a *tightBudget) rules() ([]budget.Rule, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return []budget.Rule{{
		UID: "tight", Name: "tight", Generation: a.generation, Unit: budget.Month, Zone: time.UTC, Currency: "USD", Queue: true,
		Limits: budget.Limits{Tokens: new(a.tokens), Turns: new(a.turns)},
	}}, nil
}

// await waits until the limits of the Budget are raised.
func (a *tightBudget) await() {
	a.mu.Lock()
	a.parked++
	a.waiting++
	raised := a.raised
	a.raiseIfAllWait()
	a.mu.Unlock()
	<-raised
}

// end counts a Turn as ended.
func (a *tightBudget) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unfinished--
	a.raiseIfAllWait()
}

func (a *tightBudget) raiseIfAllWait() {
	if a.unfinished == 0 || a.waiting < a.unfinished {
		return
	}
	a.check(budget.Limits{Tokens: &a.tokens, Turns: &a.turns})
	a.tokens, a.turns, a.generation, a.waiting = a.tokens+a.moreTokens, a.turns+a.moreTurns, a.generation+1, 0
	close(a.raised)
	a.raised = make(chan struct{})
}

// TestKilledTurnsUnderTightBudget runs Turns whose runs are cut off at random appends. The Budget allows only few
// requests at a time, and few Turns before its limits are raised. All Turns end within their time: the next run of a
// Turn closes the reservation of the request that was cut off, and a Turn whose request was not sent does not count. In
// the end, the Budget equals the usage.
func TestKilledTurnsUnderTightBudget(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) func(t *testing.T) []ledgerStore{
		"sqlite": func(t *testing.T) func(*testing.T) []ledgerStore {
			path := filepath.Join(t.TempDir(), "journal.db")
			return func(t *testing.T) []ledgerStore {
				s, err := sqlite.Open(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				return []ledgerStore{s, s}
			}
		},
		"postgres": func(t *testing.T) func(*testing.T) []ledgerStore {
			databaseURL := postgrestest.Database(t)
			return func(t *testing.T) []ledgerStore { return []ledgerStore{openAt(t, databaseURL), openAt(t, databaseURL)} }
		},
	} {
		t.Run(name, func(t *testing.T) {
			stores := open(t)
			synctest.Test(t, func(t *testing.T) { runTightBudget(t, stores(t)) })
		})
	}
}

// runTightBudget runs the Turns of TestKilledTurnsUnderTightBudget, alternately through the two given handles of one
// store.
func runTightBudget(t *testing.T, stores []ledgerStore) {
	const turns = 16
	const reserved = 500 // each request reserves at least this many tokens
	a := &tightBudget{
		tokens: 4 * reserved, moreTokens: 2 * reserved, turns: turns / 2, moreTurns: turns / 2, unfinished: turns,
		raised: make(chan struct{}),
	}
	account := func() budget.Account {
		all, err := stores[0].Accounts(t.Context(), noon)
		if err != nil || len(all) != 1 {
			t.Errorf("Accounts: %+v, %v; want one", all, err)
			return budget.Account{}
		}
		return all[0]
	}
	a.check = func(l budget.Limits) {
		if is := account(); is.ReservedTokens != 0 || is.Tokens > *l.Tokens || is.Turns > *l.Turns {
			t.Errorf("while all Turns wait: %+v; want nothing reserved, and at most %d tokens and %d Turns", is, *l.Tokens, *l.Turns)
		}
	}
	var mu sync.Mutex
	var sum int64
	var wg sync.WaitGroup
	for i := range turns {
		wg.Go(func() {
			defer a.end()
			timeLeft := 10 * time.Minute
			for epoch := int64(1); ; epoch++ {
				begun := time.Now()
				result, err := runKillable(t, stores[(int64(i)+epoch)%2], a, fmt.Sprintf("turn-%02d", i), epoch, timeLeft)
				timeLeft -= time.Since(begun)
				waits, parked := errors.AsType[*loop.Parked](err)
				switch {
				case err == nil && result.Stop != turn.StopCompleted:
					t.Errorf("turn %d ended as %s: %s", i, result.Stop, result.Message)
					return
				case err == nil:
					mu.Lock()
					defer mu.Unlock()
					for _, s := range result.Spent {
						sum += s.Usage.InputTokens + s.Usage.OutputTokens
					}
					return
				case parked && waits.Budget != nil && waits.Budget.Contended:
					const pause = 30 * time.Second
					time.Sleep(pause)
					timeLeft -= pause
				case parked && waits.Budget != nil:
					a.await()
				case !errors.Is(err, errKilled):
					t.Errorf("turn %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if is := account(); is.Tokens != sum || is.Turns != turns || is.ReservedTokens != 0 || !is.ReservedCost.IsZero() {
		t.Errorf("account: %+v; want %d Turns, %d tokens and nothing reserved", is, turns, sum)
	}
	if a.kills < turns || a.generation == 0 {
		t.Errorf("%d runs were cut off and the Budget was raised %d times, want more", a.kills, a.generation)
	}
	t.Logf("%d runs were cut off, %d were parked, %d times raised, %d tokens", a.kills, a.parked, a.generation, sum)
}

// runKillable runs one epoch of a Turn. In the first eight epochs, the run is cut off at a random append, unless it
// ends earlier.
func runKillable(t *testing.T, j journal.Journal, a *tightBudget, uid string, epoch int64, timeLeft time.Duration) (*turn.Result, error) {
	ctx, kill := context.WithCancelCause(t.Context())
	defer kill(nil)
	m := &killableStore{Journal: j, appendsLeft: 1 << 30, kill: kill}
	if epoch <= 8 {
		m.appendsLeft, m.after = 1+rand.IntN(3), rand.IntN(4) > 0
	}
	engine := &turn.Engine{Journal: m, Now: func() time.Time { return noon }}
	in := budgeted(uid, epoch, flakyModel{}, a.rules)
	in.Timeout = timeLeft
	result, err := engine.Run(ctx, in)
	if errors.Is(err, errKilled) {
		a.mu.Lock()
		a.kills++
		a.mu.Unlock()
	}
	return result, err
}
