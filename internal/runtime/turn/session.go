package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

// recall puts what was said in the Session before this Turn into what the messages are made of, and returns the number that the
// Turn has in it.
func (r *run) recall(ctx context.Context, in *prepare.Input) (number int64, err error) {
	if r.in.Session == nil {
		return 1, nil
	}
	c, err := session.Recall(ctx, r.engine.Journal, r.in.Session.UID)
	if errors.Is(err, journal.ErrDamaged) {
		return 0, &preparationError{fmt.Errorf("the history of session %q cannot be used: delete the Session to begin it anew: %w", r.in.Session.Name, err)}
	}
	if err != nil {
		return 0, fmt.Errorf("failed to read the history of session %q: %w", r.in.Session.Name, err)
	}
	in.Turn.Summary, in.Turn.History, r.conversation = c.Summary(), historyOf(c), c
	known := r.in.Session.Known
	if known.Turns > c.Totals.Turns && r.in.Session.OnLoss != nil {
		if err := r.in.Session.OnLoss(ctx, c.Totals.MissingOf(known)); err != nil {
			return 0, err
		}
	}
	in.Turn.MissingTurns = c.Totals.MissingOf(known)
	r.history = &history{SessionUID: r.in.Session.UID, First: c.First, Through: c.Through, SHA256: c.SHA256}
	return max(c.Totals.Turns, known.Turns) + 1, nil
}

// remind puts the history that the Turn refers to back into what the messages are made of.
func (r *run) remind(ctx context.Context, in *prepare.Input, h history) error {
	c, err := r.referenced(ctx, h)
	if err == nil {
		in.Turn.Summary, in.Turn.History = c.Summary(), historyOf(c)
	}
	return err
}

// reference is what the Turn refers to in the journal of its Session; nil for a Turn that does not.
func (r *run) reference() *history {
	if r.history != nil {
		return r.history
	}
	return r.past.reference()
}

// remembered adds the Turn, which has ended, to the history of its Session, and returns its result. It does so also where
// an earlier run has ended the Turn: that may have been cut off before it came to this. A history that makes no sense, or was
// written by a newer version, takes nothing from the Turn, whose own record is whole: the result says so and has no place.
func (r *run) remembered() (*Result, error) {
	result, s := r.past.result, r.in.Session
	if s == nil {
		return result, nil
	}
	since := session.Since{Known: s.Known}
	if f := r.past.input; f != nil {
		since.Number = f.Number
	}
	if h := r.reference(); h != nil && h.SessionUID != s.UID {
		return result, nil // its Session is gone, and this one is another of the same name
	} else if h != nil {
		since.After = h.Through
	}
	var place session.Place
	var err error
	if len(r.past.loop.Requests) == 0 {
		place, err = session.Latest(r.life, r.engine.Journal, s.UID)
	} else {
		place, err = r.added(since)
	}
	if errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewer) {
		apart := *result
		apart.Record.Failures = append(slices.Clip(apart.Record.Failures), "session history: "+err.Error())
		return &apart, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to keep the turn in the history of session %q: %w", s.Name, err)
	}
	result.Session = &Place{UID: s.UID, Name: s.Name, Number: place.Number, Last: place.Last, Totals: place.Totals.Whole(s.Known)}
	return result, nil
}

// added adds the Turn to the history of its Session.
func (r *run) added(since session.Since) (session.Place, error) {
	t := r.said()
	var err error
	if t.Compaction, err = r.compaction(); err != nil {
		return session.Place{}, err
	}
	return session.Add(r.life, r.in.Session.UID, t, since, r.options())
}

// compaction is what later Turns of the Session begin with in place of older messages: the newest summary that this Turn has paid
// for, whatever its end. It is nil where there is none, or where what it stands for is gone.
func (r *run) compaction() (*session.Compaction, error) {
	newest, h := r.past.loop.LastCompaction(), r.reference()
	if newest == nil || h == nil {
		return nil, nil //nolint:nilnil // because "none" is an answer, not an error
	}
	c, err := h.read(r.life, r.engine.Journal)
	switch {
	case errors.Is(err, session.ErrLost), errors.Is(err, journal.ErrDamaged):
		return nil, nil //nolint:nilnil // because "none" is an answer, not an error
	case err != nil:
		return nil, err
	}
	return &session.Compaction{Summary: newest.Summary, First: c.Kept(newest.KeptHistory)}, nil
}

// said is what the Turn adds to its conversation: what it took with the Turns of its sub-agents, and all messages, if it was
// answered.
func (r *run) said() session.Turn {
	result := r.past.result
	t := session.Turn{UID: r.in.UID, Name: r.in.Name, Namespace: r.in.Namespace, Usage: result.Record.Usage, Cost: result.Record.Cost}
	if subs := result.SubAgents; subs != nil {
		t.Usage, t.Cost = t.Usage.Add(subs.Usage), sumOf(result.Record, subs)
	}
	if t.Cost == nil {
		t.KnownCost = r.knownCost()
	}
	last := r.past.loop.LastStep()
	if last == nil {
		return t
	}
	t.ContextTokens = last.Reply.Usage.InputTokens + last.Reply.Usage.OutputTokens
	if p := r.past.prepared; p != nil && result.Stop.answered() {
		user := p.Messages[len(p.Messages)-1] // the user's message is the last one of a prompt
		t.Messages = append([]model.Message{{Role: user.Role, Content: user.Content}}, exchanged(&r.past.loop, result, r.reference() != nil)...)
	}
	return t
}

// knownCost is what is known of the cost of the Turn and of its sub-agents'.
func (r *run) knownCost() (known decimal.Decimal) {
	for _, s := range r.spendings() {
		if s.Cost != nil {
			known = known.Add(s.Cost.Amount)
		}
	}
	for spent := range r.past.loop.SubAgents {
		switch {
		case spent.Cost != nil:
			known = known.Add(spent.Cost.Amount)
		case spent.Known != nil:
			known = known.Add(*spent.Known)
		}
	}
	return known
}

// sumOf is the cost of a Turn and of its sub-agents'; nil where it is not known, or in two currencies. A Turn that has used
// nothing has none.
func sumOf(r finalize.Record, subs *SubAgents) *finalize.Cost {
	if r.Cost == nil && r.Usage == (model.Usage{}) {
		return subs.Cost
	}
	if r.Cost == nil || subs.Cost == nil || r.Cost.Currency != subs.Cost.Currency {
		return nil
	}
	own, err := decimal.NewFromString(r.Cost.Amount)
	theirs, theirErr := decimal.NewFromString(subs.Cost.Amount)
	if err != nil || theirErr != nil {
		return nil
	}
	return &finalize.Cost{Amount: own.Add(theirs).String(), Currency: r.Cost.Currency}
}

// withoutDraft drops the newest reply, with the results of its calls.
func withoutDraft(all []model.Message) []model.Message {
	n := len(all)
	for n > 0 && all[n-1].Role == model.RoleTool {
		n--
	}
	return all[:max(0, n-1)]
}

// exchanged is what was said after the user's message, as later Turns are told it: without drafts that did not fit a schema,
// and with the answer at the end, whoever gave it.
func exchanged(s *loop.State, result *Result, referred bool) []model.Message {
	var all []model.Message
	first := 1
	if c := s.LastCompaction(); c != nil && referred {
		first = c.From // the summary, which the Session keeps, stands for the steps before
	}
	for _, m := range s.MessagesFrom(first) {
		if m.Name == loop.MessageViolations {
			all = withoutDraft(all)
			continue
		}
		all = append(all, m)
	}
	switch n := len(all); {
	case n > 0 && all[n-1].Role == model.RoleAssistant && len(all[n-1].ToolCalls) == 0:
		all[n-1].Content = result.Text
	case result.Stop == StopToolEnded:
		// A tool has written it: as a message of the assistant it must not say more than the tool's own message, which is fenced.
		text, _ := fence.Cap(result.Text, loop.MaxToolMessage)
		all = append(all, model.Message{Role: model.RoleAssistant, Content: fence.Neutral(text, "")})
	case result.Text != "":
		all = append(all, model.Message{Role: model.RoleAssistant, Content: result.Text})
	}
	return all
}
