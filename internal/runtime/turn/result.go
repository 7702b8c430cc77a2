package turn

import (
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// Stop is why a Turn ended.
type Stop string

// The reasons a Turn ends for.
const (
	// StopCompleted means that the model answered.
	StopCompleted Stop = "Completed"
	// StopPrepared means that the Turn was to be prepared only, and is.
	StopPrepared Stop = "Prepared"
	// StopMaxOutputTokens means that the answer was cut off at a limit of its length.
	StopMaxOutputTokens Stop = "MaxOutputTokens"
	// StopContentFilter means that the provider's content filter withheld the answer.
	StopContentFilter Stop = "ContentFilter"
	// StopContextLength means that the prompt is longer than the model's context window.
	StopContextLength Stop = "ContextLength"
	// StopModelError means no model of the chain gave a usable answer.
	StopModelError Stop = "ModelError"
	// StopPreparationError means no prompt could be made.
	StopPreparationError Stop = "PreparationError"
	// StopDeadline means that the time of the Turn was over.
	StopDeadline Stop = "Deadline"
	// StopCancelled means that the Turn was cancelled.
	StopCancelled Stop = "Cancelled"
)

// Result of a Turn. It marshals to JSON and back without loss.
type Result struct {
	// Stop is why the Turn ended, and Message says so to people.
	Stop    Stop   `json:"stop"`
	Message string `json:"message"`
	// Preparation is the report of the prompt that was used last, Provider and Model what it was made for, and
	// MessageCount its length. Preparation is nil if there was none.
	Preparation  *prepare.Report `json:"preparation,omitempty"`
	Provider     string          `json:"provider,omitempty"`
	Model        string          `json:"model,omitempty"`
	MessageCount int             `json:"messageCount,omitempty"`
	// Text of the answer, whole; of an answer that was cut off, what came.
	Text string `json:"text,omitempty"`
	// Counts of what all runs did.
	Counts Counts `json:"counts"`
	// Record of citations, usage, cost and decision.
	Record finalize.Record `json:"record"`
	// Spent is the usage of each model that was asked, in the order in which they were first asked.
	Spent []Spent `json:"spent,omitempty"`
	// Fallback is set when not the first model of the chain served.
	Fallback *Fallback `json:"fallback,omitempty"`
	// Resumed is true if this run went on with what an earlier one had journalled.
	Resumed bool `json:"resumed,omitempty"`
}

// Counts of what the runs of a Turn did.
type Counts struct {
	// Steps are model replies.
	Steps int `json:"steps"`
	// ModelRequests are requests sent, also those that a restart cut off; ModelRetries are those of them that repeated one.
	ModelRequests int `json:"modelRequests"`
	ModelRetries  int `json:"modelRetries"`
}

// Spent is the usage of one model.
type Spent struct {
	Provider string      `json:"provider"`
	Model    string      `json:"model"`
	Usage    model.Usage `json:"usage"`
}

// Fallback says which model served in place of which.
type Fallback struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func stopOf(kind model.ErrorKind) Stop {
	switch kind {
	case model.ContextLength:
		return StopContextLength
	case model.ContentFiltered:
		return StopContentFilter
	case model.ReplyTooLong:
		return StopMaxOutputTokens
	case model.RateLimited, model.Overloaded, model.Timeout, model.Network, model.Malformed, model.Auth, model.InvalidRequest, model.Cancelled:
		return StopModelError
	}
	return StopModelError
}

// finalize makes the result from what the journal holds by now.
func (r *run) finalize(stop Stop, message string, step *loop.Step) (*Result, error) {
	now, err := replay(r.log)
	if err != nil {
		return nil, err
	}
	result := &Result{Stop: stop, Message: message, Counts: now.counts()}
	record := finalize.Input{
		Answered: stop == StopCompleted, ShowCitations: r.in.ShowCitations, DecisionKey: r.in.DecisionKey,
	}
	result.Spent = spent(now)
	for _, s := range result.Spent {
		record.Spendings = append(record.Spendings, finalize.Spending{Usage: s.Usage, Pricing: r.pricing(s.Provider, s.Model)})
	}
	if r.prepared == nil {
		r.prepared = now.prepared
	}
	if p := r.prepared; p != nil {
		record.Report, record.Sources = p.Report, p.Sources
		result.Preparation, result.Provider, result.Model, result.MessageCount = &p.Report, p.Provider, p.Model, len(p.Messages)
	}
	if step != nil {
		result.Text = step.Reply.Text
		result.Fallback = fallback(now, step)
	}
	result.Record = finalize.Make(record)
	return result, nil
}

// spent adds up the usage of each model, over all attempts and runs.
func spent(now past) []Spent {
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
	for _, a := range now.attempts {
		add(a.Provider, a.Model, a.Usage)
	}
	if s := now.step; s != nil {
		add(s.Provider, s.Model, s.Reply.Usage)
	}
	return all
}

func (r *run) pricing(provider, name string) *finalize.Pricing {
	for _, c := range r.in.Chain {
		if c.ProviderName == provider && c.Model == name {
			return c.Pricing
		}
	}
	return nil
}

// fallback compares the model that answered with the one that was asked first; the agent's chain may have changed since.
func fallback(now past, step *loop.Step) *Fallback {
	if len(now.requests) == 0 {
		return nil
	}
	first := now.requests[0]
	if step.Provider == first.Provider && step.Model == first.Model {
		return nil
	}
	return &Fallback{From: first.Provider + "/" + first.Model, To: step.Provider + "/" + step.Model}
}
