package turn

import (
	"errors"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// collectSubAgents records the usage of sub-agents' Turns whose answers this Turn has not received, for example because
// this Turn was cancelled or its time is over. While such a sub-agent's Turn has not ended, collectSubAgents parks this
// Turn, so that nothing is spent on its behalf after its end.
func (r *run) collectSubAgents() error {
	if r.in.Child == nil {
		return nil
	}
	var waits loop.Parked
	for c := range r.replayed.loop.Calls {
		if c.Intent == nil || c.Result != nil || !r.isSubAgent(c.Intent.Name) {
			continue
		}
		result, err := r.in.Child(r.life, *c.Intent, r.replayed.loop.TurnUID(c.Step, c.Call.ID))
		if pending, ok := errors.AsType[*tool.Pending](err); ok {
			waits.Turns = append(waits.Turns, pending.Turn)
			if pending.UID != "" {
				waits.SubAgentCalls = append(waits.SubAgentCalls, loop.SubAgentCall{Step: c.Step, CallID: c.Call.ID, TurnUID: pending.UID})
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := r.record(r.replayed.loop.SubAgentResult(c, r.exposed().Nonce, result)); err != nil {
			return err
		}
	}
	if len(waits.Turns) > 0 {
		return r.park(&waits)
	}
	return nil
}

// isSubAgent reports whether the Turn has a sub-agent with this name among its tools.
func (r *run) isSubAgent(name string) bool {
	return slices.ContainsFunc(r.exposed().Tools, func(t tool.Tool) bool { return t.Name == name && t.Source.Agent != "" })
}

// SumOf returns the total usage of the sub-agents' Turns, or nil if there were none.
func SumOf(spent []*tool.Spent) *SubAgents {
	if len(spent) == 0 {
		return nil
	}
	total := &SubAgents{}
	var costs []finalize.Spending
	for _, s := range spent {
		total.Usage = total.Usage.Add(s.Usage)
		costs = append(costs, finalize.Spending{Usage: s.Usage, Cost: s.Cost})
	}
	if total.Cost = finalize.Total(costs); total.Cost == nil {
		for _, s := range spent {
			total.KnownCost = total.KnownCost.Add(s.KnownCost())
		}
	}
	return total
}
