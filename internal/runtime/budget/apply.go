package budget

import (
	"maps"
	"slices"

	"github.com/shopspring/decimal"
)

// maxTokens is the maximum number of tokens of an account, and of Turns and requests when they are raised, so that no
// sum overflows.
const maxTokens int64 = 1 << 60

// Tx is the ledger within a transaction of a store.
type Tx interface {
	// Holds returns the open reservations of a Turn.
	Holds(turn string) ([]Hold, error)
	// Lock returns the accounts with these keys, in the order of the keys, and prevents other transactions from
	// changing them. It creates accounts that do not exist. The keys are sorted, so that two transactions cannot
	// deadlock.
	Lock(keys []Key) ([]Account, error)
	// Write replaces accounts, and all open reservations of a Turn. If turn is empty, it replaces only the accounts.
	Write(turn string, accounts []Account, holds []Hold) error
}

// Apply applies a change of a Turn to the ledger. If it returns an error, the transaction must be rolled back. A
// *Refusal means that the reservations would exceed budgets.
func Apply(tx Tx, turn string, c *Change) error {
	holds, err := tx.Holds(turn)
	if err != nil || len(holds)+len(c.Reserve) == 0 {
		return err
	}
	keys := map[Key]int{}
	for _, h := range holds {
		keys[h.Key] = 0
	}
	for _, r := range c.Reserve {
		keys[r.Key] = 0
	}
	sorted := slices.SortedFunc(maps.Keys(keys), Key.compare)
	accounts, err := tx.Lock(sorted)
	if err != nil {
		return err
	}
	for i, k := range sorted {
		keys[k] = i
	}
	for _, h := range holds {
		a := &accounts[keys[h.Key]]
		a.settle(h, c.Outcome)
		if c.Uncount {
			a.Turns = max(0, a.Turns-1)
		}
	}
	var refusal Refusal
	next := make([]Hold, 0, len(c.Reserve))
	for _, r := range c.Reserve {
		refusal.Refused = append(refusal.Refused, accounts[keys[r.Key]].check(r)...)
		next = append(next, r.Hold)
	}
	if len(refusal.Refused) > 0 {
		return &refusal
	}
	for _, r := range c.Reserve {
		accounts[keys[r.Key]].reserve(r)
	}
	return tx.Write(turn, accounts, next)
}

// Raise raises accounts to at least the amounts of spent, because the store has lost some of these amounts. It lowers
// no amount, changes no reservation, and creates accounts that do not exist. So it may be repeated.
func Raise(tx Tx, spent ...Account) error {
	least := make(map[Key]Account, len(spent))
	for _, s := range spent {
		a := least[s.Key]
		a.Key = s.Key
		a.Raise(s)
		least[s.Key] = a
	}
	keys := slices.SortedFunc(maps.Keys(least), Key.compare)
	accounts, err := tx.Lock(keys)
	if err != nil {
		return err
	}
	for i, k := range keys {
		accounts[i].Raise(least[k])
	}
	return tx.Write("", accounts, nil)
}

// Raise raises the amounts spent to at least those of another account.
func (a *Account) Raise(to Account) {
	a.Turns = max(a.Turns, min(to.Turns, maxTokens))
	a.Tokens = max(a.Tokens, min(to.Tokens, maxTokens))
	a.Unpriced = max(a.Unpriced, min(to.Unpriced, maxTokens))
	a.Cost = decimal.Max(a.Cost, to.Cost)
}

// Lacks reports whether the account has lost amounts that it had earlier. The number of Turns alone does not show
// this: it falls if the first request of a Turn is not sent after all.
func (a *Account) Lacks(earlier Account) bool {
	return a.Tokens < min(earlier.Tokens, maxTokens) || a.Unpriced < min(earlier.Unpriced, maxTokens) || a.Cost.LessThan(earlier.Cost)
}

// settle replaces a reservation by the usage of the request.
func (a *Account) settle(h Hold, outcome *Amount) {
	used := h.Unknown
	if outcome != nil {
		used = *outcome
	}
	a.ReservedTokens = max(0, a.ReservedTokens-h.Tokens)
	a.ReservedCost = decimal.Max(decimal.Zero, a.ReservedCost.Sub(h.Cost))
	a.Tokens = min(a.Tokens+max(0, used.Tokens), maxTokens)
	if cost, known := used.costIn(h.Currency); known {
		a.Cost = a.Cost.Add(cost)
	} else if used.Tokens > 0 {
		a.Unpriced++
	}
}

// check returns the limits that refuse a reservation.
func (a *Account) check(r Reservation) []Refused {
	var all []Refused
	refuse := func(reason Reason, contended bool) {
		all = append(all, Refused{Reason: reason, Account: *a, Contended: contended})
	}
	if limit := r.Limits.Turns; limit != nil && r.CountTurn && a.Turns+1 > *limit {
		refuse(OverTurns, false)
	}
	if limit := r.Limits.Tokens; limit != nil && a.Tokens+a.ReservedTokens+r.Tokens > *limit {
		refuse(OverTokens, a.Tokens+r.Tokens <= *limit)
	}
	switch limit := r.Limits.Cost; {
	case limit == nil:
	case r.Unpriced:
		refuse(NoPrice, false)
	default:
		withoutReserved := a.Cost.Add(r.Cost)
		// A limit of 0 refuses even requests that cost nothing.
		if limit.IsZero() || withoutReserved.Add(a.ReservedCost).GreaterThan(*limit) {
			refuse(OverCost, limit.IsPositive() && !withoutReserved.GreaterThan(*limit))
		}
	}
	return all
}

// reserve adds a reservation.
func (a *Account) reserve(r Reservation) {
	a.ReservedTokens = min(a.ReservedTokens+max(0, r.Tokens), maxTokens)
	a.ReservedCost = a.ReservedCost.Add(r.Cost)
	if r.CountTurn {
		a.Turns++
	}
}
