package journaltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// LedgerStore is a store of journals with a ledger of budgets.
type LedgerStore interface {
	journal.Journal
	budget.Ledger
	Retire(ctx context.Context, at time.Time, uids ...string) error
}

// noon is a time within all periods of these tests.
var noon = time.Date(2026, 6, 11, 12, 0, 0, 0, time.UTC)

// day returns the key of a budget's account for the day of noon.
func day(uid string) budget.Key {
	return budget.Key{Budget: uid, Start: noon.Unix() - 12*3600, End: noon.Unix() + 12*3600}
}

// dollars returns an amount of tokens with a cost in USD.
func dollars(tokens int64, cost string) budget.Amount {
	return budget.Amount{Tokens: tokens, Cost: decimal.RequireFromString(cost), Currency: "USD"}
}

// reservation returns a reservation in a budget. If the outcome of the request stays unknown, a tenth of the
// reservation is charged.
func reservation(uid string, tokens int64, cost string, l budget.Limits) budget.Reservation {
	amount := decimal.RequireFromString(cost)
	return budget.Reservation{
		Hold: budget.Hold{
			Key: day(uid), Currency: "USD", Tokens: tokens, Cost: amount,
			Unknown: budget.Amount{Tokens: tokens / 10, Cost: amount.Div(decimal.NewFromInt(10)), Currency: "USD"},
		},
		Limits: l, CountTurn: true,
	}
}

// changing returns an entry with a change of the ledger.
func changing(seq int64, c budget.Change) journal.Entry {
	e := entry(seq, 1)
	e.Ledger = &c
	return e
}

// RunLedger tests the contract of a ledger. open returns a new, empty store and closes it when the test ends.
func RunLedger(t *testing.T, open func(t *testing.T) LedgerStore) {
	for name, test := range map[string]func(*testing.T, LedgerStore){
		"a reservation is replaced by the usage of the request": testOutcome,
		"a refusal changes nothing":                             testRefusal,
		"an append that is repeated changes the ledger once":    testRepetition,
		"a run of an older epoch changes no budget":             testFencing,
		"a request whose end is unknown is charged once":        testUnknownOutcome,
		"a retired journal leaves nothing reserved":             testRetiredJournals,
		"a request that was not sent does not count its Turn":   testUncount,
		"requests at the same moment do not exceed a limit":     testConcurrentRequests,
		"deleted budgets and old periods leave nothing":         testDeletion,
		"a raise lowers nothing and keeps reservations":         testRaise,
		"raises and requests at the same moment both count":     testConcurrentRaises,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// expectAccounts checks the accounts at noon.
func expectAccounts(t *testing.T, s LedgerStore, want ...budget.Account) {
	t.Helper()
	got, err := s.Accounts(t.Context(), noon)
	if err != nil {
		t.Fatalf("Accounts: %v", err)
	}
	slices.SortFunc(got, func(a, b budget.Account) int { return cmp.Compare(a.Budget, b.Budget) })
	if d := gocmp.Diff(want, got, gocmp.Comparer(decimal.Decimal.Equal)); d != "" {
		t.Fatalf("Accounts: -want +got:\n%s", d)
	}
}

// spent returns an account in which nothing is reserved.
func spent(uid string, turns, tokens int64, cost string) budget.Account {
	return budget.Account{Key: day(uid), Turns: turns, Tokens: tokens, Cost: decimal.RequireFromString(cost)}
}

func testOutcome(t *testing.T, s LedgerStore) {
	add(t, s, "a", nil, changing(1, budget.Change{
		Reserve: []budget.Reservation{reservation("x", 100, "0.5", budget.Limits{}), reservation("y", 100, "0.5", budget.Limits{})},
	}))
	open := budget.Account{Key: day("x"), Turns: 1, ReservedTokens: 100, ReservedCost: decimal.RequireFromString("0.5")}
	other := open
	other.Key = day("y")
	expectAccounts(t, s, open, other)
	used := dollars(31, "0.000000000000001")
	add(t, s, "a", nil, changing(2, budget.Change{Outcome: &used}))
	add(t, s, "a", nil, changing(3, budget.Change{Outcome: &used})) // no reservation is open
	expectAccounts(t, s, spent("x", 1, 31, "0.000000000000001"), spent("y", 1, 31, "0.000000000000001"))

	add(t, s, "b", nil, changing(1, budget.Change{Reserve: []budget.Reservation{reservation("x", 9, "1", budget.Limits{})}}))
	foreign := budget.Amount{Tokens: 7, Cost: decimal.NewFromInt(1), Currency: "EUR"}
	add(t, s, "b", nil, changing(2, budget.Change{Outcome: &foreign}))
	unpriced := spent("x", 2, 38, "0.000000000000001")
	unpriced.Unpriced = 1
	expectAccounts(t, s, unpriced, spent("y", 1, 31, "0.000000000000001"))
	for _, at := range []time.Time{noon.Add(-13 * time.Hour), noon.Add(12 * time.Hour)} {
		if got, err := s.Accounts(t.Context(), at); err != nil || len(got) > 0 {
			t.Errorf("Accounts(%s): %v, %v; want none outside of the period", at, got, err)
		}
	}
}

func testUncount(t *testing.T, s LedgerStore) {
	reserve := changing(1, budget.Change{Reserve: []budget.Reservation{reservation("x", 100, "0.5", budget.Limits{Turns: new(int64(1))})}})
	unsent := changing(2, budget.Change{Outcome: &budget.Amount{}, Uncount: true})
	add(t, s, "a", nil, reserve)
	add(t, s, "a", nil, unsent)
	add(t, s, "a", journal.ErrSequence, unsent)
	expectAccounts(t, s, spent("x", 0, 0, "0"))
	add(t, s, "b", nil, reserve)                                                              // the limit allows one Turn
	add(t, s, "a", nil, changing(3, budget.Change{Outcome: &budget.Amount{}, Uncount: true})) // no reservation is open
	open := budget.Account{Key: day("x"), Turns: 1, ReservedTokens: 100, ReservedCost: decimal.RequireFromString("0.5")}
	expectAccounts(t, s, open)
}

func testRefusal(t *testing.T, s LedgerStore) {
	limits := map[budget.Reason]budget.Limits{
		budget.OverTokens: {Tokens: new(int64(150))}, budget.OverCost: {Cost: new(decimal.RequireFromString("0.7"))},
		budget.OverTurns: {Turns: new(int64(1))},
	}
	for reason, l := range limits {
		uid := string(reason)
		add(t, s, uid+"1", nil, changing(1, budget.Change{Reserve: []budget.Reservation{reservation(uid, 100, "0.5", l)}}))
		second := changing(1, budget.Change{Reserve: []budget.Reservation{
			reservation("free", 1, "0", budget.Limits{}), reservation(uid, 100, "0.5", l),
		}})
		err := s.Append(t.Context(), uid+"2", second)
		refusal, ok := errors.AsType[*budget.Refusal](err)
		if !ok || len(refusal.Refused) != 1 || refusal.Refused[0].Reason != reason || refusal.Refused[0].Account.Budget != uid {
			t.Fatalf("Append over the limit of %s: %v; want a refusal by this budget alone", reason, err)
		}
		if got, want := refusal.Refused[0].Contended, reason != budget.OverTurns; got != want {
			t.Errorf("%s: contended is %t, want %t: it must be true if only another reservation prevents the request", reason, got, want)
		}
		expect(t, s, uid+"2")
	}
	got, err := s.Accounts(t.Context(), noon)
	if err != nil || len(got) != len(limits) {
		t.Errorf("Accounts: %v, %v; want no account of the budget that allowed the request", got, err)
	}
	unpriced := reservation("cost", 1, "0", limits[budget.OverCost])
	unpriced.Unpriced = true
	err = s.Append(t.Context(), "unpriced", changing(1, budget.Change{Reserve: []budget.Reservation{unpriced}}))
	if refusal, ok := errors.AsType[*budget.Refusal](err); !ok || refusal.Refused[0].Reason != budget.NoPrice {
		t.Errorf("Append of a request without a price: %v; want a refusal, because a cost limit cannot count it", err)
	}
	free := reservation("paused", 1, "0", budget.Limits{Cost: new(decimal.Zero)})
	paused := changing(1, budget.Change{Reserve: []budget.Reservation{free}})
	err = s.Append(t.Context(), "paused", paused)
	refusal, ok := errors.AsType[*budget.Refusal](err)
	if !ok || refusal.Refused[0].Reason != budget.OverCost || refusal.Refused[0].Contended {
		t.Errorf("Append of a request that costs nothing: %v; want a refusal by the cost limit of 0, without contention", err)
	}
}

func testRepetition(t *testing.T, s LedgerStore) {
	request := changing(1, budget.Change{Reserve: []budget.Reservation{reservation("x", 100, "0", budget.Limits{Tokens: new(int64(100))})}})
	used := dollars(40, "0")
	reply := changing(2, budget.Change{Outcome: &used})
	for _, e := range []journal.Entry{request, reply} {
		add(t, s, "a", nil, e)
		add(t, s, "a", journal.ErrSequence, e) // not a refusal, although the limit would now refuse it
	}
	expectAccounts(t, s, spent("x", 1, 40, "0"))
}

func testFencing(t *testing.T, s LedgerStore) {
	newer := changing(1, budget.Change{Reserve: []budget.Reservation{reservation("x", 100, "0", budget.Limits{})}})
	newer.Epoch = 2
	add(t, s, "a", nil, newer)
	used := dollars(40, "0")
	add(t, s, "a", journal.ErrFenced, changing(2, budget.Change{Outcome: &used}))
	got, err := s.Accounts(t.Context(), noon)
	if err != nil || len(got) != 1 || got[0].Tokens != 0 || got[0].ReservedTokens != 100 {
		t.Errorf("Accounts: %+v, %v; want only the reservation of the newer run", got, err)
	}
}

func testUnknownOutcome(t *testing.T, s LedgerStore) {
	again := reservation("x", 50, "0.5", budget.Limits{Tokens: new(int64(60))})
	again.CountTurn = false
	add(t, s, "a", nil, changing(1, budget.Change{Reserve: []budget.Reservation{reservation("x", 100, "1", budget.Limits{})}}))
	add(t, s, "a", nil, changing(2, budget.Change{Reserve: []budget.Reservation{again}})) // fits: 10 charged and 50 reserved
	add(t, s, "a", nil, changing(3, budget.Change{}))                                     // the end of the Turn
	add(t, s, "a", nil, changing(4, budget.Change{}))
	expectAccounts(t, s, spent("x", 1, 15, "0.15"))
}

func testRetiredJournals(t *testing.T, s LedgerStore) {
	add(t, s, "a", nil, changing(1, budget.Change{Reserve: []budget.Reservation{reservation("x", 100, "1", budget.Limits{})}}))
	add(t, s, "b", nil, changing(1, budget.Change{Reserve: []budget.Reservation{reservation("y", 100, "1", budget.Limits{})}}))
	add(t, s, "c", nil, changing(1, budget.Change{Reserve: []budget.Reservation{reservation("x", 200, "2", budget.Limits{})}}))
	for range 2 {
		if err := s.Retire(t.Context(), noon, "a", "unknown"); err != nil {
			t.Fatalf("Retire: %v", err)
		}
		if err := s.CloseReservations(t.Context(), "unknown", "c", "a"); err != nil {
			t.Fatalf("CloseReservations: %v", err)
		}
	}
	live := budget.Account{Key: day("y"), Turns: 1, ReservedTokens: 100, ReservedCost: decimal.NewFromInt(1)}
	expectAccounts(t, s, spent("x", 2, 30, "0.3"), live)
}

// testConcurrentRequests sends many requests at the same time. Half of them name the budgets in the other order.
func testConcurrentRequests(t *testing.T, s LedgerStore) {
	const writers, fit = 24, 7
	var wg sync.WaitGroup
	results := make([]error, writers)
	for i := range writers {
		wg.Go(func() {
			limited := reservation("x", 10, "0.1", budget.Limits{Tokens: new(int64(10*fit + 9))})
			unlimited := reservation("y", 10, "0.1", budget.Limits{})
			both := []budget.Reservation{limited, unlimited}
			if i%2 == 0 {
				slices.Reverse(both)
			}
			results[i] = s.Append(t.Context(), fmt.Sprintf("turn-%d", i), changing(1, budget.Change{Reserve: both}))
		})
	}
	wg.Wait()
	made := 0
	for _, err := range results {
		if _, refused := errors.AsType[*budget.Refusal](err); err == nil {
			made++
		} else if !refused {
			t.Errorf("Append: %v; want success or a refusal", err)
		}
	}
	got, err := s.Accounts(t.Context(), noon)
	if err != nil || made != fit || len(got) != 2 || got[0].ReservedTokens != 10*fit || got[1].ReservedTokens != 10*fit {
		t.Errorf("%d of %d requests were reserved, the accounts are %+v (%v); want %d in both budgets", made, writers, got, err, fit)
	}
}

func testDeletion(t *testing.T, s LedgerStore) {
	for _, uid := range []string{"x", "y"} {
		add(t, s, "of-"+uid, nil, changing(1, budget.Change{Reserve: []budget.Reservation{reservation(uid, 100, "1", budget.Limits{})}}))
	}
	if err := s.ForgetBudgets(t.Context(), "x", "unknown"); err != nil {
		t.Fatalf("ForgetBudgets: %v", err)
	}
	used := dollars(40, "0")
	add(t, s, "of-x", nil, changing(2, budget.Change{Outcome: &used}))
	left := budget.Account{Key: day("y"), Turns: 1, ReservedTokens: 100, ReservedCost: decimal.NewFromInt(1)}
	expectAccounts(t, s, left)
	if err := s.EndPeriods(t.Context(), noon.Add(12*time.Hour)); err != nil {
		t.Fatalf("EndPeriods: %v", err)
	}
	expectAccounts(t, s, left)
	if err := s.EndPeriods(t.Context(), noon.Add(13*time.Hour)); err != nil {
		t.Fatalf("EndPeriods: %v", err)
	}
	expectAccounts(t, s)
	add(t, s, "of-y", nil, changing(2, budget.Change{Outcome: &used}))
	expectAccounts(t, s)
}

// raise raises accounts.
func raise(t *testing.T, s LedgerStore, accounts ...budget.Account) {
	t.Helper()
	if err := s.RaiseAccounts(t.Context(), accounts...); err != nil {
		t.Errorf("RaiseAccounts: %v", err)
	}
}

func testRaise(t *testing.T, s LedgerStore) {
	raise(t, s)
	expectAccounts(t, s)
	reserve := reservation("x", 100, "0.5", budget.Limits{Tokens: new(int64(1000)), Turns: new(int64(3))})
	add(t, s, "a", nil, changing(1, budget.Change{Reserve: []budget.Reservation{reserve}}))
	used := dollars(300, "0.2")
	add(t, s, "a", nil, changing(2, budget.Change{Outcome: &used}))
	add(t, s, "b", nil, changing(1, budget.Change{Reserve: []budget.Reservation{reserve}}))
	mixed := spent("x", 1, 950, "0.1") // more tokens, and less of the rest
	mixed.Unpriced = 4
	for range 2 {
		raise(t, s, spent("y", 7, 9, "0.000000000000001"), mixed, spent("x", 1, 900, "0.15"))
	}
	want := spent("x", 2, 950, "0.2")
	want.Unpriced, want.ReservedTokens, want.ReservedCost = 4, 100, decimal.RequireFromString("0.5")
	expectAccounts(t, s, want, spent("y", 7, 9, "0.000000000000001"))
	add(t, s, "b", nil, changing(2, budget.Change{Outcome: &used}))
	want = spent("x", 2, 1250, "0.4")
	want.Unpriced = 4
	expectAccounts(t, s, want, spent("y", 7, 9, "0.000000000000001"))
	err := s.Append(t.Context(), "c", changing(1, budget.Change{Reserve: []budget.Reservation{reserve}}))
	if refusal, ok := errors.AsType[*budget.Refusal](err); !ok || refusal.Refused[0].Reason != budget.OverTokens {
		t.Errorf("Append: %v; want a refusal, because the raised account exceeds the limit", err)
	}
}

// testConcurrentRaises raises two accounts in either order while requests reserve and settle in both.
func testConcurrentRaises(t *testing.T, s LedgerStore) {
	const writers = 8
	both := []budget.Account{spent("x", 100, 1000, "10"), spent("y", 100, 1000, "10")}
	raise(t, s, both...)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			requests := []budget.Reservation{reservation("x", 10, "0.1", budget.Limits{}), reservation("y", 10, "0.1", budget.Limits{})}
			accounts := slices.Clone(both)
			if i%2 == 0 {
				slices.Reverse(accounts)
			}
			turn, used := fmt.Sprintf("turn-%d", i), dollars(5, "0.01")
			reserved := s.Append(t.Context(), turn, changing(1, budget.Change{Reserve: requests}))
			raise(t, s, accounts...)
			settled := s.Append(t.Context(), turn, changing(2, budget.Change{Outcome: &used}))
			if err := errors.Join(reserved, settled); err != nil {
				t.Errorf("Append: %v", err)
			}
		})
	}
	wg.Wait()
	expectAccounts(t, s, spent("x", 100+writers, 1000+5*writers, "10.08"), spent("y", 100+writers, 1000+5*writers, "10.08"))
}
