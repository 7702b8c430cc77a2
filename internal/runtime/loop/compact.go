package loop

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

const (
	// keptExchanges is how many of the newest exchanges stay whole: of the Turns before as many as of the steps of this one.
	keptExchanges = 2
	// worthwhile is the part of the room that a compaction must free, as a divisor: a summary of less costs more than it gives.
	worthwhile = 20
	// maxSummaryChars bounds a summary.
	maxSummaryChars = 16_000
	// summaryCut ends a summary that was cut off at a limit of its length.
	summaryCut = "\n[the summary was cut]"
)

// fitting is the question for a step, after older messages were replaced if there is not room enough. It says whether they were.
func (in *Input) fitting(ctx context.Context, c *Candidate, p *prepare.Prepared, number int) (*question, bool, error) {
	q, err := in.question(c, p, number)
	if err != nil {
		return nil, false, err
	}
	if err := in.warn(c, q.tokens); err != nil {
		return q, false, err
	}
	compacted, err := in.compact(ctx, c, p, q)
	if err != nil || !compacted {
		return q, false, err
	}
	q, err = in.question(c, p, number)
	return q, true, err
}

// warn journals, once, that the conversation has come near the context window.
func (in *Input) warn(c *Candidate, tokens int64) error {
	if in.State.Warning != nil || !c.reaches(tokens, in.Context.WarnPercent) {
		return nil
	}
	return in.Record(journal.Record{Kind: journal.ContextWarned, Payload: Warning{Tokens: tokens, ContextWindow: c.ContextWindow}})
}

// compact has older messages summarised if the prompt is critical, or if the endpoint has said that it is too long, each once a
// step, and says whether it has. Where it cannot, the step is asked as it is: the endpoint knows best. A summary that an earlier
// run was given is used, and not bought again.
func (in *Input) compact(ctx context.Context, c *Candidate, p *prepare.Prepared, q *question) (bool, error) {
	s := in.State
	forced := s.tooLong(q.step) && !s.forced(q.step)
	older, from, kept := s.replaceable(p.Messages, forced)
	if s.unusedSummary() == nil {
		if !in.wanted(c, q, older, forced) {
			return false, nil
		}
		ask := in.summaryQuestion(c, q, s.earlierSummary(p), older, forced)
		if asked, err := in.askAside(ctx, c, ask); err != nil || !asked {
			return false, err
		}
	}
	aside := s.unusedSummary()
	if aside == nil {
		return false, nil // a reply that says nothing
	}
	summary := strings.TrimSpace(aside.Reply.Text)
	if kept, out := fence.Cap(summary, maxSummaryChars-len(summaryCut)); out > len(summaryCut) || aside.Reply.FinishReason == model.FinishLength {
		summary = kept + summaryCut
	}
	return true, in.Record(journal.Record{Kind: journal.Compacted, Payload: Compaction{
		From: from, KeptHistory: kept, Summary: summary, Forced: forced, Tokens: q.tokens,
	}})
}

// wanted says whether a summary is to be asked for.
func (in *Input) wanted(c *Candidate, q *question, older []model.Message, forced bool) bool {
	s := in.State
	switch {
	case !in.Context.Compact, len(older) == 0, s.failed(q.step, ForCompaction, c), s.vainSummary(q.step):
		return false
	case forced:
		return true
	}
	return c.reaches(q.tokens, in.Context.CompactPercent) && s.aside(q.step, ForCompaction) == nil &&
		countMessages(older) >= c.room()/worthwhile
}

// askAside asks one candidate for something beside the steps, and says whether there is a reply. That there is none, because
// the request failed or the budget does not allow it, stops nothing.
func (in *Input) askAside(ctx context.Context, c *Candidate, q *question) (bool, error) {
	end, err := in.ask(ctx, c, q)
	if _, ok := errors.AsType[*model.Error](err); ok {
		return false, nil
	}
	return err == nil && end == nil, err
}

// replaceable are the messages that a summary would replace, an earlier summary aside, the first step that it would keep, and how
// many messages at the end of the history. It depends on the journal alone: a summary that one run has asked for is used by
// another. The newest exchanges stay whole, those of the Turns before as well as those of this one. A prompt that is too long keeps
// fewer of them, if these are the larger part.
func (s *State) replaceable(prepared []model.Message, forced bool) (older []model.Message, from, keptHistory int) {
	first, said := 1, history(prepared)
	if c := s.compaction(); c != nil {
		first, said = c.From, said[max(0, len(said)-c.KeptHistory):]
	}
	next := len(s.Steps) + 1
	for keep := 2 * keptExchanges; ; keep-- {
		from = max(first, next-min(keep, keptExchanges))
		before := lastExchanges(said, max(0, keep-keptExchanges)) // those of this Turn are the last to go
		older = slices.Concat(said[:before], s.between(first, from))
		if !forced || keep == 0 || size(older) > size(said[before:])+size(s.between(from, next)) {
			return older, from, len(said) - before
		}
	}
}

// lastExchanges is where the last so many exchanges of a history begin. Each begins with what the user said.
func lastExchanges(said []model.Message, n int) int {
	at := len(said)
	for ; n > 0 && at > 0; n-- {
		for at--; at > 0 && said[at].Role != model.RoleUser; at-- {
		}
	}
	return at
}

// between are the exchanges from one step to another, which is not among them.
func (s *State) between(from, to int) []model.Message {
	var all []model.Message
	for _, step := range s.Steps {
		if from <= step.Step && step.Step < to {
			all = append(all, s.exchange(step)...)
		}
	}
	return all
}

// size is the length of messages, in bytes.
func size(messages []model.Message) int {
	n := 0
	for _, m := range messages {
		n += len(m.Content)
		for _, c := range m.ToolCalls {
			n += len(c.Name) + len(c.Arguments)
		}
	}
	return n
}

// tooLong says whether an endpoint has refused the prompt of a step for its length.
func (s *State) tooLong(step int) bool {
	for _, a := range s.Attempts {
		if a.Step == step && a.Purpose == ForStep && a.Kind == model.ContextLength {
			return true
		}
	}
	return false
}

// forced says whether messages were replaced for a step because its prompt was too long.
func (s *State) forced(step int) bool {
	summaries := s.summaries()
	for i, c := range s.Compactions {
		if c.Forced && i < len(summaries) && summaries[i].Step == step {
			return true
		}
	}
	return false
}

// compactedFor is the step for which messages were replaced last; 0 if they never were.
func (s *State) compactedFor() int {
	n := len(s.Compactions)
	if summaries := s.summaries(); 0 < n && n <= len(summaries) {
		return summaries[n-1].Step
	}
	return 0
}

// unusedSummary is a summary that has not replaced messages yet; nil if there is none. Each that was given replaces some.
func (s *State) unusedSummary() *Step {
	if summaries := s.summaries(); len(summaries) > len(s.Compactions) {
		return &summaries[len(s.Compactions)]
	}
	return nil
}

// summaries are those that the model gave, in order: one for each compaction.
func (s *State) summaries() []Step {
	var all []Step
	for _, a := range s.Asides {
		if a.Purpose == ForCompaction && a.useful() {
			all = append(all, a)
		}
	}
	return all
}

// vainSummary says whether the model was asked for a summary for a step and said nothing.
func (s *State) vainSummary(step int) bool {
	for _, a := range s.Asides {
		if a.Step == step && a.Purpose == ForCompaction && !a.useful() {
			return true
		}
	}
	return false
}

// aside is the newest reply beside the steps that is for a step; nil if there is none.
func (s *State) aside(step int, purpose Purpose) *Step {
	for i := len(s.Asides) - 1; i >= 0; i-- {
		if s.Asides[i].Step == step && s.Asides[i].Purpose == purpose {
			return &s.Asides[i]
		}
	}
	return nil
}

// failed says whether a candidate has given up a request beside the steps.
func (s *State) failed(step int, purpose Purpose, c *Candidate) bool {
	n := 0
	for _, a := range s.Attempts {
		if a.Step != step || a.Purpose != purpose || a.Provider != c.ProviderName || a.Model != c.Model || a.Kind == model.Cancelled {
			continue
		}
		if n++; !a.Kind.Retryable() || n >= c.Retry.MaxAttempts {
			return true
		}
	}
	return false
}
