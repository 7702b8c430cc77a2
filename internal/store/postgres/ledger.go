package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// changesLedger reports whether an append changes the ledger of budgets.
func changesLedger(entries []journal.Entry) bool {
	return slices.ContainsFunc(entries, func(e journal.Entry) bool { return e.Ledger != nil })
}

// writeWithLedger executes the statement of an append, and applies the ledger changes of its entries, in one
// transaction. It first locks the row of the journal, and then the accounts in a fixed order, so that two appends
// cannot deadlock. If budgets do not allow the entries, it returns a *budget.Refusal and changes nothing.
func (s *Store) writeWithLedger(ctx context.Context, uid string, entries []journal.Entry, query string, args []any) (
	refused bool, err error,
) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errNoConnection, err)
	}
	defer conn.Release()
	refused, err = appendWithLedger(ctx, conn, uid, entries, query, args)
	// After the transaction: a mark while it waits for an account does not cover it. Also after an error: the server
	// may have committed it.
	s.unmarked.Store(true)
	return refused, err
}

// appendWithLedger executes the transaction of writeWithLedger. It usually takes three round trips:
//
//  1. begin, append the entries, and read the open reservations;
//  2. create and lock the accounts;
//  3. write the accounts and reservations, and commit.
//
// The beginning and the entries are sent together for another reason, too: the server ends a transaction that is idle
// for longer than idleTimeout, also while it receives the next statement. On a slow network, this takes longer for
// large entries.
func appendWithLedger(ctx context.Context, conn *pgxpool.Conn, uid string, entries []journal.Entry, query string, args []any) (
	refused bool, err error,
) {
	l := &appendLedger{}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue(query, args...).Exec(func(tag pgconn.CommandTag) error {
		refused = tag.RowsAffected() == 0
		return nil
	})
	batch.Queue(openHolds, uid).Query(func(rows pgx.Rows) (err error) {
		l.holds, err = pgx.CollectRows(rows, scanHold)
		return err
	})
	results := conn.SendBatch(ctx, batch)
	l.ledger = ledger{ctx, results.Tx()}
	defer func() {
		if !l.committed {
			_ = l.tx.Rollback(ctx) // if it fails, the connection is closed, and the server rolls back
		}
	}()
	if err := results.Close(); err != nil || refused {
		return err == nil, err
	}
	changes := changesOf(entries)
	for i, c := range changes {
		l.last = i == len(changes)-1
		if err := budget.Apply(l, uid, c); err != nil {
			return false, err
		}
	}
	if l.committed {
		return false, nil
	}
	l.committed = true
	return false, l.tx.Commit(ctx)
}

// changesOf returns the changes of the ledger that entries contain.
func changesOf(entries []journal.Entry) (all []*budget.Change) {
	for _, e := range entries {
		if e.Ledger != nil {
			all = append(all, e.Ledger)
		}
	}
	return all
}

// CloseReservations charges the open reservations of Turns that have ended.
func (s *Store) CloseReservations(ctx context.Context, turns ...string) error {
	for chunk := range slices.Chunk(turns, retireAtOnce) {
		if err := s.closeHolds(ctx, chunk); err != nil {
			return err
		}
	}
	return nil
}

// closeHolds charges the open reservations of Turns and tasks whose work no process continues.
func (s *Store) closeHolds(ctx context.Context, uids []string) error {
	turns, err := read(ctx, s, func(row pgx.CollectableRow) (turn string, err error) {
		return turn, row.Scan(&turn)
	}, `SELECT DISTINCT turn_uid FROM capstan_budget_hold WHERE turn_uid = ANY($1)`, uids)
	if err != nil {
		return err
	}
	for _, turn := range turns {
		err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
				// An append of a run that has not stopped yet locks this row, too.
				if _, err := tx.Exec(ctx, `SELECT 1 FROM capstan_turn WHERE turn_uid = $1 FOR UPDATE`, turn); err != nil {
					return err
				}
				return budget.Apply(&ledger{ctx, tx}, turn, &budget.Change{})
			})
		})
		if err != nil {
			return fmt.Errorf("failed to close the reservations of %q: %w", turn, err)
		}
	}
	return nil
}

// ledger is the ledger of budgets within a transaction.
type ledger struct {
	ctx context.Context //nolint:containedctx // because budget.Apply takes no context, and a ledger lives as long as one call
	tx  pgx.Tx
}

// openHolds is the query for the open reservations of a Turn.
const openHolds = `SELECT budget_uid, start_at, end_at, currency, tokens, cost, unknown_tokens, unknown_cost, unknown_currency
	FROM capstan_budget_hold WHERE turn_uid = $1`

// scanHold reads the columns of a reservation.
func scanHold(row pgx.CollectableRow) (h budget.Hold, err error) {
	return h, row.Scan(&h.Budget, &h.Start, &h.End, &h.Currency, &h.Tokens, &h.Cost, &h.Unknown.Tokens, &h.Unknown.Cost,
		&h.Unknown.Currency)
}

// Holds returns the open reservations of a Turn.
func (l *ledger) Holds(turn string) ([]budget.Hold, error) {
	rows, err := l.tx.Query(l.ctx, openHolds, turn)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanHold)
}

// Lock creates the accounts that do not exist, and locks all accounts in the order of keys, which budget.Apply has
// sorted.
func (l *ledger) Lock(keys []budget.Key) (accounts []budget.Account, err error) {
	var c accountColumns
	for _, k := range keys {
		c.uids, c.starts, c.ends = append(c.uids, k.Budget), append(c.starts, k.Start), append(c.ends, k.End)
	}
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO capstan_budget (budget_uid, start_at, end_at)
		SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) ON CONFLICT DO NOTHING`, c.uids, c.starts, c.ends)
	// This statement sees accounts that other transactions have created while the first one waited for them.
	batch.Queue(`SELECT `+columnsOfAccount+` FROM capstan_budget AS b
		JOIN unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS k (uid, start_at, end_at, place)
			ON b.budget_uid = k.uid AND b.start_at = k.start_at AND b.end_at = k.end_at
		ORDER BY k.place FOR UPDATE OF b`, c.uids, c.starts, c.ends).Query(func(rows pgx.Rows) (err error) {
		accounts, err = pgx.CollectRows(rows, scanAccount)
		return err
	})
	err = l.tx.SendBatch(l.ctx, batch).Close()
	if err == nil && len(accounts) != len(keys) {
		err = errors.New("accounts of budgets are being deleted") // the caller appends again
	}
	return accounts, err
}

// accountColumns holds columns of accounts.
type accountColumns struct {
	uids                                            []string
	starts, ends, turns, tokens, unpriced, reserved []int64
	costs, reservedCosts                            []string
}

// Write replaces accounts and the open reservations of a Turn.
func (l *ledger) Write(turn string, accounts []budget.Account, holds []budget.Hold) error {
	return l.tx.SendBatch(l.ctx, writes(turn, accounts, holds)).Close()
}

// writes returns the statements that replace accounts and the open reservations of a Turn.
func writes(turn string, accounts []budget.Account, holds []budget.Hold) *pgx.Batch {
	var c accountColumns
	for _, a := range accounts {
		c.uids, c.starts, c.ends = append(c.uids, a.Budget), append(c.starts, a.Start), append(c.ends, a.End)
		c.turns, c.tokens, c.unpriced = append(c.turns, a.Turns), append(c.tokens, a.Tokens), append(c.unpriced, a.Unpriced)
		c.costs, c.reserved = append(c.costs, a.Cost.String()), append(c.reserved, a.ReservedTokens)
		c.reservedCosts = append(c.reservedCosts, a.ReservedCost.String())
	}
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE capstan_budget AS b SET turns = n.turns, tokens = n.tokens, cost = n.cost, unpriced = n.unpriced,
			reserved_tokens = n.reserved_tokens, reserved_cost = n.reserved_cost
		FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[], $9::text[])
			AS n (`+namesOfAccount+`)
		WHERE b.budget_uid = n.budget_uid AND b.start_at = n.start_at AND b.end_at = n.end_at`,
		c.uids, c.starts, c.ends, c.turns, c.tokens, c.costs, c.unpriced, c.reserved, c.reservedCosts)
	batch.Queue(`DELETE FROM capstan_budget_hold WHERE turn_uid = $1`, turn)
	for _, h := range holds {
		batch.Queue(`INSERT INTO capstan_budget_hold VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`, turn, h.Budget, h.Start, h.End,
			h.Currency, h.Tokens, h.Cost.String(), h.Unknown.Tokens, h.Unknown.Cost.String(), h.Unknown.Currency)
	}
	return batch
}

// appendLedger is the ledger within the transaction of an append.
type appendLedger struct {
	ledger
	// holds are the open reservations of the Turn.
	holds []budget.Hold
	// last is true if the transaction makes no further change. Write then commits it, and sets committed.
	last, committed bool
}

// Holds returns the open reservations of the Turn, which the transaction has read.
func (l *appendLedger) Holds(string) ([]budget.Hold, error) { return l.holds, nil }

// Write replaces accounts and the open reservations of the Turn. It commits the transaction if this is the last change.
func (l *appendLedger) Write(turn string, accounts []budget.Account, holds []budget.Hold) error {
	batch := writes(turn, accounts, holds)
	l.holds = holds
	if l.last {
		// The server executes the commit only if the statements before it have succeeded.
		batch.Queue("commit")
	}
	err := l.tx.SendBatch(l.ctx, batch).Close()
	l.committed = l.last && err == nil
	return err
}

const (
	// namesOfAccount are the names of the columns of an account. columnsOfAccount are the same columns in a query in
	// which the table has the alias b.
	namesOfAccount   = `budget_uid, start_at, end_at, turns, tokens, cost, unpriced, reserved_tokens, reserved_cost`
	columnsOfAccount = `b.budget_uid, b.start_at, b.end_at, b.turns, b.tokens, b.cost, b.unpriced, b.reserved_tokens, b.reserved_cost`
)

// scanAccount reads the columns of an account.
func scanAccount(row pgx.CollectableRow) (a budget.Account, err error) {
	return a, row.Scan(&a.Budget, &a.Start, &a.End, &a.Turns, &a.Tokens, &a.Cost, &a.Unpriced, &a.ReservedTokens, &a.ReservedCost)
}

// Accounts returns the accounts whose period contains a time.
func (s *Store) Accounts(ctx context.Context, at time.Time) ([]budget.Account, error) {
	return read(ctx, s, scanAccount,
		`SELECT `+columnsOfAccount+` FROM capstan_budget AS b WHERE b.end_at > $1 AND b.start_at <= $1`, at.Unix())
}

// RaiseAccounts raises accounts to at least the given amounts.
func (s *Store) RaiseAccounts(ctx context.Context, spent ...budget.Account) error {
	for chunk := range slices.Chunk(spent, retireAtOnce) {
		err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return budget.Raise(&ledger{ctx, tx}, chunk...) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ForgetBudgets deletes the accounts and the reservations of budgets.
func (s *Store) ForgetBudgets(ctx context.Context, uids ...string) error {
	for chunk := range slices.Chunk(uids, retireAtOnce) {
		if err := s.dropAccounts(ctx, `budget_uid = ANY($1)`, chunk); err != nil {
			return err
		}
	}
	return nil
}

// EndPeriods deletes the accounts and the reservations of periods that ended before a time.
func (s *Store) EndPeriods(ctx context.Context, before time.Time) error {
	return s.dropAccounts(ctx, `end_at < $1`, before.Unix())
}

// dropAccounts deletes accounts, and then their reservations. A reservation without an account is harmless: when its
// request ends, the charge creates the account again.
func (s *Store) dropAccounts(ctx context.Context, condition string, arg any) error {
	for _, table := range []string{"capstan_budget", "capstan_budget_hold"} {
		err := s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
			_, err := s.pool.Exec(ctx, `DELETE FROM `+table+` WHERE `+condition, arg)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
