package turn

import (
	"iter"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// subAgents returns the total usage of the sub-agents' Turns, or nil if there were none.
func subAgents(s *loop.State) *SubAgents { return SumOf(slices.Collect(s.SubAgentUsage)) }

// requests yields the usage and the cost of each request. If the journal has no cost, because an older version wrote
// it or the model had no price yet, the current prices of the chain apply.
func (r *run) requests(yield func(loop.Spending) bool) {
	for one := range r.replayed.loop.Spendings {
		for _, c := range r.in.Chain {
			if one.Cost == nil && c.ProviderName == one.Provider && c.Model == one.Model {
				one.Cost = c.Pricing.Cost(one.Usage)
			}
		}
		if !yield(one) {
			return
		}
	}
}

// spendings returns the usage and the cost of each request.
func (r *run) spendings() []finalize.Spending {
	var all []finalize.Spending
	for one := range r.requests {
		all = append(all, finalize.Spending{Usage: one.Usage, Cost: one.Cost})
	}
	return all
}

// spentOf returns the usage and the source of the prices of each model, over all attempts and runs.
func spentOf(requests iter.Seq[loop.Spending]) []Spent {
	var all []Spent
	for one := range requests {
		i := slices.IndexFunc(all, func(o Spent) bool { return o.Provider == one.Provider && o.Model == one.Model })
		if i < 0 {
			all = append(all, Spent{Provider: one.Provider, Model: one.Model})
			i = len(all) - 1
		}
		all[i].Usage = all[i].Usage.Add(one.Usage)
		all[i].addPrice(&one)
	}
	return all
}

// addPrice adds the source of the price of one request. A request that used nothing needs no price. If a price is
// unknown, that of the model is; otherwise the newest one is named.
func (s *Spent) addPrice(one *loop.Spending) {
	switch {
	case one.Usage == (model.Usage{}) || s.Price == PriceUnknown:
	case one.Cost == nil:
		s.Price, s.PriceDate = PriceUnknown, ""
	case one.Cost.PriceDate == "":
		s.Price, s.PriceDate = PriceDeclared, ""
	default:
		s.Price, s.PriceDate = PriceListed, one.Cost.PriceDate
	}
}

// fallback compares the model that answered with the first one that was asked. It uses the journal, because the
// Agent's chain may have changed since.
func fallback(s *loop.State, step *loop.Step) *Fallback {
	i := slices.IndexFunc(s.Requests, func(r loop.Request) bool { return r.Purpose == loop.ForStep })
	if i < 0 {
		return nil
	}
	first := s.Requests[i]
	for _, f := range s.FailedRequests { // the budget may not have allowed the first one
		if f.Kind == model.OverBudget && f.Purpose == loop.ForStep && f.Step == first.Step && f.Place < first.Place {
			first = loop.Request{Provider: f.Provider, Model: f.Model}
			break
		}
	}
	if step.Provider == first.Provider && step.Model == first.Model {
		return nil
	}
	f := &Fallback{From: first.Provider + "/" + first.Model, To: step.Provider + "/" + step.Model}
	for _, failed := range slices.Backward(s.FailedRequests) {
		if failed.Purpose == loop.ForStep && failed.Provider == first.Provider && failed.Model == first.Model {
			f.Reason = failed.Kind
			break
		}
	}
	return f
}
