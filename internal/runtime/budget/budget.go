// Package budget decides whether the budgets of a Turn allow a request to a model. It has the arithmetic of the ledger,
// and the contract of the stores that keep the ledger.
//
// A request is reserved in the same transaction that records the intent to send it, and settled in the same transaction
// that records its end. So the ledger and the journals always agree, even if the process is killed:
//
//  1. Before the intent is recorded, nothing is reserved, and nothing was sent.
//  2. After that, the reservation stays open, because the request may have been sent. The beginning of the next run, or
//     the end of the Turn, charges the same estimate that the usage of the Turn contains. No budget refuses this
//     charge, so a Turn that must wait for a budget has no open reservation.
//  3. After the end of the request is recorded, the request is settled, and no run repeats it.
//  4. If the Turn never continues, the reservation is charged when the Turn ends without a run, or when its journal is
//     retired.
//
// A run of an older epoch cannot reserve or settle, because the store refuses its entries.
package budget

import (
	"fmt"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// MaxOfTurn is the maximum number of budgets that may apply to one Turn. It limits the work for each request.
const MaxOfTurn = 64

// Limits are the limits of a budget for one period. A nil limit means no limit.
type Limits struct {
	// Tokens is the number of tokens, input and output together.
	Tokens *int64
	// Cost is an amount in the currency of the budget.
	Cost *decimal.Decimal
	// Turns is the number of Turns that send their first request in the period.
	Turns *int64
}

// Rule is a budget that applies to a Turn.
type Rule struct {
	// UID is the key of the budget in the ledger, and Name is its name for people.
	UID, Name string
	// Generation is the generation of the object from which the rule was made.
	Generation int64
	// Unit and Zone define the periods.
	Unit Unit
	Zone *time.Location
	// Limits are the limits of one period. Currency is the currency in which costs count.
	Limits   Limits
	Currency string
	// Queue is true if a Turn that exceeds the budget waits for the next period. Otherwise the Turn ends.
	Queue bool
}

// Amount is the usage and the cost of a request.
type Amount struct {
	Tokens int64
	// Cost is the cost in Currency. Currency is empty if the cost is unknown.
	Cost     decimal.Decimal
	Currency string
}

// costIn returns the cost of the amount in a currency, and whether it is known.
func (a Amount) costIn(currency string) (decimal.Decimal, bool) {
	if a.Currency != currency || currency == "" {
		return decimal.Zero, false
	}
	return a.Cost, true
}

// Key is the key of an account: one budget in one period. Start and End are in seconds since 1970. They are part of the
// key, so a change of the unit or of the time zone starts another account.
type Key struct {
	Budget     string
	Start, End int64
}

// KeyOf returns the key of a budget's account in a period.
func KeyOf(budget string, p Period) Key { return Key{budget, p.Start.Unix(), p.End.Unix()} }

// Reset returns the end of the account's period.
func (k Key) Reset() time.Time { return time.Unix(k.End, 0).UTC() }

// compare orders keys, so that all transactions lock accounts in the same order.
func (k Key) compare(o Key) int {
	switch {
	case k.Budget != o.Budget:
		return strings.Compare(k.Budget, o.Budget)
	case k.Start != o.Start:
		return int(min(max(k.Start-o.Start, -1), 1))
	}
	return int(min(max(k.End-o.End, -1), 1))
}

// Account is the state of a budget in one period.
type Account struct {
	Key
	// Turns, Tokens and Cost are the amounts spent. Unpriced is the number of requests that are not in Cost, because
	// their cost is unknown or in another currency.
	Turns, Tokens, Unpriced int64
	Cost                    decimal.Decimal
	// ReservedTokens and ReservedCost are the amounts reserved by requests that have not ended.
	ReservedTokens int64
	ReservedCost   decimal.Decimal
}

// Hold is the reservation of a request that has not ended, as a store keeps it.
type Hold struct {
	Key
	// Currency is the currency of the budget.
	Currency string
	// Tokens and Cost are the reserved amounts.
	Tokens int64
	Cost   decimal.Decimal
	// Unknown is charged if the outcome of the request stays unknown.
	Unknown Amount
}

// Reservation is a request to reserve a part of one budget.
type Reservation struct {
	Hold
	// Limits are the current limits of the budget.
	Limits Limits
	// CountTurn is true for the first request of a Turn.
	CountTurn bool
	// Unpriced is true if the price of the model in the budget's currency is unknown.
	Unpriced bool
}

// Change is the effect of a journal entry on the ledger. It closes all open reservations of the Turn, and then makes
// new reservations. A Turn has at most one request at a time, so all open reservations belong to one request.
type Change struct {
	// Outcome is the usage of the request whose reservations are closed. If it is nil, the outcome is unknown.
	Outcome *Amount
	// Uncount is true if the request was never sent, and its reservation has counted the Turn. The accounts of the
	// reservation, whose period may have ended, then no longer count the Turn.
	Uncount bool
	// Reserve has the reservations of the next request, at most one for each budget. All are made, or none.
	Reserve []Reservation
}

// Reason says which limit refuses a reservation.
type Reason string

const (
	// OverTokens means that the limit on tokens refuses the reservation.
	OverTokens Reason = "tokens"
	// OverCost means that the limit on the cost refuses the reservation.
	OverCost Reason = "cost"
	// OverTurns means that the limit on Turns refuses the reservation.
	OverTurns Reason = "turns"
	// NoPrice means that the budget limits the cost, and that the cost of the request is unknown.
	NoPrice Reason = "price"
)

// Refused is one limit that refuses a reservation.
type Refused struct {
	Reason Reason
	// Account is the account without the reservation.
	Account Account
	// Contended is true if only reservations of other requests prevent the reservation.
	Contended bool
}

// Refusal is the error of an append whose reservations would exceed budgets. The store has appended no entry and made
// no reservation.
type Refusal struct {
	// Refused has at least one element, in the order of the reservations.
	Refused []Refused
}

// Error describes the refusal.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%d limits of budgets refuse the request", len(r.Refused))
}
