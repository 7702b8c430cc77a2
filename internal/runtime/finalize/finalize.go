// Package finalize makes the record of a Turn that has run: citations, usage and cost, the decision. None of its steps
// can fail the Turn: one that fails is named in the record, and the others go on.
package finalize

import (
	"fmt"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// MaxLocalCitations bounds the sources that a record lists.
const MaxLocalCitations = 8

// StrategyDirectAnswer means that the model answered from its prompt, without tools.
const StrategyDirectAnswer = "DirectAnswer"

// Pricing is what a million tokens of a model cost.
type Pricing struct {
	// Currency as an ISO 4217 code.
	Currency string
	// Input, Output and CacheRead are prices of a million tokens.
	Input, Output, CacheRead decimal.Decimal
}

// Spending is what was used of one model.
type Spending struct {
	// Usage in all.
	Usage model.Usage
	// Pricing of the model; nil if it has no price.
	Pricing *Pricing
}

// Input of the record.
type Input struct {
	// Answered is true if there is an answer to cite sources for.
	Answered bool
	// Sources of the facts that the model was given, in their order.
	Sources []string
	// ShowCitations lists their sources.
	ShowCitations bool
	// Spendings by model.
	Spendings []Spending
	// DecisionKey of the agent.
	DecisionKey string
	// Report of the preparation.
	Report prepare.Report
}

// Cost is an amount of money.
type Cost struct {
	// Amount as a decimal.
	Amount string `json:"amount"`
	// Currency as an ISO 4217 code.
	Currency string `json:"currency"`
}

// Decision is the record of how an answer was reached.
type Decision struct {
	Key              string `json:"key"`
	Strategy         string `json:"strategy"`
	PromptRenderHash string `json:"promptRenderHash"`
	ContextHash      string `json:"contextHash"`
}

// Record of a Turn.
type Record struct {
	// Citations are sources of facts, without repeats, in their order, at most MaxLocalCitations.
	Citations []string `json:"citations,omitempty"`
	// Usage over all models.
	Usage model.Usage `json:"usage"`
	// Cost of the usage; nil if a model that was used has no price.
	Cost *Cost `json:"cost,omitempty"`
	// Decision of the Turn; nil if there is no answer.
	Decision *Decision `json:"decision,omitempty"`
	// Failures are the steps that failed, each with its reason.
	Failures []string `json:"failures,omitempty"`
}

// Make makes the record. It never fails and never panics.
func Make(in Input) Record {
	var r Record
	for _, step := range []struct {
		name string
		do   func(Input, *Record) error
	}{
		{"citations", cite}, {"usage", total}, {"cost", price}, {"decision", decide},
	} {
		if err := guarded(step.do, in, &r); err != nil {
			r.Failures = append(r.Failures, step.name+": "+err.Error())
		}
	}
	return r
}

func guarded(do func(Input, *Record) error, in Input, r *Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return do(in, r)
}

func cite(in Input, r *Record) error {
	if !in.Answered || !in.ShowCitations {
		return nil
	}
	seen := map[string]bool{}
	for _, source := range in.Sources {
		if source == "" || seen[source] || len(r.Citations) == MaxLocalCitations {
			continue
		}
		seen[source] = true
		r.Citations = append(r.Citations, source)
	}
	return nil
}

func total(in Input, r *Record) error {
	for _, s := range in.Spendings {
		r.Usage = r.Usage.Add(s.Usage)
	}
	return nil
}

var million = decimal.NewFromInt(1_000_000)

func price(in Input, r *Record) error {
	var sum decimal.Decimal
	currency := ""
	for _, s := range in.Spendings {
		if s.Usage == (model.Usage{}) {
			continue
		}
		if s.Pricing == nil {
			return nil
		}
		if currency != "" && currency != s.Pricing.Currency {
			return fmt.Errorf("the models that were used have prices in %s and %s", currency, s.Pricing.Currency)
		}
		currency = s.Pricing.Currency
		fresh := max(0, s.Usage.InputTokens-s.Usage.CacheReadTokens)
		sum = sum.
			Add(s.Pricing.Input.Mul(decimal.NewFromInt(fresh))).
			Add(s.Pricing.CacheRead.Mul(decimal.NewFromInt(s.Usage.CacheReadTokens))).
			Add(s.Pricing.Output.Mul(decimal.NewFromInt(s.Usage.OutputTokens)))
	}
	if currency != "" {
		// Prices have at most 9 decimals and the divisor is 10^6: 15 decimals hold the amount exactly.
		r.Cost = &Cost{Amount: sum.DivRound(million, 15).String(), Currency: currency}
	}
	return nil
}

func decide(in Input, r *Record) error {
	if in.Answered {
		r.Decision = &Decision{
			Key: in.DecisionKey, Strategy: StrategyDirectAnswer,
			PromptRenderHash: in.Report.RenderHash, ContextHash: in.Report.ContextHash,
		}
	}
	return nil
}
