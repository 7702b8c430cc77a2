package turn

import (
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

// Stop is why a Turn ended.
type Stop string

// The reasons a Turn ends for.
const (
	// StopCompleted means that the model answered.
	StopCompleted Stop = "Completed"
	// StopPrepared means that the Turn was to be prepared only, and is.
	StopPrepared Stop = "Prepared"
	// StopMaxSteps means that the Turn was out of steps; its answer is the best from what was known.
	StopMaxSteps Stop = "MaxSteps"
	// StopBudget means that the next request would have gone beyond the budget.
	StopBudget Stop = "Budget"
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
	// StopInterrupted means that the Turn cannot go on, because of a fault within Capstan or of its journal.
	StopInterrupted Stop = "Interrupted"
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
	// Answer is the artifact that has Text where that is longer than a status holds; nil for most.
	Answer *Artifact `json:"answer,omitempty"`
	// Session is the place of the Turn in its conversation; nil if it has none. It is not in the Turn's own journal.
	Session *Place `json:"-"`
}

// Artifact names content that the journal keeps apart.
type Artifact struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// Place of a Turn in a conversation.
type Place struct {
	// UID and Name of the Session, and Number of the Turn in it, from 1; 0 where the Turn asked no model.
	UID, Name string
	Number    int64
	// Last is the name of the last Turn in it by now, which is another one where somebody has gone on meanwhile.
	Last string
	// Totals of the conversation by now.
	Totals session.Totals
}

// Counts of what the runs of a Turn did.
type Counts struct {
	// Steps are model replies.
	Steps int `json:"steps"`
	// ModelRequests are requests sent, also those that a restart cut off; ModelRetries are those of them that repeated one.
	ModelRequests int `json:"modelRequests"`
	ModelRetries  int `json:"modelRetries"`
	// ToolCalls that were made or were about to be; UnknownOutcomes are those of which nobody knows.
	ToolCalls       int `json:"toolCalls,omitempty"`
	UnknownOutcomes int `json:"unknownOutcomes,omitempty"`
	// Resumes is how often a run went on with what an earlier one had journalled.
	Resumes int `json:"resumes,omitempty"`
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
func (r *run) finalize(stop Stop, message string) (*Result, error) {
	state := &r.past.loop
	result := &Result{Stop: stop, Message: message, Counts: r.past.counts(), Spent: spent(state)}
	result.Counts.Resumes = r.resumes
	record := finalize.Input{
		Answered: stop == StopCompleted || stop == StopMaxSteps, ShowCitations: r.in.ShowCitations, DecisionKey: r.in.DecisionKey,
		ToolCalls: result.Counts.ToolCalls, Spendings: r.spendings(),
	}
	if p := r.past.prepared; p != nil {
		record.Report, record.Sources = p.Report, p.Sources
		result.Preparation, result.Provider, result.Model, result.MessageCount = &p.Report, p.Provider, p.Model, len(p.Messages)
	}
	if step := state.LastStep(); step != nil {
		result.Text = step.Reply.Text
		result.Fallback = fallback(state, step)
	}
	if quoted, err := json.Marshal(result.Text); err != nil || len(quoted)-2 > maxInlineText {
		a := journal.NewArtifact([]byte(result.Text))
		result.Answer = &Artifact{Name: "answer.txt", SHA256: a.SHA256, Bytes: a.Bytes}
	}
	result.Record = finalize.Make(record)
	return result, nil
}

// maxInlineText is the longest text that a status holds whole, in bytes of JSON.
const maxInlineText = 32 << 10

// attachments are the artifacts of a result.
func (r *Result) attachments() []journal.Artifact {
	if r.Answer == nil {
		return nil
	}
	return []journal.Artifact{journal.NewArtifact([]byte(r.Text))}
}

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
	for _, step := range r.past.loop.Steps {
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
	for _, step := range s.Steps {
		add(step.Provider, step.Model, step.Reply.Usage)
	}
	return all
}

// fallback compares the model that answered with the one that was asked first; the agent's chain may have changed since.
func fallback(s *loop.State, step *loop.Step) *Fallback {
	if len(s.Requests) == 0 {
		return nil
	}
	first := s.Requests[0]
	if step.Provider == first.Provider && step.Model == first.Model {
		return nil
	}
	return &Fallback{From: first.Provider + "/" + first.Model, To: step.Provider + "/" + step.Model}
}
