package model

import "github.com/shopspring/decimal"

// Pricing is what a million tokens of a model cost.
type Pricing struct {
	// Currency as an ISO 4217 code.
	Currency string
	// Input, Output and CacheRead are prices of a million tokens.
	Input, Output, CacheRead decimal.Decimal
}

// Cost is an amount of money.
type Cost struct {
	// Amount is exact.
	Amount decimal.Decimal `json:"amount"`
	// Currency as an ISO 4217 code.
	Currency string `json:"currency"`
}

var million = decimal.NewFromInt(1_000_000)

// Cost returns what a usage costs; nil without a price.
func (p *Pricing) Cost(u Usage) *Cost {
	if p == nil {
		return nil
	}
	fresh := max(0, u.InputTokens-u.CacheReadTokens)
	sum := p.Input.Mul(decimal.NewFromInt(fresh)).
		Add(p.CacheRead.Mul(decimal.NewFromInt(u.CacheReadTokens))).
		Add(p.Output.Mul(decimal.NewFromInt(u.OutputTokens)))
	// Prices have at most 9 decimals and the divisor is 10^6: 15 decimals hold the amount exactly.
	return &Cost{Amount: sum.DivRound(million, 15), Currency: p.Currency}
}
