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
	for request := range r.replayed.loop.Spendings {
		for _, c := range r.in.Chain {
			if request.Cost == nil && c.ProviderName == request.Provider && c.Model == request.Model {
				request.Cost = c.Pricing.Cost(request.Usage)
			}
		}
		if !yield(request) {
			return
		}
	}
}

// spendings returns the usage and the cost of each request.
func (r *run) spendings() []finalize.Spending {
	var all []finalize.Spending
	for request := range r.requests {
		all = append(all, finalize.Spending{Usage: request.Usage, Cost: request.Cost})
	}
	return all
}

// spentOf returns the usage and the source of the prices of each model, over all attempts and runs.
func spentOf(requests iter.Seq[loop.Spending]) []Spent {
	var all []Spent
	for request := range requests {
		i := slices.IndexFunc(all, func(o Spent) bool { return o.Provider == request.Provider && o.Model == request.Model })
		if i < 0 {
			all = append(all, Spent{Provider: request.Provider, Model: request.Model})
			i = len(all) - 1
		}
		all[i].Usage = all[i].Usage.Add(request.Usage)
		all[i].addPrice(&request)
	}
	return all
}

// addPrice adds the source of the price of one request. A request that used nothing needs no price. If the price of one
// request is unknown, the source is PriceUnknown. Otherwise the source of the newest request counts.
func (s *Spent) addPrice(request *loop.Spending) {
	switch {
	case request.Usage == (model.Usage{}) || s.Price == PriceUnknown:
	case request.Cost == nil:
		s.Price, s.PriceDate = PriceUnknown, ""
	case request.Cost.PriceDate == "":
		s.Price, s.PriceDate = PriceDeclared, ""
	default:
		s.Price, s.PriceDate = PriceListed, request.Cost.PriceDate
	}
}

// fallback compares the model that answered with the first model that was asked. It uses the journal, because the
// Agent's chain may have changed since. It returns nil if both are the same.
func fallback(s *loop.State, step *loop.Step) *Fallback {
	i := slices.IndexFunc(s.Requests, func(r loop.Request) bool { return r.Purpose == loop.ForStep })
	if i < 0 {
		return nil
	}
	first := s.Requests[i]
	for _, f := range s.FailedRequests { // the budget may have refused the first request
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
