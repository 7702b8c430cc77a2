package journaltest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
)

// apply applies a change to the ledger. The caller must hold m.mu.
func (m *Store) apply(turn string, c *budget.Change) error {
	if c == nil {
		return nil
	}
	return budget.Apply(memoryLedger{m}, turn, c)
}

// memoryLedger is the ledger of a Store whose mutex is held.
type memoryLedger struct{ m *Store }

// Holds returns the open reservations of a Turn.
func (l memoryLedger) Holds(turn string) ([]budget.Hold, error) { return l.m.holds[turn], nil }

// Lock returns the accounts of keys.
func (l memoryLedger) Lock(keys []budget.Key) ([]budget.Account, error) {
	accounts := make([]budget.Account, len(keys))
	for i, k := range keys {
		accounts[i] = l.m.accounts[k]
		accounts[i].Key = k
	}
	return accounts, nil
}

// Write replaces accounts and the open reservations of a Turn.
func (l memoryLedger) Write(turn string, accounts []budget.Account, holds []budget.Hold) error {
	if l.m.accounts == nil {
		l.m.accounts, l.m.holds = map[budget.Key]budget.Account{}, map[string][]budget.Hold{}
	}
	for _, a := range accounts {
		l.m.accounts[a.Key] = a
	}
	if l.m.holds[turn] = holds; len(holds) == 0 {
		delete(l.m.holds, turn)
	}
	return nil
}

// Accounts returns the accounts whose period contains a time.
func (m *Store) Accounts(ctx context.Context, at time.Time) ([]budget.Account, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(m.accounts)), func(a budget.Account) bool {
		return at.Unix() < a.Start || a.End <= at.Unix()
	}), nil
}

// CloseReservations charges the open reservations of Turns that have ended.
func (m *Store) CloseReservations(ctx context.Context, turns ...string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, turn := range turns {
		if err := m.apply(turn, &budget.Change{}); err != nil {
			return err
		}
	}
	return nil
}

// RaiseAccounts raises accounts to at least the given amounts.
func (m *Store) RaiseAccounts(ctx context.Context, spent ...budget.Account) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return budget.Raise(memoryLedger{m}, spent...)
}

// ForgetBudgets deletes the accounts and the reservations of the budgets with the given UIDs.
func (m *Store) ForgetBudgets(ctx context.Context, uids ...string) error {
	return m.dropAccounts(ctx, func(k budget.Key) bool { return slices.Contains(uids, k.Budget) })
}

// EndPeriods deletes the accounts and the reservations of periods that ended before a time.
func (m *Store) EndPeriods(ctx context.Context, before time.Time) error {
	return m.dropAccounts(ctx, func(k budget.Key) bool { return k.End < before.Unix() })
}

// dropAccounts deletes the accounts and the reservations for whose keys selects returns true.
func (m *Store) dropAccounts(ctx context.Context, selects func(budget.Key) bool) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.accounts, func(k budget.Key, _ budget.Account) bool { return selects(k) })
	for turn, holds := range m.holds {
		m.holds[turn] = slices.DeleteFunc(slices.Clone(holds), func(h budget.Hold) bool { return selects(h.Key) })
	}
	return nil
}
