package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

// recall puts what was said in the Session before this Turn into what the messages are made of.
func (r *run) recall(ctx context.Context, in *prepare.Input) error {
	if r.in.Session == nil {
		return nil
	}
	history, err := session.Load(ctx, r.engine.Journal, r.in.Session.UID)
	if errors.Is(err, journal.ErrDamaged) {
		return &preparationError{fmt.Errorf("the history of session %q cannot be used: delete the Session to begin it anew: %w", r.in.Session.Name, err)}
	}
	if err != nil {
		return fmt.Errorf("failed to read the history of session %q: %w", r.in.Session.Name, err)
	}
	for _, m := range history.Messages() {
		in.Turn.History = append(in.Turn.History, prepare.HistoryMessage{
			Role: m.Role, Content: m.Content, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID,
		})
	}
	return nil
}

// remembered adds the Turn, which has ended, to the history of its Session, and returns its result. It does so also where
// an earlier run has ended the Turn: that may have been cut off before it came to this. A history that makes no sense, or was
// written by a newer version, takes nothing from the Turn, whose own record is whole: the result says so and has no place.
func (r *run) remembered() (*Result, error) {
	result, s := r.past.result, r.in.Session
	if s == nil {
		return result, nil
	}
	var history session.History
	var err error
	if len(r.past.loop.Requests) == 0 {
		history, err = session.Load(r.life, r.engine.Journal, s.UID)
	} else {
		history, err = session.Add(r.life, s.UID, r.said(), r.options())
	}
	if errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewer) {
		apart := *result
		apart.Record.Failures = append(slices.Clip(apart.Record.Failures), "session history: "+err.Error())
		return &apart, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to keep the turn in the history of session %q: %w", s.Name, err)
	}
	result.Session = &Place{UID: s.UID, Name: s.Name, Number: history.Number(r.in.UID), Totals: history.Totals()}
	if n := len(history); n > 0 {
		result.Session.Last = history[n-1].Name
	}
	return result, nil
}

// said is what the Turn adds to its conversation: all messages, if it was answered.
func (r *run) said() session.Turn {
	result := r.past.result
	t := session.Turn{UID: r.in.UID, Name: r.in.Name, Usage: result.Record.Usage, Cost: result.Record.Cost}
	if t.Cost == nil {
		for _, s := range r.spendings() {
			if s.Cost != nil {
				t.KnownCost = t.KnownCost.Add(s.Cost.Amount)
			}
		}
	}
	last := r.past.loop.LastStep()
	if last == nil {
		return t
	}
	t.ContextTokens = last.Reply.Usage.InputTokens + last.Reply.Usage.OutputTokens
	if p := r.past.prepared; p != nil && (result.Stop == StopCompleted || result.Stop == StopMaxSteps) {
		user := p.Messages[len(p.Messages)-1] // the user's message is the last one of a prompt
		t.Messages = append([]model.Message{{Role: user.Role, Content: user.Content}}, r.past.loop.Messages()...)
	}
	return t
}
