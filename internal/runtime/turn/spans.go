package turn

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// Observer receives the parts of a Turn, for traces and metrics. Its methods must not block, and must be safe for
// concurrent use.
type Observer interface {
	// Observe receives a part once the journal has its end. The part and everything that it points to are valid only
	// during the call, and must not be changed.
	Observe(s *Span)
	// Within returns the context for a request or a call. The adapter uses this context to tell the other side to which
	// part of the trace the request or the call belongs. key is the key of the part.
	Within(ctx context.Context, key string) context.Context
}

// SpanKind is the kind of a part of a Turn.
type SpanKind string

// The kinds of parts. The Turn itself is not among them.
const (
	// SpanPreparation is the preparation of messages.
	SpanPreparation SpanKind = "prepare"
	// SpanStep is a step: its requests, and the calls of its reply.
	SpanStep SpanKind = "step"
	// SpanRequest is a request to a model.
	SpanRequest SpanKind = "request"
	// SpanApproval is the time from a request for approval to the decision.
	SpanApproval SpanKind = "approval"
	// SpanCall is a tool call, over all its attempts.
	SpanCall SpanKind = "call"
	// SpanCheck is the check of an answer against the output policies, from the answer on. Its requests to models are
	// parts of their own.
	SpanCheck SpanKind = "check"
	// SpanFinalization is the end of a Turn: its result is made and recorded, with its artifacts.
	SpanFinalization SpanKind = "finalize"
	// SpanHistory is the time from the end of a Turn until the history of its Session has the Turn.
	SpanHistory SpanKind = "history"
	// SpanFollowUp is an attempt of the work that follows the end of a Turn. Its requests to models are parts of it.
	SpanFollowUp SpanKind = "follow_up"
)

// The failures of parts that are not error classes.
const (
	// FailureInterrupted is the failure of a request without a recorded end, because its run was killed.
	FailureInterrupted = "Interrupted"
	// FailureDenied is the failure of a request for approval that was denied or has expired.
	FailureDenied = "Denied"
	// FailurePolicy is the failure of a check of an answer that must not be delivered.
	FailurePolicy = string(StopOutputPolicy)
	// FailurePartial is the failure of a finalization that could not make all parts of the result.
	FailurePartial = "PartiallyFinalized"
)

// Span is a part of a Turn that has ended. Its times come from journal entries.
//
// A part that contains others, in this Turn or in the Turn of a sub-agent, is observed at the end of the Turn: a step,
// and the call of a sub-agent. A run that is killed before this end observes none of them. Any other part is observed
// when it ends. If a run is killed after the last entry of its Turn, the next run observes the end again, and each part
// is equal to the part that the earlier run has observed.
type Span struct {
	Kind SpanKind
	// Key identifies the part within the Turn, in all runs. Parent is the key of the part that contains it, or empty if
	// the Turn contains it directly.
	Key, Parent string
	Start, End  time.Time
	// Step is the number of the step, from 1. It is 0 before the first step.
	Step int
	// Failure is the class of the failure, or empty.
	Failure string
	// Again is true if an earlier run, which recorded the end of the Turn, may have observed the part, too.
	Again bool
	// Report describes the prompt, and Tags are the tags of its profile. They are set if Kind is SpanPreparation.
	Report *prepare.Report
	Tags   []string
	// Request is the request to a model. Candidate is its model, or nil if the chain no longer contains this model.
	// Reply is the reply, and Failed the failure; both are nil if the request was interrupted. They are set if Kind is
	// SpanRequest.
	Request   *loop.Request
	Candidate *loop.Candidate
	Reply     *loop.Step
	Failed    *loop.FailedRequest
	// Intent is the newest intent of a call, and Result its end. They are set if Kind is SpanCall.
	Intent *loop.Intent
	Result *loop.CallResult
	// Approval is the request for approval, and Decision the decision. They are set if Kind is SpanApproval.
	Approval *loop.Approval
	Decision *loop.Decision
	// Check is the check of an answer. It is set if Kind is SpanCheck.
	Check *loop.AnswerCheck
	// Work is the kind of the work. It is set if Kind is SpanFollowUp.
	Work task.Kind
}

// interval is the time of a part.
type interval struct{ start, end time.Time }

// spans follows the journal of a Turn and reports its parts. The zero value, without an observer, reports nothing.
type spans struct {
	observer Observer
	chain    []loop.Candidate
	// preparing is the time at which this run began to prepare messages. It is zero after the messages were recorded.
	preparing time.Time
	// tags are the tags of the prompt.
	tags []string
	// request is the request whose end is not recorded yet, or nil. begun is the time of its entry.
	request *loop.Request
	begun   time.Time
	// steps are the times of the steps, from step 1. calls are the times of the calls that have an intent.
	steps []interval
	calls map[callKey]interval
	// otherReplies is the number of replies that are not steps.
	otherReplies int
	// answered is the time of the newest text that may be an answer: a reply to a step, or the result of a call.
	answered time.Time
	// ended is the time of the end of the Turn. again is true if an earlier run has recorded it.
	ended time.Time
	again bool
}

// StepKey returns the key of a step. For step 0 it returns the key of the Turn, which is empty.
func StepKey(step int) string {
	if step == 0 {
		return ""
	}
	return fmt.Sprintf("step/%d", step)
}

// apply processes an entry that was folded into the state. fresh is true if this run has appended the entry.
func (s *spans) apply(e journal.Entry, state *replayed, fresh bool) {
	if s.observer == nil {
		return
	}
	observe := func(part *Span) {
		part.Again = !fresh
		s.observer.Observe(part)
	}
	emit := func(part *Span) {
		if fresh {
			observe(part)
		}
	}
	l := &state.loop
	switch e.Kind { //nolint:exhaustive // because the other kinds neither begin nor end a part
	case journal.PreparationInput:
		s.tags = state.input.Input.Profile.Tags
	case journal.Prepared:
		if fresh { // otherwise, the report would be read for nothing
			observe(&Span{
				Kind: SpanPreparation, Key: fmt.Sprintf("prepare/%d", e.Seq), Start: earlier(s.preparing, e.Time), End: e.Time,
				Report: state.preparation(), Tags: s.tags,
			})
		}
		s.preparing = time.Time{}
	case journal.ModelRequested:
		s.interruptRequest(e, emit)
		s.request, s.begun = &l.Requests[len(l.Requests)-1], e.Time
		s.extend(s.request.Step, e.Time)
	case journal.ModelFailed:
		f := &l.FailedRequests[len(l.FailedRequests)-1]
		if f.Kind == model.OverBudget { // the refused request was never sent, so this is not the end of an earlier request
			s.interruptRequest(e, emit)
		}
		r := cmp.Or(s.request, &loop.Request{Step: f.Step, Purpose: f.Purpose, Provider: f.Provider, Model: f.Model, Place: f.Place})
		part := s.requestSpan(e, r)
		part.Failed, part.Failure = f, string(f.Kind)
		emit(part)
	case journal.ModelReplied:
		reply := s.newestReply(l)
		r := cmp.Or(s.request, &loop.Request{Step: reply.Step, Purpose: reply.Purpose, Provider: reply.Provider, Model: reply.Model})
		part := s.requestSpan(e, r)
		part.Reply = reply
		emit(part)
		if reply.Purpose == loop.ForStep {
			s.answered = e.Time
		}
	case journal.ToolIntended:
		s.begin(&l.Intents[len(l.Intents)-1], e.Time)
	case journal.ToolFinished:
		s.answered = e.Time
		if part := s.callSpan(&l.CallResults[len(l.CallResults)-1], l, e.Time); part != nil && part.Result.Spent == nil {
			emit(part)
		}
	case journal.ApprovalDecided:
		if part := s.approvalSpan(e, l); part != nil {
			emit(part)
		}
	case journal.OutputChecked:
		emit(s.checkSpan(e, &l.Checks[len(l.Checks)-1]))
	case journal.Finalized:
		s.ended, s.again = e.Time, !fresh
		s.interruptRequest(e, observe)
		s.end(l, observe)
		observe(finalization(e, state.result))
	}
}

// earlier returns the earlier one of two times, of which the first may be zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// extend moves the end of a step to a time.
func (s *spans) extend(step int, to time.Time) {
	const maxStep = 10_000 // above any limit on steps, so that a damaged entry does not use up the memory
	if step < 1 || step > maxStep {
		return
	}
	for len(s.steps) < step {
		s.steps = append(s.steps, interval{to, to})
	}
	s.steps[step-1].end = to
}

// interruptRequest reports the request without a recorded end, if there is one. It uses the start as the end.
func (s *spans) interruptRequest(e journal.Entry, emit func(*Span)) {
	if s.request == nil {
		return
	}
	part := s.requestSpan(journal.Entry{Seq: e.Seq, Time: s.begun}, s.request)
	part.Failure = FailureInterrupted
	emit(part)
}

// requestSpan returns the part of a request that ends with an entry, and closes the request.
func (s *spans) requestSpan(e journal.Entry, r *loop.Request) *Span {
	part := &Span{
		Kind: SpanRequest, Key: RequestKey(r.ID), Parent: StepKey(r.Step), Start: e.Time, End: e.Time, Step: r.Step, Request: r,
		Candidate: s.candidate(r),
	}
	if s.request != nil {
		part.Start = earlier(s.begun, e.Time)
	}
	if r.ID == "" { // nothing was sent, or an older version has sent it
		part.Key = RequestKey(fmt.Sprint(e.Seq))
	}
	s.request = nil
	s.extend(r.Step, e.Time)
	return part
}

// RequestKey returns the key of a request with this ID.
func RequestKey(id string) string { return "request/" + id }

// candidate returns the model of a request.
func (s *spans) candidate(r *loop.Request) *loop.Candidate {
	for i := range s.chain {
		if c := &s.chain[i]; c.ProviderName == r.Provider && c.Model == r.Model && (r.Place == 0 || r.Place == i+1) {
			return c
		}
	}
	return nil
}

// newestReply returns the reply that was folded in last.
func (s *spans) newestReply(l *loop.State) *loop.Step {
	if n := len(l.OtherReplies); n > s.otherReplies {
		s.otherReplies = n
		return &l.OtherReplies[n-1]
	}
	return l.LastStep()
}

// CallKey returns the key of a call.
func CallKey(step int, callID string) string { return fmt.Sprintf("call/%d/%s", step, callID) }

// begin notes the time of an intent. A call begins with its first intent.
func (s *spans) begin(i *loop.Intent, at time.Time) {
	key := callKey{i.Step, i.CallID}
	if _, known := s.calls[key]; !known {
		if s.calls == nil {
			s.calls = map[callKey]interval{}
		}
		s.calls[key] = interval{at, at}
	}
	s.extend(i.Step, at)
}

// callSpan returns the part of a call that has ended. It returns nil for a call without an intent, which was not made.
func (s *spans) callSpan(f *loop.CallResult, l *loop.State, at time.Time) *Span {
	key := callKey{f.Step, f.CallID}
	known, made := s.calls[key]
	s.extend(f.Step, at)
	if !made {
		return nil
	}
	known.end = at
	s.calls[key] = known
	return s.callPart(f, l)
}

// callPart returns the part of a call whose times are known.
func (s *spans) callPart(f *loop.CallResult, l *loop.State) *Span {
	times := s.calls[callKey{f.Step, f.CallID}]
	part := &Span{
		Kind: SpanCall, Key: CallKey(f.Step, f.CallID), Parent: StepKey(f.Step), Start: earlier(times.start, times.end), End: times.end,
		Step: f.Step, Intent: newestIntent(l, f), Result: f,
	}
	if f.Outcome != loop.Succeeded && f.Outcome != loop.Reused {
		part.Failure = cmp.Or(string(f.Class), string(f.Outcome))
	}
	return part
}

// newestIntent returns the newest intent of a call.
func newestIntent(l *loop.State, f *loop.CallResult) *loop.Intent {
	for i := range slices.Backward(l.Intents) {
		if n := &l.Intents[i]; n.Step == f.Step && n.CallID == f.CallID {
			return n
		}
	}
	return nil
}

// approvalSpan returns the part of a request for approval that was decided, or nil if there is no such request.
func (s *spans) approvalSpan(e journal.Entry, l *loop.State) *Span {
	var d loop.Decision
	if err := json.Unmarshal(e.Payload, &d); err != nil {
		return nil // the state has not accepted the entry either
	}
	for i := range slices.Backward(l.Approvals) {
		a := &l.Approvals[i]
		if a.Step != d.Step || a.CallID != d.CallID || a.Request != d.Request {
			continue
		}
		s.extend(a.Step, e.Time)
		part := &Span{
			Kind: SpanApproval, Key: fmt.Sprintf("approval/%d", e.Seq), Parent: StepKey(a.Step), Start: earlier(a.Requested, e.Time),
			End: e.Time, Step: a.Step, Approval: a, Decision: &d,
		}
		if !d.Approved {
			part.Failure = FailureDenied
		}
		return part
	}
	return nil
}

// checkSpan returns the part of a check of an answer.
func (s *spans) checkSpan(e journal.Entry, c *loop.AnswerCheck) *Span {
	s.extend(c.Step, e.Time)
	part := &Span{
		Kind: SpanCheck, Key: fmt.Sprintf("check/%d", e.Seq), Parent: StepKey(c.Step), Start: earlier(s.answered, e.Time), End: e.Time,
		Step: c.Step, Check: c,
	}
	if c.Refused() {
		part.Failure = FailurePolicy
	}
	return part
}

// finalization returns the part of the end of the Turn. The part takes no time if an older version has ended the Turn.
func finalization(e journal.Entry, result *Result) *Span {
	var f struct{ Begun time.Time }
	_ = json.Unmarshal(e.Payload, &f) // the state has read the entry
	part := &Span{Kind: SpanFinalization, Key: "finalize", Start: earlier(f.Begun, e.Time), End: e.Time}
	if len(result.Record.Failures) > 0 {
		part.Failure = FailurePartial
	}
	return part
}

// addedToSession reports that the Turn was added to the history of its Session at the given time. It does nothing if
// the time is zero, which means that the Turn was not added.
func (s *spans) addedToSession(at time.Time) {
	if s.observer == nil || at.IsZero() {
		return
	}
	s.observer.Observe(&Span{Kind: SpanHistory, Key: "history", Start: earlier(s.ended, at), End: at, Again: s.again})
}

// end reports the steps and the calls of sub-agents, which are observed only at the end of the Turn.
func (s *spans) end(l *loop.State, observe func(*Span)) {
	for i, times := range s.steps {
		observe(&Span{
			Kind: SpanStep, Key: StepKey(i + 1), Start: earlier(times.start, times.end), End: times.end, Step: i + 1,
		})
	}
	for i := range l.CallResults {
		f := &l.CallResults[i]
		if _, made := s.calls[callKey{f.Step, f.CallID}]; made && f.Spent != nil {
			observe(s.callPart(f, l))
		}
	}
}
