package turn

import (
	"slices"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// turnRecord returns the record of the Turn, which is written together with its end. The journal adds the UID and,
// unless the object has it, the time of the end.
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

// bareRecord returns the part of the record that says who asked for what, and how it ended.
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

// sessionPlace returns the name of the Session and the number of the Turn in it. The number is 0 if no prompt was made,
// or if there is no Session.
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
	if name == "" {
		return "", 0
	}
	return name, max(number, r.number)
}

// modelsOf returns the usage and the cost of each model, in the order in which they were first asked. The cost of a
// model is nil if that of one of its requests is not known, or if its prices have changed their currency.
func modelsOf(requests func(yield func(loop.Spending) bool)) []turnrecord.Model {
	type sum struct {
		turnrecord.Model
		amount   decimal.Decimal
		currency string
		unknown  bool
	}
	var all []sum
	for one := range requests {
		i := slices.IndexFunc(all, func(s sum) bool { return s.Provider == one.Provider && s.Model.Model == one.Model })
		if i < 0 {
			i = len(all)
			all = append(all, sum{Model: turnrecord.Model{Provider: one.Provider, Model: one.Model}})
		}
		s := &all[i]
		s.Usage = s.Usage.Add(one.Usage)
		switch {
		case one.Usage == (model.Usage{}): // a request that used nothing needs no price
		case one.Cost == nil, s.currency != "" && s.currency != one.Cost.Currency:
			s.unknown = true
		default:
			s.amount, s.currency = s.amount.Add(one.Cost.Amount), one.Cost.Currency
		}
	}
	models := make([]turnrecord.Model, 0, len(all))
	for _, s := range all {
		if !s.unknown && s.currency != "" {
			s.Cost = &turnrecord.Cost{Amount: s.amount.String(), Currency: s.currency}
		}
		models = append(models, s.Model)
	}
	if len(models) == 0 {
		return nil
	}
	return models
}
