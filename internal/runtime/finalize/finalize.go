// Package finalize makes the record of an ended Turn. A failed step does not fail the Turn: the record names the step,
// and the other steps continue.
package finalize

import (
	"fmt"
	"slices"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// MaxToolsUsed is the maximum number of tools in a decision record.
const MaxToolsUsed = 64

// The strategies of answers.
const (
	// StrategyDirectAnswer means that the model answered from its prompt, without tools.
	StrategyDirectAnswer = "DirectAnswer"
	// StrategyWebAugmented means that a tool that searches the web was called.
	StrategyWebAugmented = "WebAugmented"
	// StrategyRetrievalAugmented means that a context pack or a tool that searches the organization's data was called,
	// and no tool that searches the web.
	StrategyRetrievalAugmented = "RetrievalAugmented"
	// StrategyToolAssisted means that only tools of other roles were called.
	StrategyToolAssisted = "ToolAssisted"
)

// Spending is the usage of one request.
type Spending struct {
	// Usage is the number of tokens.
	Usage model.Usage
	// Cost is the cost of Usage. It is nil if the model has no price.
	Cost *model.Cost
}

// Input is the input of Record.Complete.
type Input struct {
	// Answered is true if there is an answer.
	Answered bool
	// Spendings are the spendings of the Turn, in any order.
	Spendings []Spending
	// DecisionKey is the decision key of the Agent.
	DecisionKey string
	// Called are the tools that were called, in any order and possibly with repeats.
	Called []Called
	// Report is the report of the preparation.
	Report prepare.Report
}

// Called is a tool that was called.
type Called struct {
	// Name is the name that the model uses.
	Name string
	// Role is the role of the tool.
	Role tool.Role
}

// Cost is an amount of money.
type Cost struct {
	// Amount is a decimal number.
	Amount string `json:"amount"`
	// Currency is an ISO 4217 code.
	Currency string `json:"currency"`
}

// Decision is the decision record: how the Turn reached its end.
type Decision struct {
	Key string `json:"key"`
	// Strategy is empty without an answer.
	Strategy string `json:"strategy"`
	// PromptRenderHash and ContextHash are empty if no prompt was made.
	PromptRenderHash string `json:"promptRenderHash"`
	ContextHash      string `json:"contextHash"`
	// ToolsUsed are the names of the called tools, sorted and at most MaxToolsUsed.
	ToolsUsed []string `json:"toolsUsed,omitempty"`
}

// Record is the record of a Turn.
type Record struct {
	// Citations are the sources of facts and of searches of local data in order, one line each and without repeats, at
	// most citation.Max.
	Citations []string `json:"citations,omitempty"`
	// WebCitations are the pages of web searches in order and without repeats, at most citation.Max.
	WebCitations []citation.Page `json:"webCitations,omitempty"`
	// Usage is the total over all models.
	Usage model.Usage `json:"usage"`
	// Cost is the cost of Usage. It is nil if a used model has no price, or if the prices are in several currencies.
	Cost *Cost `json:"cost,omitempty"`
	// KnownCost is the known part of the cost if Cost is nil, summed over all currencies. Journals of older versions do
	// not have it.
	KnownCost decimal.Decimal `json:"knownCost,omitzero"`
	// Decision is nil if its step failed, and in journals of older versions also if there is no answer.
	Decision *Decision `json:"decision,omitempty"`
	// Failures are the failed steps with their reasons.
	Failures []string `json:"failures,omitempty"`
}

// Complete sets the usage, the cost and the decision record. A step that fails leaves its part unset.
func (r *Record) Complete(steps *Steps, in *Input) {
	steps.Do("usage", func() error { return setUsage(in, r) })
	steps.Do("cost", func() error { return setCost(in, r) })
	steps.Do("decision", func() error { return setDecision(in, r) })
}

func setUsage(in *Input, r *Record) error {
	for _, s := range in.Spendings {
		r.Usage = r.Usage.Add(s.Usage)
	}
	return nil
}

func setCost(in *Input, r *Record) (err error) {
	r.Cost, err = add(in.Spendings)
	if r.Cost == nil {
		r.KnownCost = Known(in.Spendings)
	}
	return err
}

// Total returns the sum of the costs. It returns nil if a cost is not known, or if there are several currencies.
func Total(spendings []Spending) *Cost {
	cost, err := add(spendings)
	if err != nil {
		return nil
	}
	return cost
}

// Known returns the sum of the costs that are known. It adds costs in different currencies without conversion.
func Known(spendings []Spending) (known decimal.Decimal) {
	for _, s := range spendings {
		if s.Cost != nil {
			known = known.Add(s.Cost.Amount)
		}
	}
	return known
}

func add(spendings []Spending) (*Cost, error) {
	var sum decimal.Decimal
	currency := ""
	for _, s := range spendings {
		if s.Usage == (model.Usage{}) {
			continue
		}
		if s.Cost == nil {
			return nil, nil //nolint:nilnil // because an incomplete cost is reported as no cost
		}
		if currency != "" && currency != s.Cost.Currency {
			return nil, fmt.Errorf("the used models have prices in different currencies, %s and %s", currency, s.Cost.Currency)
		}
		currency = s.Cost.Currency
		sum = sum.Add(s.Cost.Amount)
	}
	if currency == "" {
		return nil, nil //nolint:nilnil // because nothing was used
	}
	return &Cost{Amount: sum.String(), Currency: currency}, nil
}

func setDecision(in *Input, r *Record) error {
	r.Decision = &Decision{Key: in.DecisionKey, PromptRenderHash: in.Report.RenderHash, ContextHash: in.Report.ContextHash}
	if in.Answered {
		r.Decision.Strategy = strategy(in.Called)
	}
	for _, c := range in.Called {
		r.Decision.ToolsUsed = append(r.Decision.ToolsUsed, c.Name)
	}
	slices.Sort(r.Decision.ToolsUsed)
	r.Decision.ToolsUsed = slices.Compact(r.Decision.ToolsUsed)
	r.Decision.ToolsUsed = r.Decision.ToolsUsed[:min(len(r.Decision.ToolsUsed), MaxToolsUsed)]
	return nil
}

// strategy returns the strategy of an answer from the tools that were called.
func strategy(called []Called) string {
	with := func(roles ...tool.Role) bool {
		return slices.ContainsFunc(called, func(c Called) bool { return slices.Contains(roles, c.Role) })
	}
	switch {
	case len(called) == 0:
		return StrategyDirectAnswer
	case with(tool.WebSearch):
		return StrategyWebAugmented
	case with(tool.LocalSearch, tool.ContextPack):
		return StrategyRetrievalAugmented
	}
	return StrategyToolAssisted
}
