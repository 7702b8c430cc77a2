package model

import "github.com/shopspring/decimal"

// Pricing is the price of a million tokens of a model.
type Pricing struct {
	// Currency is the currency as an ISO 4217 code.
	Currency string
	// Input, Output and CacheRead are the prices of a million tokens each.
	Input, Output, CacheRead decimal.Decimal
	// CacheWrite is the price of tokens that are written to a cache, or nil if they cost as much as other input.
	// Reasoning is the price of tokens that are used for reasoning, or nil if they cost as much as other output.
	CacheWrite, Reasoning *decimal.Decimal
	// Long are the prices of a request whose prompt has more than LongOver tokens, or nil if they are the same.
	Long     *Pricing
	LongOver int64
	// Date is the date of the prices as YYYY-MM-DD if they are from the table of list prices. Otherwise it is empty.
	Date string
}

// Cost is an amount of money.
type Cost struct {
	// Amount is exact, without rounding.
	Amount decimal.Decimal `json:"amount"`
	// Currency is the currency as an ISO 4217 code.
	Currency string `json:"currency"`
	// PriceDate is the date of the list prices that the amount is computed from. It is empty if the ModelProvider
	// declares the prices.
	PriceDate string `json:"priceDate,omitempty"`
}

var million = decimal.NewFromInt(1_000_000)

// Cost returns the cost of one request. It returns nil if p is nil.
func (p *Pricing) Cost(u Usage) *Cost {
	if p == nil {
		return nil
	}
	at := p
	if p.Long != nil && u.InputTokens > p.LongOver {
		at = p.Long
	}
	fresh := max(0, u.InputTokens-u.CacheReadTokens-u.CacheCreationTokens)
	reasoning := min(u.ReasoningTokens, u.OutputTokens)
	sum := at.Input.Mul(decimal.NewFromInt(fresh)).
		Add(priceOr(at.CacheWrite, at.Input).Mul(decimal.NewFromInt(u.CacheCreationTokens))).
		Add(at.CacheRead.Mul(decimal.NewFromInt(u.CacheReadTokens))).
		Add(at.Output.Mul(decimal.NewFromInt(u.OutputTokens - reasoning))).
		Add(priceOr(at.Reasoning, at.Output).Mul(decimal.NewFromInt(reasoning)))
	// Prices have at most 9 decimals and the divisor is 10^6: 15 decimals hold the amount exactly.
	return &Cost{Amount: sum.DivRound(million, 15), Currency: p.Currency, PriceDate: p.Date}
}

// Expected returns the highest cost of a request whose prompt and reply have these lengths in tokens. For the prompt,
// it uses the price of input or of writing to a cache, and for the reply, the price of output or of reasoning,
// whichever is higher. Expected returns nil if p is nil.
func (p *Pricing) Expected(prompt, reply int64) *Cost {
	highest := p.Cost(Usage{InputTokens: prompt, OutputTokens: reply})
	if highest == nil {
		return nil
	}
	for _, u := range []Usage{
		{InputTokens: prompt, OutputTokens: reply, ReasoningTokens: reply},
		{InputTokens: prompt, CacheCreationTokens: prompt, OutputTokens: reply},
		{InputTokens: prompt, CacheCreationTokens: prompt, OutputTokens: reply, ReasoningTokens: reply},
	} {
		if c := p.Cost(u); c.Amount.GreaterThan(highest.Amount) {
			highest = c
		}
	}
	return highest
}

// priceOr returns price, or other if price is nil.
func priceOr(price *decimal.Decimal, other decimal.Decimal) decimal.Decimal {
	if price == nil {
		return other
	}
	return *price
}
