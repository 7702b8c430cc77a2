// Package turnrecord defines the record of an ended Turn: the requester and the Agent, how the answer was reached, and
// its cost. A record contains no text of the conversation, so it may be kept longer than its Turn.
package turnrecord

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// MaxDetails is the maximum size of the details of a record, in bytes of JSON.
	MaxDetails = 8 << 10
	// MaxTools is the maximum number of tools in a record.
	MaxTools = 64
	// MaxModels is the maximum number of elements for models in a record: two for each model of a chain.
	MaxModels = 16
	// MaxLabels is the maximum number of labels in a record.
	MaxLabels = 16
	// MaxFeedback is the maximum number of people whose feedback a record keeps.
	MaxFeedback = 16
	// MaxEvaluations is the maximum number of evaluations in a record.
	MaxEvaluations = 4
	// MaxExpenses is the maximum number of expenses in a record.
	MaxExpenses = 16
	// MaxComment is the maximum size of a comment in feedback, in bytes.
	MaxComment = 2 << 10
)

// About is the part of a record that is known before its Turn begins.
type About struct {
	// Agent is the name of the Agent, or NAMESPACE/NAME if the Turn's reference to the Agent has a namespace.
	Agent string `json:"agent,omitempty"`
	// Labels are the selected labels of the Turn, at most MaxLabels.
	Labels map[string]string `json:"labels,omitempty"`
}

// Record is the record of one Turn.
type Record struct {
	// UID is the UID of the Turn, and the key of the record.
	UID string `json:"uid"`
	// Namespace and Turn are the namespace and the name of the Turn.
	Namespace string `json:"namespace"`
	Turn      string `json:"turn"`
	// Agent is the name of the Agent, as in About. It is empty only for a deleted Turn that an older version began.
	Agent string `json:"agent,omitempty"`
	// Session is the name of the Session, or empty.
	Session string `json:"session,omitempty"`
	// Requester is the user who asked for the Turn, or empty if it is not known.
	Requester string `json:"requester,omitempty"`
	// Reason is the reason of the Turn's condition Succeeded.
	Reason string `json:"reason"`
	// Completed is the time of the end, in UTC and to the microsecond.
	Completed time.Time `json:"completed"`
	Details
	// Feedback is the feedback of people, oldest first, at most MaxFeedback. Stores keep it separately from the
	// details.
	Feedback []Feedback `json:"feedback,omitempty"`
	// Evaluations are the evaluations of the answer by judges, at most MaxEvaluations. Stores keep them separately from
	// the details, because they follow the end of the Turn.
	Evaluations []Evaluation `json:"evaluations,omitempty"`
	// Expenses are the usage and the cost of the work after the Turn: evaluation and learning. There are at most
	// MaxExpenses. They are not part of the usage of the Turn. They include the usage of Evaluations and of attempts
	// that were cut off. A record of an older version has none.
	Expenses []Expense `json:"expenses,omitempty"`
}

// Details is the part of a record that a store keeps as JSON.
type Details struct {
	// Key and Strategy come from the decision record. Strategy is empty for a Turn without an answer. In records of
	// older versions, Key is then empty, too.
	Key      string `json:"key,omitempty"`
	Strategy string `json:"strategy,omitempty"`
	// Tools are the names of the called tools, sorted, at most MaxTools.
	Tools []string `json:"tools,omitempty"`
	// PromptRenderHash and ContextHash are the hashes of the prompt and of the context.
	PromptRenderHash string `json:"promptRenderHash,omitempty"`
	ContextHash      string `json:"contextHash,omitempty"`
	// Labels are the selected labels of the Turn, at most MaxLabels.
	Labels map[string]string `json:"labels,omitempty"`
	// Prompt identifies the prompt. It is nil if no prompt was made.
	Prompt *Prompt `json:"prompt,omitempty"`
	// Models are the models that were asked, in the order in which they were first asked, at most MaxModels. A model
	// has several elements if the cost of some of its requests is not known, or if its costs are in several currencies.
	Models []Model `json:"models,omitempty"`
	// ElapsedMilliseconds is the time from the first entry of the journal to the end of the Turn.
	ElapsedMilliseconds int64 `json:"elapsedMilliseconds,omitempty"`
	// TurnNumber is the place of the Turn in the history of its Session, from 1, or 0 if it has no place.
	TurnNumber int64 `json:"turnNumber,omitempty"`
	// Incomplete is true if parts were left out because they are not known or exceed MaxDetails.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Prompt identifies a version of a prompt.
type Prompt struct {
	// Profile is the name of the PromptProfile. ID, Version and Tags come from its spec.
	Profile string   `json:"profile"`
	ID      string   `json:"id"`
	Version string   `json:"version"`
	Tags    []string `json:"tags,omitempty"`
}

// Model is the usage of one model, without the usage of sub-agents: their Turns have records of their own.
type Model struct {
	// Provider is the name of the ModelProvider, or NAMESPACE/NAME if the reference to the ModelProvider has a
	// namespace.
	Provider string      `json:"provider"`
	Model    string      `json:"model"`
	Usage    model.Usage `json:"usage"`
	// Cost is the cost of Usage. It is nil if it is not known; a cost of zero is not nil.
	Cost *Cost `json:"cost,omitempty"`
}

// Cost is an amount of money.
type Cost struct {
	// Amount is a decimal number.
	Amount string `json:"amount"`
	// Currency is an ISO 4217 code.
	Currency string `json:"currency"`
}

// Feedback is one person's feedback on the answer of a Turn.
type Feedback struct {
	// User is the name of the person. New feedback of the same person replaces the old feedback.
	User string `json:"user"`
	// Score is a decimal number from 0 to 1, with at most four digits after the point.
	Score string `json:"score"`
	// Comment is a text of at most MaxComment bytes, or empty. It is deleted together with the Turn.
	Comment string `json:"comment,omitempty"`
	// Time is the time of the feedback, in UTC.
	Time time.Time `json:"time"`
}

// Evaluation is the evaluation of the answer of a Turn by a judge, without the judge's reason.
type Evaluation struct {
	// Judge and Kind are the name and the kind of the judge.
	Judge string `json:"judge"`
	Kind  string `json:"kind"`
	// Verdict is Passed, BelowThreshold or Failed.
	Verdict string `json:"verdict"`
	// Score and Threshold are decimal numbers from 0 to 1. Score is empty if Verdict is Failed.
	Score     string `json:"score,omitempty"`
	Threshold string `json:"threshold"`
	// Provider and Model name the model that was asked. They are empty if no model was asked.
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model,omitempty"`
	// Usage is the usage of all requests of the evaluation. It is not part of the usage of the Turn.
	Usage model.Usage `json:"usage"`
	// Cost is the cost of Usage, or nil if it is not known.
	Cost *Cost `json:"cost,omitempty"`
	// Time is the time of the evaluation, in UTC.
	Time time.Time `json:"time"`
}

// Expense is the usage of requests to one model for the work after a Turn.
type Expense struct {
	// For is the kind of the work: evaluation or memory.
	For string `json:"for"`
	// Provider and Model name the model that was asked. If a record has no space for another model, they are empty, and
	// the cost counts as unknown.
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model,omitempty"`
	// Requests is the number of requests.
	Requests int64       `json:"requests"`
	Usage    model.Usage `json:"usage"`
	// Cost is the cost of Usage, or nil if it is not known.
	Cost *Cost `json:"cost,omitempty"`
}

// kindsOfWork is the number of values of Expense.For.
const kindsOfWork = 2

// isAddable reports whether an expense can be added to another one.
func (e *Expense) isAddable(o *Expense) bool {
	return e.For == o.For && e.Provider == o.Provider && e.Model == o.Model && (e.Cost == nil) == (o.Cost == nil) &&
		(e.Cost == nil || e.Cost.Currency == o.Cost.Currency)
}

// WithExpense returns a list of expenses with one more expense. If the list has an expense for the same work, model and
// currency, WithExpense adds the new expense to it. WithExpense returns an error for a cost that is not a number.
func WithExpense(all []Expense, e Expense) ([]Expense, error) {
	all = slices.Clone(all)
	at := slices.IndexFunc(all, func(o Expense) bool { return e.isAddable(&o) })
	if at < 0 && len(all) >= MaxExpenses-kindsOfWork {
		e.Provider, e.Model, e.Cost = "", "", nil
		at = slices.IndexFunc(all, func(o Expense) bool { return e.isAddable(&o) })
	}
	if at < 0 {
		return append(all, e), nil
	}
	sum := &all[at]
	sum.Requests += e.Requests
	sum.Usage = sum.Usage.Add(e.Usage)
	if e.Cost == nil {
		return all, nil
	}
	a, errA := decimal.NewFromString(sum.Cost.Amount)
	b, errB := decimal.NewFromString(e.Cost.Amount)
	if err := errors.Join(errA, errB); err != nil {
		return nil, fmt.Errorf("failed to add the cost of an expense: %w", err)
	}
	sum.Cost = &Cost{Amount: a.Add(b).String(), Currency: e.Cost.Currency}
	return all, nil
}

// ErrFull is returned for feedback that a record cannot keep.
var ErrFull = fmt.Errorf("the record has the feedback of %d people, and keeps no more", MaxFeedback)

// WithFeedback returns the feedback of a record with the feedback of one more person. It returns ErrFull if the record
// already has the feedback of MaxFeedback other people.
func WithFeedback(all []Feedback, f Feedback) ([]Feedback, error) {
	all = slices.DeleteFunc(slices.Clone(all), func(o Feedback) bool { return o.User == f.User })
	if len(all) >= MaxFeedback {
		return nil, ErrFull
	}
	return append(all, f), nil
}

// WithoutComments returns the feedback of a record without the comments, and whether there were comments.
func WithoutComments(all []Feedback) (kept []Feedback, had bool) {
	kept = slices.Clone(all)
	for i := range kept {
		had = had || kept[i].Comment != ""
		kept[i].Comment = ""
	}
	return kept, had
}

// WithTurnNumber returns the JSON of details with another number of the Turn. It keeps the fields of newer versions,
// unless the details exceed MaxDetails.
func WithTurnNumber(details []byte, number int64) ([]byte, error) {
	var r Record
	fields := map[string]json.RawMessage{}
	if err := errors.Join(json.Unmarshal(details, &r.Details), json.Unmarshal(details, &fields)); err != nil {
		return nil, fmt.Errorf("failed to read the details of a record: %w", err)
	}
	fields["turnNumber"] = strconv.AppendInt(nil, number, 10)
	all, err := json.Marshal(fields)
	if err != nil || len(all) <= MaxDetails {
		return all, err
	}
	r.TurnNumber = number
	return r.MarshalDetails()
}

// MarshalDetails returns the details as JSON of at most MaxDetails bytes. If they are larger, it leaves out parts in
// this order: labels, tags, tools, all models after the fourth, and then everything except Strategy,
// ElapsedMilliseconds and TurnNumber.
func (r *Record) MarshalDetails() ([]byte, error) {
	d := r.Details
	d.Incomplete = d.Incomplete || len(d.Tools) > MaxTools || len(d.Models) > MaxModels || len(d.Labels) > MaxLabels
	d.Tools, d.Models = d.Tools[:min(len(d.Tools), MaxTools)], d.Models[:min(len(d.Models), MaxModels)]
	if len(d.Labels) > MaxLabels {
		d.Labels = nil
	}
	for _, drop := range []func(){
		func() {},
		func() { d.Labels = nil },
		func() {
			if d.Prompt != nil {
				p := *d.Prompt
				p.Tags, d.Prompt = nil, &p
			}
		},
		func() { d.Tools = nil },
		func() { d.Models = d.Models[:min(len(d.Models), 4)] },
		func() {
			d = Details{ElapsedMilliseconds: d.ElapsedMilliseconds, TurnNumber: d.TurnNumber, Strategy: d.Strategy, Incomplete: true}
		},
	} {
		drop()
		data, err := json.Marshal(d)
		if err != nil {
			return nil, fmt.Errorf("failed to marshal the record of turn %q: %w", r.UID, err)
		}
		if len(data) <= MaxDetails {
			return data, nil
		}
		d.Incomplete = true
	}
	return nil, fmt.Errorf("failed to marshal the record of turn %q: it has more than %d bytes", r.UID, MaxDetails)
}
