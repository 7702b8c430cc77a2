package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// loadHistory adds the earlier messages of the Session to the input, and returns the number of the Turn in its
// Session.
func (r *run) loadHistory(ctx context.Context, in *prepare.Input) (number int64, err error) {
	if r.in.Session == nil {
		return max(1, r.in.Number), nil
	}
	c, err := session.Recall(ctx, r.engine.Journal, r.in.Session.UID, r.memory.admitHistory)
	if errors.Is(err, journal.ErrDamaged) {
		return 0, &preparationError{fmt.Errorf("the history of session %q cannot be used: delete the Session to start a new history: %w",
			r.in.Session.Name, err)}
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

// restoreHistory adds the history to an input that was read from the journal with a reference to it.
func (r *run) restoreHistory(ctx context.Context, in *prepare.Input, h history) error {
	c, err := r.referenced(ctx, h)
	if err == nil {
		in.Turn.Summary, in.Turn.History = c.Summary(), historyOf(c)
	}
	return err
}

// reference returns the Turn's reference to the journal of its Session, or nil if it has none.
func (r *run) reference() *history {
	if r.history != nil {
		return r.history
	}
	return r.replayed.reference()
}

// addToSession adds the Turn to the history of its Session. It returns the result of the Turn, with the place of the
// Turn in the history. addToSession is called even if an earlier run has ended the Turn, because that run may have been
// cut off before this point. If the history is damaged or was written by a newer version, the result names the failure
// and has no place. The recorded end of the Turn does not change.
func (r *run) addToSession(result *Result) (*Result, error) {
	s := r.in.Session
	if s == nil {
		return result, nil
	}
	since := session.ExternalState{Known: s.Known}
	if f := r.replayed.input; f != nil {
		since.Number = f.Number
	}
	if h := r.reference(); h != nil && h.SessionUID != s.UID {
		return result, nil // the Turn's Session is gone, and s is another Session of the same name
	} else if h != nil {
		since.After = h.Through
	}
	var place session.End
	var failure error // an error that ends this run
	steps := r.engine.steps()
	ok := steps.Do("session history", func() (err error) {
		if !r.hasAskedModel() {
			place, err = session.Latest(r.life, r.engine.Journal, s.UID, r.memory.admit)
		} else {
			place, err = r.appendToHistory(result, since)
		}
		if err != nil && !errors.Is(err, journal.ErrDamaged) && !errors.Is(err, journal.ErrNewer) {
			failure = fmt.Errorf("failed to add the turn to the history of session %q: %w", s.Name, err)
			return nil
		}
		return err
	})
	if failure != nil {
		return nil, failure
	}
	if !ok {
		failed := *result
		failed.Record.Failures = append(slices.Clip(failed.Record.Failures), steps.Failures...)
		return &failed, nil
	}
	r.spans.addedToSession(place.Added)
	r.place = place.Number
	result.Session = &SessionPosition{
		UID: s.UID, Name: s.Name, Number: place.Number, Last: place.Last,
		Totals: place.Totals.CombinedWith(s.Known),
	}
	return result, nil
}

// hasAskedModel reports whether a request to a model may have been sent. The journal also has requests that were
// refused before they were sent, for example while an endpoint limits the rate of requests. They must not use up the
// Session.
func (r *run) hasAskedModel() bool { return r.counts().ModelRequests > 0 }

// appendToHistory adds the Turn to the history of its Session.
func (r *run) appendToHistory(result *Result, since session.ExternalState) (session.End, error) {
	t := r.addition(result)
	var err error
	if t.Compaction, err = r.compaction(); err != nil {
		return session.End{}, err
	}
	return session.Add(r.life, r.in.Session.UID, t, since, r.options())
}

// compaction returns the newest summary of this Turn, however the Turn ended. Later Turns of the Session begin with
// it instead of the older messages. compaction returns nil if there is no summary, or if the history that it
// replaces is gone.
func (r *run) compaction() (*session.Compaction, error) {
	newest, h := r.replayed.loop.LastCompaction(), r.reference()
	if newest == nil || h == nil {
		return nil, nil //nolint:nilnil // because "none" is an answer, not an error
	}
	c, err := h.verify(session.Outline(r.life, r.engine.Journal, h.SessionUID, h.First, h.Through, r.memory.admit))
	switch {
	case errors.Is(err, session.ErrLost), errors.Is(err, journal.ErrDamaged):
		return nil, nil //nolint:nilnil // because "none" is an answer, not an error
	case err != nil:
		return nil, err
	}
	return &session.Compaction{Summary: newest.Summary, First: c.Kept(newest.KeptHistory)}, nil
}

// addition returns the Turn as the history of its Session keeps it: with its usage, including that of its sub-agents,
// and, if it has an answer that is not withheld, with all its messages.
func (r *run) addition(result *Result) session.Turn {
	t := session.Turn{UID: r.in.UID, Name: r.in.Name, Namespace: r.in.Namespace, Usage: result.Record.Usage, Cost: result.Record.Cost}
	if subs := result.SubAgents; subs != nil {
		t.Usage, t.Cost = t.Usage.Add(subs.Usage), sumOf(result.Record, subs)
	}
	if t.Cost == nil {
		t.KnownCost = r.knownCost()
	}
	last := r.replayed.loop.LastStep()
	if last == nil {
		return t
	}
	t.ContextTokens = last.Reply.Usage.InputTokens + last.Reply.Usage.OutputTokens
	if p := r.replayed.prompt; p != nil && result.Stop.answered() && !result.Withheld {
		user := p.Messages[len(p.Messages)-1] // the user's message is the last one of a prompt
		t.Messages = append([]model.Message{{Role: user.Role, Content: user.Content + attachment.Note(user.Attachments)}},
			messagesAfterUser(r.life, &r.replayed.loop, result, r.reference() != nil)...)
	}
	return t
}

// knownCost returns the part of the cost that is known, for the Turn and its sub-agents.
func (r *run) knownCost() (known decimal.Decimal) {
	known = finalize.Known(r.spendings())
	for spent := range r.replayed.loop.SubAgentUsage {
		known = known.Add(spent.KnownCost())
	}
	return known
}

// sumOf returns the cost of a Turn and its sub-agents. It returns nil if a cost is not known or the currencies
// differ. A Turn without usage has no cost of its own.
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

// withoutDraft drops the newest reply and the results of its calls.
func withoutDraft(all []model.Message) []model.Message {
	n := len(all)
	for n > 0 && all[n-1].Role == model.RoleTool {
		n--
	}
	return all[:max(0, n-1)]
}

// messagesAfterUser returns the messages after the user's message, as later Turns receive them. Rejected drafts, and
// the results of tools that output policies have refused, are left out. The last message is the answer, even if a tool
// wrote it. hasHistory is true if the Turn refers to the history of its Session.
func messagesAfterUser(ctx context.Context, s *loop.State, result *Result, hasHistory bool) []model.Message {
	var all []model.Message
	first := 1
	if c := s.LastCompaction(); c != nil && hasHistory {
		first = c.From // the Session keeps the summary, which replaces the steps before it
	}
	for _, m := range s.KeptMessagesFrom(ctx, first) {
		if m.Name == loop.MessageViolations {
			all = withoutDraft(all)
			continue
		}
		if d := m.ProviderData; d == nil || !d.Lasting {
			m = m.WithoutProviderData()
		}
		all = append(all, m)
	}
	switch n := len(all); {
	case n > 0 && all[n-1].Role == model.RoleAssistant && len(all[n-1].ToolCalls) == 0:
		all[n-1].Content = result.WithoutSources()
	case result.Stop == StopToolEnded:
		// A tool has written this text. As a message of the assistant, it must not contain more than the tool's own
		// message, which is fenced.
		text, _ := untrusted.Cap(result.WithoutSources(), loop.MaxToolMessage)
		all = append(all, model.Message{Role: model.RoleAssistant, Content: untrusted.Neutral(text, "")})
	case result.Text != "":
		all = append(all, model.Message{Role: model.RoleAssistant, Content: result.WithoutSources()})
	}
	return all
}
