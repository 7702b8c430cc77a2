package budget

import (
	"context"
	"time"
)

// Ledger is the part of a store that reads the ledger, and changes it without an append. It must be safe for concurrent
// use.
type Ledger interface {
	// Accounts returns the accounts whose period contains a time, in no particular order.
	Accounts(ctx context.Context, at time.Time) ([]Account, error)

	// CloseReservations charges the open reservations of Turns that ended without an entry in their journals, because
	// no run closes these reservations. It skips Turns without open reservations.
	CloseReservations(ctx context.Context, turns ...string) error

	// RaiseAccounts raises accounts of which the store has lost amounts to at least the given amounts. It lowers no
	// amount and changes no reservation, so it may be repeated. It may have raised some of the accounts if it returns
	// an error.
	RaiseAccounts(ctx context.Context, spent ...Account) error

	// ForgetBudgets deletes everything about budgets that were deleted. A later request of a run that has not noticed
	// the deletion may create an account again.
	ForgetBudgets(ctx context.Context, uids ...string) error

	// EndPeriods deletes the accounts of periods that ended before a time, and the reservations in them. A request that
	// ends later is not charged to them.
	EndPeriods(ctx context.Context, before time.Time) error
}
