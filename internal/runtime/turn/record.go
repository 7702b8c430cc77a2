package turn

import (
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// turnRecord returns the record of the Turn, which is written together with its end. The journal adds the UID, and the
// time of the end if it is not set.
func (r *run) turnRecord(result *Result) *turnrecord.Record {
	out := r.bareRecord(result)
	out.Details = turnrecord.Details{
		Labels: r.in.About.Labels, Models: modelsOf(r.requests), ElapsedMilliseconds: r.elapsed().Milliseconds(),
	}
	if reason := r.engine.ReasonOf; reason != nil && r.objectEnd == nil {
		out.Reason = reason(result.Stop)
	}
	out.Session, out.TurnNumber = r.sessionPlace()
	if d := result.Record.Decision; d != nil {
		out.Key, out.Strategy, out.Tools = d.Key, d.Strategy, d.ToolsUsed
	}
	if p := result.Preparation; p != nil {
		out.PromptRenderHash, out.ContextHash = p.RenderHash, p.ContextHash
		out.Prompt = &turnrecord.Prompt{
			Profile: p.Profile.Name, ID: p.Profile.ID, Version: p.Profile.Version, Tags: p.Profile.Tags,
		}
	}
	return out
}

// bareRecord returns the parts of the record that are always known: the Turn, its Agent, its requester and its reason.
func (r *run) bareRecord(result *Result) *turnrecord.Record {
	out := &turnrecord.Record{
		Namespace: r.in.Namespace, Turn: r.in.Name, Agent: r.in.About.Agent, Requester: r.in.Requester, Reason: string(result.Stop),
	}
	if e := r.objectEnd; e != nil {
		out.Reason, out.Completed = e.Reason, e.At
	}
	return out
}

// elapsed returns the time since the first entry of the journal. It is never negative.
func (r *run) elapsed() time.Duration {
	if r.firstEntry.IsZero() {
		return 0
	}
	end := r.engine.Now()
	if r.objectEnd != nil {
		end = r.objectEnd.At
	}
	return max(0, end.Sub(r.firstEntry))
}

// sessionPlace returns the name of the Session and the number of the Turn in it. The number is 0 if there is no
// Session, or if the Turn has asked no model, because such a Turn has no place in the history.
//
// Before the Turn is added to the history, the number is the expected one. If another Turn was added in between, the
// addition corrects the number in the record: see session.Add.
func (r *run) sessionPlace() (name string, number int64) {
	if r.in.Session != nil {
		name = r.in.Session.Name
	}
	if f := r.replayed.input; f != nil {
		if s := f.sessionInfo().session; name == "" && s != nil {
			name = s.ID
		}
		number = f.Number
	}
	switch {
	case name == "" || !r.hasAskedModel():
		return name, 0
	case r.place > 0:
		return name, r.place
	}
	return name, max(number, r.number)
}

// modelsOf returns the usage and the cost of each model, in the order in which they were first asked. A model has one
// element for each currency, and another one for its requests whose cost is not known, so that each total is complete.
func modelsOf(requests func(yield func(loop.Spending) bool)) []turnrecord.Model {
	type sum struct {
		provider, model string
		usage           model.Usage
		cost            *model.Cost
	}
	var all []sum
	for request := range requests {
		i := slices.IndexFunc(all, func(s sum) bool {
			if s.provider != request.Provider || s.model != request.Model {
				return false
			}
			if s.usage == (model.Usage{}) || request.Usage == (model.Usage{}) {
				return true // a request that used nothing needs no price
			}
			return (s.cost == nil) == (request.Cost == nil) && (s.cost == nil || s.cost.Currency == request.Cost.Currency)
		})
		if i < 0 {
			i = len(all)
			all = append(all, sum{provider: request.Provider, model: request.Model})
		}
		s := &all[i]
		s.usage = s.usage.Add(request.Usage)
		if request.Cost == nil || request.Usage == (model.Usage{}) {
			continue
		}
		if s.cost == nil {
			s.cost = &model.Cost{Currency: request.Cost.Currency}
		}
		s.cost.Amount = s.cost.Amount.Add(request.Cost.Amount)
	}
	var models []turnrecord.Model
	for _, s := range all {
		m := turnrecord.Model{Provider: s.provider, Model: s.model, Usage: s.usage}
		if s.cost != nil {
			m.Cost = &turnrecord.Cost{Amount: s.cost.Amount.String(), Currency: s.cost.Currency}
		}
		models = append(models, m)
	}
	return models
}
