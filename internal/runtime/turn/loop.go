package turn

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// beforeLoop returns the input of the loop, or the result of a Turn that asks no model, or an error. This function and
// afterLoop are separate because the frame of Engine.Run is on the stack of each waiting Turn.
//
//go:noinline
func (r *run) beforeLoop(ctx context.Context) (*loop.Input, *Result, error) {
	if err := r.closeReservation(); err != nil {
		result, err := r.stopped(err)
		return nil, result, err
	}
	if err := r.copyOutcomes(); err != nil {
		return nil, nil, err
	}
	if result, err := r.withoutLoop(ctx); result != nil || err != nil {
		return nil, result, err
	}
	tools := r.ensureTools
	if r.in.Undo != nil {
		tools = r.planUndo
	}
	if err := tools(ctx); err != nil {
		result, err := r.stopped(err)
		return nil, result, err
	}
	r.steps = len(r.replayed.loop.Steps)
	return r.loopInput(), nil, nil
}

// afterLoop turns the end or the error of the loop into a result. It parks the Turn if the Turn must wait.
//
//go:noinline
func (r *run) afterLoop(end *loop.End, err error) (*Result, error) {
	if waits, isParked := errors.AsType[*loop.Parked](err); isParked {
		return r.stopped(r.park(waits))
	}
	if err != nil {
		return r.stopped(err)
	}
	if len(r.replayed.loop.Steps) > r.steps && r.in.HoldAnswer != nil && r.in.HoldAnswer() {
		return nil, loop.ErrInterrupted
	}
	return r.resultOf(end)
}

// withoutLoop ends a Turn that asks no model. It returns neither a result nor an error if the loop must run.
func (r *run) withoutLoop(ctx context.Context) (*Result, error) {
	if r.cancelled() {
		return r.finalize(StopCancelled, "the turn was cancelled")
	}
	if len(r.in.Chain) == 0 {
		return r.finalize(StopDeadline, r.overdue(nil))
	}
	if err := r.compile(ctx); err != nil {
		return r.stopped(err)
	}
	if r.in.PrepareOnly {
		return r.prepareOnly(ctx)
	}
	return nil, nil //nolint:nilnil // because the loop comes next
}

// prepareOnly makes the messages without asking a model.
func (r *run) prepareOnly(ctx context.Context) (*Result, error) {
	if _, err := r.prepare(ctx, r.in.Chain[r.startOfChain()]); err != nil {
		return r.stopped(err)
	}
	return r.finalize(StopPrepared, "the prompt was prepared; no model was asked")
}

// resultOf returns the result of the Turn for the end of the loop.
func (r *run) resultOf(end *loop.End) (*Result, error) {
	last := r.replayed.loop.LastStep()
	switch {
	case end.Reason == loop.CallsMade:
		return r.finalizeUndo()
	case end.Reason == loop.ToolEnded:
		return r.finalize(StopToolEnded, end.Message)
	case end.Reason == loop.ModelRefused:
		return r.finalize(StopContentFilter, end.Message)
	case end.Reason == loop.OverBudget:
		return r.finalize(StopBudget, end.Message)
	case end.Reason == loop.PolicyViolated:
		return r.finalize(StopOutputPolicy, end.Message)
	case last.Reply.FinishReason == model.FinishLength:
		return r.finalize(StopMaxOutputTokens, r.cutOffMessage(last))
	case end.Reason == loop.OutputInvalid:
		return r.finalize(StopOutputInvalid, end.Message)
	case end.Reason == loop.OutOfSteps:
		return r.finalize(StopMaxSteps, end.Message)
	}
	return r.finalize(StopCompleted, end.Message)
}

// compile compiles the schema of the answer, if the Turn has one.
func (r *run) compile(ctx context.Context) (err error) {
	if len(r.in.Output) == 0 {
		return nil
	}
	if r.output, err = schema.Cached(ctx, r.in.Output); err != nil {
		return endsTurn(invalid.Field("Turn spec.output.schema", "%s", err))
	}
	return nil
}

// loopInput returns the input of the loop.
func (r *run) loopInput() *loop.Input {
	in := &loop.Input{
		Config: r.in.Config, TurnUID: r.in.UID, Start: r.startOfChain(), Prepare: r.prepare, Content: r.content,
		Tools: r.tools, Offered: r.offers,
		Nonce: r.exposed().Nonce, ArtifactPrefix: artifactPrefix(r.turnNumber()), Now: r.engine.Now,
		Output: r.output, Reflect: r.reflects(),
		Policies: r.policies, Citations: r.citations,
		State: &r.replayed.loop, Record: r.record, Keep: r.keepReply, CountReply: r.memory.countReply, Hold: r.memory.hold,
		NextSeq: r.log.Next, Abandoned: func() bool { return r.life.Err() != nil },
	}
	if r.in.Undo != nil {
		in.Key = r.keyOfUndo
	}
	if o := r.in.Observer; o != nil {
		in.ForRequest = func(ctx context.Context, id string) context.Context { return o.Within(ctx, RequestKey(id)) }
		in.ForCall = func(ctx context.Context, step int, callID string) context.Context {
			return o.Within(ctx, CallKey(step, callID))
		}
	}
	return in
}

// park records that the run ends because the Turn must wait, unless the Turn's object is gone or has ended. It returns
// waits, or the error of the write.
//
// A run that has written nothing records its park as well, unless the run just before it has parked the Turn: the
// executor of an older run may only be paused, and its writes are refused only after an entry of a newer epoch.
func (r *run) park(waits *loop.Parked) error {
	if !r.gone && (r.began || r.parkedIn != r.in.Epoch-1) {
		if err := r.record(journal.Record{
			Kind:    journal.RunParked,
			Payload: parked{len(waits.Approvals), waits.Turns, waits.SubAgentCalls, budgetOf(waits)},
		}); err != nil {
			return err
		}
	}
	return waits
}

// budgetOf returns the name of the budget that a Turn waits for, or an empty string.
func budgetOf(waits *loop.Parked) string {
	if waits.Budget == nil {
		return ""
	}
	return waits.Budget.Name
}

// ensureTools determines the tools of the Turn and their current effects before the first request. If an older version
// has prepared the Turn and recorded no tools, the Turn has only the tools of its Input.
func (r *run) ensureTools(ctx context.Context) error {
	if err := r.tighten(ctx); err != nil {
		return err
	}
	switch {
	case r.replayed.prompt == nil && r.replayed.input == nil:
		return r.ensureInput(ctx)
	case r.replayed.exposure == nil:
		return r.record(journal.Record{Kind: journal.ToolsExposed, Payload: tool.Exposure{Nonce: rand.Text()}})
	}
	return nil
}

// turnNumber returns the number of the Turn in its Session, from 1. All runs of the Turn use the number that the first
// run had. It is 0 in journals of older versions.
func (r *run) turnNumber() int64 {
	if f := r.replayed.input; f != nil {
		return f.Number
	}
	return r.number
}

// reflects reports whether the model checks its draft in this Turn.
func (r *run) reflects() bool {
	number := r.turnNumber()
	return r.in.ReflectEvery > 0 && number > 0 && number%int64(r.in.ReflectEvery) == 0
}

// startOfChain returns the index in the chain at which the run starts: the index of the candidate for which the newest
// messages were prepared. If the chain has this candidate several times, startOfChain returns the first index that is
// not before the candidate of the newest request. It returns 0 if no messages were prepared.
func (r *run) startOfChain() int {
	p := r.replayed.prompt
	if p == nil {
		return 0
	}
	isPrepared := func(c loop.Candidate) bool { return c.ProviderName == p.Provider && c.Model == p.Model }
	asked := min(max(r.replayed.loop.Place()-1, 0), len(r.in.Chain))
	if offset := slices.IndexFunc(r.in.Chain[asked:], isPrepared); offset >= 0 {
		return asked + offset
	}
	return max(slices.IndexFunc(r.in.Chain, isPrepared), 0)
}

// stopped returns the result of the Turn if an error of the run ends the Turn. Otherwise it returns the error.
func (r *run) stopped(err error) (*Result, error) {
	if failure, ok := errors.AsType[*preparationError](err); ok {
		return r.finalize(StopPreparationError, failure.Error())
	}
	if failure, ok := errors.AsType[*loop.Error](err); ok {
		return r.finalize(stopOf(failure.Kind), failure.Message)
	}
	if large, ok := errors.AsType[*TooLargeError](err); ok {
		return r.finalize(StopBudget, large.Message)
	}
	if lost, ok := errors.AsType[*lostHistoryError](err); ok {
		return r.finalize(StopInterrupted, lost.Error())
	}
	if errors.Is(err, errDeadline) {
		return r.finalize(StopDeadline, r.overdue(err))
	}
	if errors.Is(err, errCancelled) {
		return r.finalize(StopCancelled, "the turn was cancelled while it ran")
	}
	return nil, err
}

// overdue returns the message of a Turn whose time is over. err is the error that ended its run, or nil. If a request
// was waiting for the gate of its provider, or if requests for the reply that is missing failed, the message says so,
// because this may be why the time was too short. It names only failures after which the request is repeated: others
// take no time.
func (r *run) overdue(err error) string {
	if r.in.TimeOver != "" {
		return r.in.TimeOver
	}
	message := fmt.Sprintf("the turn reached its time limit of %s", r.in.Limit)
	failures, earlier := r.replayed.loop.OpenFailures(), ""
	for _, f := range failures {
		if f.Kind.Retryable() {
			earlier = "; an earlier request failed: " + f.Message
		}
	}
	if gate, ok := errors.AsType[*loop.GateError](err); ok {
		message += fmt.Sprintf(" while %s, whose rate limits or circuit breaker held it back", gate)
		return message + cmp.Or(earlier, ": raise the limits of the ModelProvider, or limits.timeoutSeconds")
	}
	const remedy = ": raise limits.timeoutSeconds or ask for less"
	if n := len(failures); n > 0 && failures[n-1].Kind == model.Cancelled {
		newest := failures[n-1]
		return fmt.Sprintf("%s while model %q of provider %q worked%s%s", message, newest.Model, newest.Provider, remedy, earlier)
	}
	return message + cmp.Or(earlier, remedy)
}

// cutOffMessage returns the message of a Turn whose answer was cut off.
func (r *run) cutOffMessage(step *loop.Step) string {
	switch {
	case step.Reply.TooLong:
		return fmt.Sprintf("the model's answer is longer than Capstan keeps, and was cut off after %d bytes: "+
			"lower the agent's parameters.maxOutputTokens, or ask for a shorter answer",
			len(step.Reply.Text))
	case r.replayed.loop.CutByWindow():
		return fmt.Sprintf("the model's answer was cut off after %d output tokens, because the model's context window left no more: "+
			"shorten history or context, use a model with a larger window, or ask for a shorter answer", step.Reply.Usage.OutputTokens)
	}
	return fmt.Sprintf("the model's answer was cut off after %d output tokens: raise the agent's "+
		"parameters.maxOutputTokens, or ask for a shorter answer",
		step.Reply.Usage.OutputTokens)
}
