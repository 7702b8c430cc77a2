// Package budget decides whether a request to a model fits the budgets that apply to its Turn. It is the ledger's
// arithmetic, and the contract of the stores that keep the ledger.
//
// A request is reserved in the same transaction that records the intent to send it, and settled in the same
// transaction that records its end. So the ledger and the journals never disagree, whatever is killed in between:
//
//  1. Killed before the intent is recorded: nothing is reserved, and nothing was sent.
//  2. Killed after that: the reservation stays open, because the request may have been sent. The next request of the
//     Turn, or the end of the Turn, charges it with the estimate that the Turn's own usage contains, too.
//  3. Killed after the end is recorded: the request is settled, and no run asks again.
//  4. The Turn never continues: the reservation is charged when the Turn has ended without a run, or when its journal
//     is retired.
//
// A run of an older epoch cannot reserve or settle, because the store refuses its entries.
package budget

import (
	"fmt"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// MaxOfTurn is the number of budgets that may apply to one Turn. It bounds the work for each request.
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
	// Limits of one period, and the currency in which costs count.
	Limits   Limits
	Currency string
	// Queue is true if a Turn that exceeds the budget waits for the next period. Otherwise the Turn ends.
	Queue bool
}

// Amount is what a request uses.
type Amount struct {
	Tokens int64
	// Cost is the cost in Currency. Currency is empty if the cost is unknown.
	Cost     decimal.Decimal
	Currency string
}

// in returns the cost of the amount in a currency, and whether it is known.
func (a Amount) in(currency string) (decimal.Decimal, bool) {
	if a.Currency != currency || currency == "" {
		return decimal.Zero, false
	}
	return a.Cost, true
}

// Key is the key of an account: one budget in one period. Start and End are in seconds since 1970, because a change of
// the unit or of the time zone begins another account.
type Key struct {
	Budget     string
	Start, End int64
}

// KeyOf returns the key of a budget's account in a period.
func KeyOf(budget string, p Period) Key { return Key{budget, p.Start.Unix(), p.End.Unix()} }

// Reset returns the end of the account's period.
func (k Key) Reset() time.Time { return time.Unix(k.End, 0).UTC() }

// compare orders keys, so that all transactions lock accounts in one order.
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
	// Turns, Tokens and Cost are spent. Unpriced is the number of requests whose cost is unknown and is not in Cost.
	Turns, Tokens, Unpriced int64
	Cost                    decimal.Decimal
	// ReservedTokens and ReservedCost are reserved by requests that have not ended.
	ReservedTokens int64
	ReservedCost   decimal.Decimal
}

// Hold is the reservation of a request that has not ended, as a store keeps it.
type Hold struct {
	Key
	// Currency is the currency of the budget.
	Currency string
	// Tokens and Cost are reserved.
	Tokens int64
	Cost   decimal.Decimal
	// Unknown is charged if the outcome of the request stays unknown.
	Unknown Amount
}

// Reservation is a request to reserve a part of one budget.
type Reservation struct {
	Hold
	// Limits are the present limits of the budget.
	Limits Limits
	// CountTurn is true for the first request of a Turn.
	CountTurn bool
	// Unpriced is true if the price of the model in the budget's currency is unknown.
	Unpriced bool
}

// Change is the effect of a journal entry on the ledger. It closes all reservations of the Turn that are open, and
// then reserves. A Turn has at most one request at a time, so all open reservations belong to one request.
type Change struct {
	// Outcome is what the request has used. If it is nil, the outcome is unknown.
	Outcome *Amount
	// Reserve holds the reservations of the next request, at most one for each budget. All are made, or none.
	Reserve []Reservation
}

// Reason says which limit refuses a reservation.
type Reason string

const (
	// OverTokens means that the limit on tokens refuses it.
	OverTokens Reason = "tokens"
	// OverCost means that the limit on the cost refuses it.
	OverCost Reason = "cost"
	// OverTurns means that the limit on Turns refuses it.
	OverTurns Reason = "turns"
	// NoPrice means that the budget limits the cost, and that the cost of the request is unknown.
	NoPrice Reason = "price"
)

// Refused is one limit that refuses a reservation.
type Refused struct {
	Reason Reason
	// Account is the account as it is.
	Account Account
	// Contended is true if the request fits once the reservations of other requests are settled.
	Contended bool
}

// Refusal is the error of a store that has made no reservation and appended no entry, because budgets are exceeded.
type Refusal struct {
	// Refused has at least one element, in the order of the reservations.
	Refused []Refused
}

// Error describes the refusal.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%d limits of budgets refuse the request", len(r.Refused))
}
