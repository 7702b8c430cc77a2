package turn

import (
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// subAgents adds up what the Turns of sub-agents took; nil if there were none.
func subAgents(s *loop.State) *SubAgents { return SumOf(slices.Collect(s.SubAgents)) }

// spendings are what was used and what it cost, each request for itself. What was used before the journal kept costs, or by
// a model that had no price yet, is priced as the chain says now.
func (r *run) spendings() []finalize.Spending {
	var all []finalize.Spending
	add := func(provider, name string, u model.Usage, cost *model.Cost) {
		for _, c := range r.in.Chain {
			if cost == nil && c.ProviderName == provider && c.Model == name {
				cost = c.Pricing.Cost(u)
			}
		}
		all = append(all, finalize.Spending{Usage: u, Cost: cost})
	}
	for _, a := range r.past.loop.Attempts {
		add(a.Provider, a.Model, a.Usage, a.Cost)
	}
	for _, step := range slices.Concat(r.past.loop.Steps, r.past.loop.Asides) {
		add(step.Provider, step.Model, step.Reply.Usage, step.Cost)
	}
	return all
}

// spent adds up the usage of each model, over all attempts and runs.
func spent(s *loop.State) []Spent {
	var all []Spent
	add := func(provider, name string, u model.Usage) {
		for i := range all {
			if all[i].Provider == provider && all[i].Model == name {
				all[i].Usage = all[i].Usage.Add(u)
				return
			}
		}
		all = append(all, Spent{Provider: provider, Model: name, Usage: u})
	}
	for _, a := range s.Attempts {
		add(a.Provider, a.Model, a.Usage)
	}
	for _, step := range slices.Concat(s.Steps, s.Asides) {
		add(step.Provider, step.Model, step.Reply.Usage)
	}
	return all
}

// fallback compares the model that answered with the one that was asked first; the agent's chain may have changed since.
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
