package turn

import (
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// subAgents returns the total usage of the sub-agents' Turns, or nil if there were none.
func subAgents(s *loop.State) *SubAgents { return SumOf(slices.Collect(s.SubAgents)) }

// spendings returns the usage and the cost of each request. If the journal has no cost, because an older version
// wrote it or the model had no price yet, the current prices of the chain apply.
func (r *run) spendings() []finalize.Spending {
	var all []finalize.Spending
	for one := range r.replayed.loop.Spendings {
		cost := one.Cost
		for _, c := range r.in.Chain {
			if cost == nil && c.ProviderName == one.Provider && c.Model == one.Model {
				cost = c.Pricing.Cost(one.Usage)
			}
		}
		all = append(all, finalize.Spending{Usage: one.Usage, Cost: cost})
	}
	return all
}

// spent returns the usage of each model, over all attempts and runs.
func spent(s *loop.State) []Spent {
	var all []Spent
	for one := range s.Spendings {
		i := slices.IndexFunc(all, func(o Spent) bool { return o.Provider == one.Provider && o.Model == one.Model })
		if i < 0 {
			all = append(all, Spent{Provider: one.Provider, Model: one.Model, Usage: one.Usage})
			continue
		}
		all[i].Usage = all[i].Usage.Add(one.Usage)
	}
	return all
}

// fallback compares the model that answered with the first one that was asked. It uses the journal, because the
// Agent's chain may have changed since.
func fallback(s *loop.State, step *loop.Step) *Fallback {
	i := slices.IndexFunc(s.Requests, func(r loop.Request) bool { return r.Purpose == loop.ForStep })
	if i < 0 {
		return nil
	}
	first := s.Requests[i]
	if step.Provider == first.Provider && step.Model == first.Model {
		return nil
	}
	return &Fallback{From: first.Provider + "/" + first.Model, To: step.Provider + "/" + step.Model}
}
