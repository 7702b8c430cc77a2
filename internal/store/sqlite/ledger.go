package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// applyLedger applies the ledger changes of entries. If budgets do not allow a change, applyLedger returns a refusal,
// and has not applied that change.
func (t *tx) applyLedger(uid string, entries []journal.Entry) (refusal *budget.Refusal, err error) {
	for _, e := range entries {
		if e.Ledger == nil {
			continue
		}
		err := budget.Apply(ledger{t}, uid, e.Ledger)
		if refusal, refused := errors.AsType[*budget.Refusal](err); refused {
			return refusal, nil // budget.Apply has written nothing
		}
		if err != nil {
			return nil, fmt.Errorf("failed to change the ledger of budgets: %w", err)
		}
	}
	return nil, nil //nolint:nilnil // because nothing is refused
}

// closeHolds charges the open reservations of Turns and tasks whose work no process continues.
func (t *tx) closeHolds(holders []string) error {
	for _, holder := range holders {
		if err := budget.Apply(ledger{t}, holder, &budget.Change{}); err != nil {
			return fmt.Errorf("failed to close the reservations of %q: %w", holder, err)
		}
	}
	return nil
}

// ledger is the ledger of budgets within a transaction. It needs no locks, because there is only one writer.
type ledger struct{ *tx }

// Holds returns the open reservations of a Turn.
func (l ledger) Holds(turn string) (holds []budget.Hold, err error) {
	//nolint:noctx // because the transaction carries the context
	rows, err := l.Query(`SELECT budget_uid, start_at, end_at, currency, tokens, cost, unknown_tokens, unknown_cost, unknown_currency
		FROM budget_hold WHERE turn_uid = ?`, turn)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	for rows.Next() {
		var h budget.Hold
		if err := rows.Scan(&h.Budget, &h.Start, &h.End, &h.Currency, &h.Tokens, &h.Cost, &h.Unknown.Tokens, &h.Unknown.Cost,
			&h.Unknown.Currency); err != nil {
			return nil, err
		}
		holds = append(holds, h)
	}
	return holds, rows.Err()
}

// Lock returns the accounts with the given keys. An account that does not exist has only its key.
func (l ledger) Lock(keys []budget.Key) ([]budget.Account, error) {
	accounts := make([]budget.Account, len(keys))
	for i, k := range keys {
		//nolint:noctx // because the transaction carries the context
		row := l.QueryRow(`SELECT `+accountColumns+` FROM budget WHERE budget_uid = ? AND start_at = ? AND end_at = ?`,
			k.Budget, k.Start, k.End)
		err := scanAccount(row, &accounts[i])
		if errors.Is(err, sql.ErrNoRows) {
			accounts[i].Key, err = k, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return accounts, nil
}

// Write replaces accounts and the open reservations of a Turn.
func (l ledger) Write(turn string, accounts []budget.Account, holds []budget.Hold) error {
	for _, a := range accounts {
		if _, err := l.exec(`INSERT OR REPLACE INTO budget (`+accountColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			a.Budget, a.Start, a.End, a.Turns, a.Tokens, a.Cost.String(), a.Unpriced,
			a.ReservedTokens, a.ReservedCost.String()); err != nil {
			return err
		}
	}
	if _, err := l.exec(`DELETE FROM budget_hold WHERE turn_uid = ?`, turn); err != nil {
		return err
	}
	for _, h := range holds {
		if _, err := l.exec(`INSERT INTO budget_hold VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, turn, h.Budget, h.Start, h.End, h.Currency,
			h.Tokens, h.Cost.String(), h.Unknown.Tokens, h.Unknown.Cost.String(), h.Unknown.Currency); err != nil {
			return err
		}
	}
	return nil
}

// accountColumns are the columns of an account, in the order of scanAccount.
const accountColumns = `budget_uid, start_at, end_at, turns, tokens, cost, unpriced, reserved_tokens, reserved_cost`

// scanAccount reads the columns of an account.
func scanAccount(row interface{ Scan(into ...any) error }, a *budget.Account) error {
	var cost, reserved decimal.Decimal
	err := row.Scan(&a.Budget, &a.Start, &a.End, &a.Turns, &a.Tokens, &cost, &a.Unpriced, &a.ReservedTokens, &reserved)
	a.Cost, a.ReservedCost = cost, reserved
	return err
}

// Accounts returns the accounts whose period contains a time.
func (s *Store) Accounts(ctx context.Context, at time.Time) (accounts []budget.Account, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT `+accountColumns+` FROM budget WHERE end_at > ? AND start_at <= ?`, at.Unix(), at.Unix())
	if err != nil {
		return nil, s.failed(err)
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	for rows.Next() {
		var a budget.Account
		if err := scanAccount(rows, &a); err != nil {
			return nil, err
		}
		accounts = append(accounts, a)
	}
	return accounts, s.failed(rows.Err())
}

// CloseReservations charges the open reservations of Turns that have ended.
func (s *Store) CloseReservations(ctx context.Context, turns ...string) error {
	open, err := s.queryStrings(ctx, `SELECT DISTINCT turn_uid FROM budget_hold`) // at most one request of each Turn that runs
	if err != nil {
		return s.failed(err)
	}
	turns = slices.DeleteFunc(slices.Clone(turns), func(turn string) bool { return !slices.Contains(open, turn) })
	for chunk := range slices.Chunk(turns, retireAtOnce) {
		if err := s.change(ctx, func(t *tx) error { return t.closeHolds(chunk) }); err != nil {
			return err
		}
	}
	return nil
}

// RaiseAccounts raises accounts to at least the given amounts.
func (s *Store) RaiseAccounts(ctx context.Context, spent ...budget.Account) error {
	for chunk := range slices.Chunk(spent, retireAtOnce) {
		if err := s.change(ctx, func(t *tx) error { return budget.Raise(ledger{t}, chunk...) }); err != nil {
			return err
		}
	}
	return nil
}

// ForgetBudgets deletes the accounts and the reservations of budgets.
func (s *Store) ForgetBudgets(ctx context.Context, uids ...string) error {
	for chunk := range slices.Chunk(uids, retireAtOnce) {
		if err := s.change(ctx, func(t *tx) error {
			for _, uid := range chunk {
				for _, table := range []string{"budget", "budget_hold"} {
					if _, err := t.exec(`DELETE FROM `+table+` WHERE budget_uid = ?`, uid); err != nil {
						return err
					}
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// EndPeriods deletes the accounts and the reservations of periods that ended before a time.
func (s *Store) EndPeriods(ctx context.Context, before time.Time) error {
	return s.change(ctx, func(t *tx) error {
		for _, table := range []string{"budget", "budget_hold"} {
			if _, err := t.exec(`DELETE FROM `+table+` WHERE end_at < ?`, before.Unix()); err != nil {
				return err
			}
		}
		return nil
	})
}
