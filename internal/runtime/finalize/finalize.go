// Package finalize makes the record of a Turn that has run: citations, usage and cost, the decision. None of its steps
// can fail the Turn: one that fails is named in the record, and the others go on.
package finalize

import (
	"fmt"
	"slices"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// MaxLocalCitations bounds the sources that a record lists.
const MaxLocalCitations = 8

// MaxToolsUsed bounds the tools that a decision lists.
const MaxToolsUsed = 64

// The ways to an answer.
const (
	// StrategyDirectAnswer means that the model answered from its prompt, without tools.
	StrategyDirectAnswer = "DirectAnswer"
	// StrategyWebAugmented means that a tool was called that searches the web.
	StrategyWebAugmented = "WebAugmented"
	// StrategyRetrievalAugmented means that a tool was called that looks things up in what the organisation has, and none that
	// searches the web.
	StrategyRetrievalAugmented = "RetrievalAugmented"
	// StrategyToolAssisted means that other tools were called.
	StrategyToolAssisted = "ToolAssisted"
)

// Spending is what was used of one model.
type Spending struct {
	// Usage of it.
	Usage model.Usage
	// Cost of that; nil if the model has no price.
	Cost *model.Cost
}

// Input of the record.
type Input struct {
	// Answered is true if there is an answer to cite sources for.
	Answered bool
	// Sources of the facts that the model was given, in their order.
	Sources []string
	// ShowCitations lists their sources.
	ShowCitations bool
	// Spendings, in any order.
	Spendings []Spending
	// DecisionKey of the agent.
	DecisionKey string
	// Called are the tools that were called, in any order; a tool may be there more than once.
	Called []Called
	// Report of the preparation.
	Report prepare.Report
}

// Called is a tool that was called.
type Called struct {
	// Name that the model knows it by.
	Name string
	// Role of it.
	Role tool.Role
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
	// ToolsUsed are the names of the tools that were called, sorted, at most MaxToolsUsed.
	ToolsUsed []string `json:"toolsUsed,omitempty"`
}

// Record of a Turn.
type Record struct {
	// Citations are sources of facts, one line each, without repeats, in their order, at most MaxLocalCitations.
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
		source = fence.StripLine(source) // a context pack may write anything
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

func price(in Input, r *Record) (err error) {
	r.Cost, err = add(in.Spendings)
	return err
}

// Total adds up what was spent; nil where something has no price, or the prices are in several currencies.
func Total(spendings []Spending) *Cost {
	cost, err := add(spendings)
	if err != nil {
		return nil
	}
	return cost
}

func add(spendings []Spending) (*Cost, error) {
	var sum decimal.Decimal
	currency := ""
	for _, s := range spendings {
		if s.Usage == (model.Usage{}) {
			continue
		}
		if s.Cost == nil {
			return nil, nil //nolint:nilnil // because a cost that is not whole is none
		}
		if currency != "" && currency != s.Cost.Currency {
			return nil, fmt.Errorf("the models that were used have prices in %s and %s", currency, s.Cost.Currency)
		}
		currency = s.Cost.Currency
		sum = sum.Add(s.Cost.Amount)
	}
	if currency == "" {
		return nil, nil //nolint:nilnil // because nothing was used
	}
	return &Cost{Amount: sum.String(), Currency: currency}, nil
}

func decide(in Input, r *Record) error {
	if !in.Answered {
		return nil
	}
	r.Decision = &Decision{
		Key: in.DecisionKey, Strategy: strategy(in.Called),
		PromptRenderHash: in.Report.RenderHash, ContextHash: in.Report.ContextHash,
	}
	for _, c := range in.Called {
		r.Decision.ToolsUsed = append(r.Decision.ToolsUsed, c.Name)
	}
	slices.Sort(r.Decision.ToolsUsed)
	r.Decision.ToolsUsed = slices.Compact(r.Decision.ToolsUsed)
	r.Decision.ToolsUsed = r.Decision.ToolsUsed[:min(len(r.Decision.ToolsUsed), MaxToolsUsed)]
	return nil
}

// strategy is the way to an answer, by the tools that were called on it.
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
