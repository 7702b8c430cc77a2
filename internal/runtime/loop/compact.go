package loop

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	// keptExchanges is the number of newest exchanges that stay whole: this number from earlier Turns and the same
	// number of steps of this Turn.
	keptExchanges = 2
	// replacedShareDivisor is a divisor: the messages that a compaction replaces must use at least
	// 1/replacedShareDivisor of the room for the prompt, because a summary of less text costs more than it saves.
	replacedShareDivisor = 20
	// maxSummaryChars bounds a summary, in characters.
	maxSummaryChars = 16_000
	// summaryCut is the end of a summary that was cut off at a length limit.
	summaryCut = "\n[the summary was cut]"
)

// fittingRequest returns the request for a step. It compacts older messages first if they do not fit, and reports
// whether it did.
func (run *runner) fittingRequest(ctx context.Context, c *Candidate, p *prepare.Prompt, number int) (*modelRequest, bool, error) {
	q, err := run.stepRequest(ctx, c, p, number)
	if err != nil {
		return nil, false, err
	}
	if err := run.warn(c, q.tokens); err != nil {
		return q, false, err
	}
	compacted, err := run.compact(ctx, c, p, q)
	if err != nil || !compacted {
		return q, false, err
	}
	q, err = run.stepRequest(ctx, c, p, number)
	return q, true, err
}

// warn records, once per Turn, that the conversation has come close to the context window.
func (run *runner) warn(c *Candidate, tokens int64) error {
	if run.State.Warning != nil || !c.reaches(tokens, run.Context.WarnPercent) {
		return nil
	}
	return run.Record(journal.Record{Kind: journal.ContextWarned, Payload: Warning{Tokens: tokens, ContextWindow: c.ContextWindow}})
}

// compact makes the model summarize older messages in two cases, each at most once per step: the prompt has reached
// Context.CompactPercent, or the endpoint has refused the prompt as too long. It reports whether older messages were
// replaced.
//
// If compaction is not possible, the step uses the long prompt, because the endpoint may still accept it. If an earlier
// run received a summary, compact uses that summary, so that it is not paid for twice.
func (run *runner) compact(ctx context.Context, c *Candidate, p *prepare.Prompt, q *modelRequest) (bool, error) {
	s := run.State
	forced := s.tooLong(q.step, c) && !s.forced(q.step)
	older, from, kept := s.replaceable(ctx, p.Messages, forced)
	if s.unusedSummary() == nil {
		if !run.wantsSummary(c, q, older, forced) {
			return false, nil
		}
		request := run.summaryRequest(c, q, s.earlierSummary(p), s.toSummarize(ctx, p.Messages, from, kept), forced)
		replied, err := run.askOptional(ctx, c, request)
		if waitsForBudget(err) && !forced {
			return false, nil // the long prompt may do; a prompt that was refused needs the summary
		}
		if err != nil || !replied {
			return false, err
		}
	}
	unused := s.unusedSummary()
	if unused == nil {
		return false, nil // the reply is unusable
	}
	summary := strings.TrimSpace(unused.Reply.Text)
	if head, leftOut := untrusted.Cap(summary, maxSummaryChars-len(summaryCut)); leftOut > len(summaryCut) ||
		unused.Reply.FinishReason == model.FinishLength {
		summary = head + summaryCut
	}
	return true, run.Record(journal.Record{Kind: journal.Compacted, Payload: Compaction{
		From: from, KeptHistory: kept, Summary: summary, Forced: forced, Tokens: q.tokens,
	}})
}

// wantsSummary reports whether the model must be asked for a summary.
func (run *runner) wantsSummary(c *Candidate, q *modelRequest, older []model.Message, forced bool) bool {
	s := run.State
	switch {
	case !run.Context.Compact, len(older) == 0, s.gaveUp(q.step, ForCompaction, c, run.placeOf(c)) != nil, s.uselessSummary(q.step):
		return false
	case forced:
		return true
	}
	return c.reaches(q.tokens, run.Context.CompactPercent) && s.otherReply(q.step, ForCompaction) == nil &&
		countMessages(older) >= c.room()/replacedShareDivisor
}

// askOptional sends a candidate a request that the Turn can do without, and reports whether there is a reply. If the
// request fails or the Turn's limits do not allow it, the run continues without a reply. If a Budget allows the request
// only later, the caller gets an error for which waitsForBudget is true, and decides.
func (run *runner) askOptional(ctx context.Context, c *Candidate, q *modelRequest) (bool, error) {
	end, err := run.ask(ctx, c, q)
	if _, ok := errors.AsType[*model.Error](err); ok {
		return false, nil
	}
	return err == nil && end == nil, err
}

// waitsForBudget reports whether an error says that a request was not sent, because a Budget allows it only later.
func waitsForBudget(err error) bool {
	parked, ok := errors.AsType[*Parked](err)
	return ok && parked.Budget != nil
}

// replaceable returns three things: the messages that a new summary would replace in addition to an earlier
// summary, the first step that stays whole, and the number of messages at the end of the history that stay whole.
//
// The result depends only on the journal, so one run can use the summary that another run requested. The newest
// exchanges stay whole, both of earlier Turns and of this Turn. If the endpoint refused the prompt as too long (forced)
// and these exchanges are its larger part, fewer of them stay whole.
func (s *State) replaceable(ctx context.Context, prepared []model.Message, forced bool) (older []model.Message, from, keptHistory int) {
	first, earlier := s.uncompacted(prepared)
	next := len(s.Steps) + 1
	for keep := 2 * keptExchanges; ; keep-- {
		from = max(first, next-min(keep, keptExchanges))
		cut := lastExchanges(earlier, max(0, keep-keptExchanges)) // exchanges of this Turn are given up last
		older = slices.Concat(earlier[:cut], s.between(ctx, first, from, s.exchange))
		if !forced || keep == 0 || size(older) > size(earlier[cut:])+size(s.between(ctx, from, next, s.exchange)) {
			return older, from, len(earlier) - cut
		}
	}
}

// toSummarize returns the messages that replaceable returns, as the model receives them for the summary. The Session
// keeps the summary, so they do not contain the texts that output policies have refused.
func (s *State) toSummarize(ctx context.Context, prepared []model.Message, from, keptHistory int) []model.Message {
	first, earlier := s.uncompacted(prepared)
	return slices.Concat(earlier[:len(earlier)-keptHistory], s.between(ctx, first, from, s.keptExchange))
}

// uncompacted returns the first step and the messages of the history that no summary of this Turn has replaced.
func (s *State) uncompacted(prepared []model.Message) (first int, earlier []model.Message) {
	earlier = history(prepared)
	if c := s.compaction(); c != nil {
		return c.From, earlier[max(0, len(earlier)-c.KeptHistory):]
	}
	return 1, earlier
}

// lastExchanges returns the index at which the last n exchanges of a history begin. Each exchange begins with a
// user message.
func lastExchanges(messages []model.Message, n int) int {
	at := len(messages)
	for ; n > 0 && at > 0; n-- {
		for at--; at > 0 && messages[at].Role != model.RoleUser; at-- {
		}
	}
	return at
}

// between returns the exchanges from one step up to, but not including, another step. exchange returns the messages of
// one step: as the model receives them, or as they are kept.
func (s *State) between(
	ctx context.Context, from, to int, exchange func(context.Context, Step) []model.Message,
) []model.Message {
	var all []model.Message
	for _, step := range s.Steps {
		if from <= step.Step && step.Step < to {
			all = append(all, exchange(ctx, step)...)
		}
	}
	return all
}

// size returns the length of messages in bytes.
func size(messages []model.Message) int {
	n := 0
	for _, m := range messages {
		n += len(m.Content) + m.ProviderData.Size()
		for _, c := range m.ToolCalls {
			n += len(c.Name) + len(c.Arguments) + len(c.ProviderData)
		}
	}
	return n
}

// tooLong reports whether a candidate has refused the prompt of a step for its length.
func (s *State) tooLong(step int, c *Candidate) bool {
	for _, a := range s.FailedRequests {
		sameModel := a.Provider == c.ProviderName && a.Model == c.Model
		if sameModel && a.Step == step && a.Purpose == ForStep && a.Kind == model.ContextLength {
			return true
		}
	}
	return false
}

// forced reports whether messages were replaced for a step because its prompt was too long.
func (s *State) forced(step int) bool {
	summaries := s.summaries()
	for i, c := range s.Compactions {
		if c.Forced && i < len(summaries) && summaries[i].Step == step {
			return true
		}
	}
	return false
}

// compactedFor returns the step for which messages were last replaced, or 0.
func (s *State) compactedFor() int {
	n := len(s.Compactions)
	if summaries := s.summaries(); 0 < n && n <= len(summaries) {
		return summaries[n-1].Step
	}
	return 0
}

// unusedSummary returns the summary that has not replaced messages yet, or nil. Each summary replaces messages
// once.
func (s *State) unusedSummary() *Step {
	if summaries := s.summaries(); len(summaries) > len(s.Compactions) {
		return &summaries[len(s.Compactions)]
	}
	return nil
}

// summaries returns the summaries of the model in order, one for each compaction.
func (s *State) summaries() []Step {
	var all []Step
	for _, a := range s.OtherReplies {
		if a.Purpose == ForCompaction && a.useful() {
			all = append(all, a)
		}
	}
	return all
}

// uselessSummary reports whether the model was asked for a summary for a step and gave an unusable one.
func (s *State) uselessSummary(step int) bool {
	for _, a := range s.OtherReplies {
		if a.Step == step && a.Purpose == ForCompaction && !a.useful() {
			return true
		}
	}
	return false
}

// otherReply returns the newest reply with this purpose for a step, or nil.
func (s *State) otherReply(step int, purpose Purpose) *Step {
	for i := len(s.OtherReplies) - 1; i >= 0; i-- {
		if s.OtherReplies[i].Step == step && s.OtherReplies[i].Purpose == purpose {
			return &s.OtherReplies[i]
		}
	}
	return nil
}
