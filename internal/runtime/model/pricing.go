package model

import "github.com/shopspring/decimal"

// Pricing is the price of a million tokens of a model.
type Pricing struct {
	// Currency as an ISO 4217 code.
	Currency string
	// Input, Output, CacheRead and CacheWrite are the prices of a million tokens each. CacheWrite is nil if tokens
	// that are written to a cache cost as much as other input.
	Input, Output, CacheRead decimal.Decimal
	CacheWrite               *decimal.Decimal
}

// Cost is an amount of money.
type Cost struct {
	// Amount is exact, without rounding.
	Amount decimal.Decimal `json:"amount"`
	// Currency as an ISO 4217 code.
	Currency string `json:"currency"`
}

var million = decimal.NewFromInt(1_000_000)

// Cost returns the cost of a usage. It returns nil if p is nil.
func (p *Pricing) Cost(u Usage) *Cost {
	if p == nil {
		return nil
	}
	write := p.Input
	if p.CacheWrite != nil {
		write = *p.CacheWrite
	}
	fresh := max(0, u.InputTokens-u.CacheReadTokens-u.CacheCreationTokens)
	sum := p.Input.Mul(decimal.NewFromInt(fresh)).
		Add(write.Mul(decimal.NewFromInt(u.CacheCreationTokens))).
		Add(p.CacheRead.Mul(decimal.NewFromInt(u.CacheReadTokens))).
		Add(p.Output.Mul(decimal.NewFromInt(u.OutputTokens)))
	// Prices have at most 9 decimals and the divisor is 10^6: 15 decimals hold the amount exactly.
	return &Cost{Amount: sum.DivRound(million, 15), Currency: p.Currency}
}
