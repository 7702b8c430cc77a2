package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// turnsVariable is the environment variable with the number of Turns of TestBudgetEqualsUsage, for a larger run.
const turnsVariable = "CAPSTAN_TEST_BUDGET_TURNS"

// errKilled is the error of calls whose process was killed.
var errKilled = errors.New("killed")

// killableStore is a store whose process is killed at an append: before the append, or after it.
type killableStore struct {
	journal.Journal
	mu          sync.Mutex
	appendsLeft int  // until the kill
	after       bool // kill the process after the last append, not before it
	kill        context.CancelCauseFunc
}

// Append appends, unless the process is killed.
func (m *killableStore) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	m.mu.Lock()
	m.appendsLeft--
	killed, after := m.appendsLeft <= 0, m.appendsLeft == 0 && m.after
	m.mu.Unlock()
	if killed && !after {
		m.kill(errKilled)
		return errKilled
	}
	err := m.Journal.Append(ctx, uid, entries...)
	if killed {
		m.kill(errKilled)
		return errKilled
	}
	return err
}

// erraticModel is a model that needs one to three output tokens for each reply, fails from time to time, and sometimes
// reports a million output tokens.
type erraticModel struct{}

// Generate returns a reply or an error.
func (erraticModel) Generate(context.Context, *model.Request) (*model.Reply, error) {
	used := model.Usage{InputTokens: 5 + rand.Int64N(20), OutputTokens: 1 + rand.Int64N(3)}
	switch rand.IntN(10) {
	case 0:
		return nil, &model.Error{Kind: model.Overloaded, Message: "busy", Usage: used}
	case 1:
		used.OutputTokens = 1_000_000
	}
	return &model.Reply{Text: "Fine.", FinishReason: model.FinishStop, Usage: used}, nil
}

// budgeted returns the input of a Turn that asks a model for an answer of at most 100 tokens. A token costs a tenth of
// a USD.
func budgeted(uid string, epoch int64, provider model.Provider, rules func() ([]budget.Rule, error)) *turn.Input {
	price := decimal.NewFromInt(100_000)
	return &turn.Input{
		UID: uid, Epoch: epoch, Timeout: time.Minute, Limit: time.Minute,
		Preparation: func(context.Context) (prepare.Input, error) {
			return prepare.Input{
				Agent: prepare.Agent{Name: "helper"}, Now: noon, Turn: prepare.Turn{Name: uid, Message: "What is new?"},
				Profile: prepare.Profile{
					Name: "p", ID: "p", Version: "1.0.0", Identity: &turncontext.Identity{SystemPrompt: "Be brief."},
				},
			}, nil
		},
		Config: loop.Config{
			Limits: loop.Limits{MaxSteps: 6, MaxToolCalls: 5, MaxDescendants: 5}, Budgets: rules,
			Chain: []loop.Candidate{{
				ProviderName: "p", Model: "m", Provider: provider, MaxOutputTokens: 100,
				Retry:   loop.Retry{MaxAttempts: 20, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
				Pricing: &model.Pricing{Currency: "USD", Input: price, Output: price, CacheRead: price},
			}},
		},
	}
}

// TestBudgetEqualsUsage runs many Turns on two executors that share a database. In the first four epochs of a Turn, it
// kills the executor before or after a random append, and the other executor continues the Turn. In the end, the Budget
// equals the sum of the usage of all Turns, and nothing is reserved.
func TestBudgetEqualsUsage(t *testing.T) {
	turns := 60
	if n, err := strconv.Atoi(os.Getenv(turnsVariable)); err == nil {
		turns = n
	}
	databaseURL := postgrestest.Database(t)
	stores := []*postgres.Store{openAt(t, databaseURL), openAt(t, databaseURL)}
	rule := budget.Rule{
		UID: "all", Name: "all", Unit: budget.Month, Zone: time.UTC, Currency: "USD",
		Limits: budget.Limits{Tokens: new(int64(1 << 40)), Cost: new(decimal.NewFromInt(1 << 40))},
	}
	other := rule
	other.UID, other.Name, other.Currency = "other", "other", "EUR"
	other.Limits = budget.Limits{}
	rules := func() ([]budget.Rule, error) { return []budget.Rule{rule, other}, nil }
	var mu sync.Mutex
	var sum int64
	kills := 0
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range turns {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for epoch := int64(1); ; epoch++ {
				ctx, kill := context.WithCancelCause(t.Context())
				m := &killableStore{Journal: stores[(int64(i)+epoch)%2], appendsLeft: 1 << 30, kill: kill}
				if epoch <= 4 {
					m.appendsLeft, m.after = 1+rand.IntN(6), rand.IntN(2) == 0
				}
				engine := &turn.Engine{Journal: m, Now: func() time.Time { return noon }}
				result, err := engine.Run(ctx, budgeted(fmt.Sprintf("turn-%d", i), epoch, erraticModel{}, rules))
				kill(nil)
				mu.Lock()
				if err == nil {
					for _, s := range result.Spent {
						sum += s.Usage.InputTokens + s.Usage.OutputTokens
					}
				} else {
					kills++
				}
				mu.Unlock()
				if err == nil {
					return
				}
				if !errors.Is(err, errKilled) {
					t.Errorf("turn %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	accounts, err := stores[0].Accounts(t.Context(), noon)
	if err != nil || len(accounts) != 2 {
		t.Fatalf("Accounts: %+v, %v; want two", accounts, err)
	}
	for _, a := range accounts {
		cost := decimal.NewFromInt(sum).Div(decimal.NewFromInt(10))
		if a.Budget == "other" {
			cost = decimal.Zero
		}
		if a.Tokens != sum || !a.Cost.Equal(cost) || a.Turns != int64(turns) || a.ReservedTokens != 0 || !a.ReservedCost.IsZero() {
			t.Errorf("account: %+v; want %d Turns, %d tokens, cost %s and nothing reserved", a, turns, sum, cost)
		}
	}
	if kills < turns/3 {
		t.Errorf("%d runs were killed, want far more", kills)
	}
	t.Logf("%d Turns, %d killed runs, %d tokens", turns, kills, sum)
}

// noon is the time of these tests.
var noon = time.Date(2026, 6, 11, 12, 0, 0, 0, time.UTC)
