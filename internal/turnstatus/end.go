package turnstatus

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Finish ends a Turn with the result of the engine.
func Finish(t *v1alpha1.Turn, r *turn.Result, now time.Time) {
	s := &t.Status
	s.StopReason = v1alpha1.StopReason(r.Stop)
	writeProgress(t, turn.Progress{
		Counts: r.Counts, Calls: r.Calls, Usage: r.Record.Usage, Cost: r.Record.Cost, KnownCost: r.Record.KnownCost,
		SubAgents: r.SubAgents,
	})
	s.Preparation, s.Result, s.Decision = translate.PreparationOf(r), translate.ResultOf(r), translate.DecisionOf(r)
	s.Prices, s.PolicyViolations = translate.Prices(r.Spent), translate.PolicyViolations(r)
	s.Redactions = translate.Redactions(r)
	s.Descendants = int32(min(max(r.Descendants, 0), math.MaxInt32))
	if n := r.MissingTurns; n > 0 {
		setCondition(t, v1alpha1.ConditionHistoryComplete, metav1.ConditionFalse, v1alpha1.ReasonHistoryLost,
			fmt.Sprintf("the history of %d earlier turns of the session was lost, and the model did not receive it", n), now)
	}
	status, reason := succeeded(r.Stop)
	now = end(t, status, reason, r.Message, now)
	switch {
	case r.Preparation != nil:
		message := "the prompt was prepared"
		if len(r.ToolServersMissing) > 0 {
			message += ", but " + WithoutTools(r.ToolServersMissing)
		}
		setCondition(t, v1alpha1.ConditionPrepared, metav1.ConditionTrue, v1alpha1.TurnReasonPrepared, message, now)
	case r.Stop == turn.StopPreparationError:
		setCondition(t, v1alpha1.ConditionPrepared, metav1.ConditionFalse, reason, r.Message, now)
	}
	if r.Preparation != nil && r.Stop != turn.StopPrepared {
		setCondition(t, v1alpha1.ConditionExecuted, status, reason, r.Message, now)
	}
	if f := r.Record.Failures; len(f) > 0 {
		setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionFalse, v1alpha1.TurnReasonPartiallyFinalized,
			"these steps failed: "+strings.Join(f, "; "), now)
		return
	}
	setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionTrue, v1alpha1.TurnReasonFinalized,
		"usage, cost, sources and decision record are complete", now)
}

// WithoutTools returns the part of a message that says that a Turn ran without the tools of these ToolServers,
// because none of their tools were known.
func WithoutTools(servers []string) string {
	kind := "ToolServer "
	if len(servers) > 1 {
		kind = "ToolServers "
	}
	return "without the tools of " + kind + strings.Join(servers, ", ") + ", which had never been reached when the turn began"
}

// FinishRefused ends a Turn whose result the API server rejects, with the facts that the status has. It sets no stop
// reason, because the stop reason may be the value that the API server rejects.
func FinishRefused(t *v1alpha1.Turn, message string, now time.Time) {
	end(t, metav1.ConditionFalse, v1alpha1.TurnReasonModelFailed, message, now)
}

// End ends a Turn that no executor runs now. Either it never ran, or earlier runs handed it back or were lost. Only a
// run that handed it back is known to have reported all its calls; another one may have made calls that the status does
// not list. The facts in the status are kept. reason must be the reason of a failure in the table outcomes.
func End(t *v1alpha1.Turn, reason, message string, now time.Time) {
	if b := t.Status.Executor; b != nil {
		if b.Name != "" {
			b.JournalComplete = false // the last run did not hand the Turn back, so it may have made more calls
		}
		b.Name = ""
		endPendingCalls(&t.Status, b.SideEffects, b.SideEffects && !b.JournalComplete)
	}
	meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionPrepared)
	t.Status.StopReason = stopReason(reason)
	end(t, metav1.ConditionFalse, reason, message, now)
}

// Cut holds the facts about a run that has no result, because its journal cannot be used or because of a fault within
// Capstan.
type Cut struct {
	// Stop is why the Turn ends, and Message says why to users.
	Stop    turn.Stop
	Message string
	// Loss describes the loss of the journal. It is nil if the journal is not lost.
	Loss *Loss
	// SubAgents are the usages of the sub-agents' Turns.
	SubAgents []*tool.Spent
}

// CutOff ends a Turn whose run had no result. It keeps the facts in the status and adds progress, the newest progress
// of the run, which may be nil. Calls that had not ended get an unknown outcome.
func CutOff(t *v1alpha1.Turn, progress *turn.Progress, c Cut, now time.Time) {
	Run{Progress: progress}.write(t, false)
	s := &t.Status
	addSubAgents(s, c.SubAgents)
	s.StopReason = v1alpha1.StopReason(c.Stop)
	missing := "the run had no result"
	if c.Loss != nil {
		missing = "the journal was lost"
		endPendingCalls(s, c.Loss.SideEffects, c.Loss.SideEffects)
	} else {
		endPendingCalls(s, s.Executor.SideEffects, s.Executor.SideEffects && !NothingBegun(s.Executor))
	}
	status, reason := succeeded(c.Stop)
	end(t, status, reason, c.Message, now)
	if c.Loss != nil {
		setCondition(t, v1alpha1.ConditionJournalLost, metav1.ConditionTrue, c.Loss.Reason,
			"the journal of the turn was lost: "+c.Loss.Facts, now)
	}
	setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionFalse, v1alpha1.TurnReasonPartiallyFinalized,
		"the record has only the facts of the status: "+missing, now)
}

// end writes the main condition of a Turn that has ended, and its times. It returns the time of the end.
func end(t *v1alpha1.Turn, status metav1.ConditionStatus, reason, message string, now time.Time) time.Time {
	s := &t.Status
	unpark(s, now)
	Observe(t)
	if s.StartTime != nil {
		if s.StartTime.After(now) {
			now = s.StartTime.Time // a clock was wrong: a Turn must not end before it starts
		}
		s.DurationMilliseconds = new(now.Sub(s.StartTime.Time).Milliseconds())
	}
	s.CompletionTime = new(metav1.NewMicroTime(now))
	setCondition(t, v1alpha1.ConditionSucceeded, status, reason, message, now)
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionReconciling)
	if status == metav1.ConditionFalse {
		setCondition(t, v1alpha1.ConditionStalled, metav1.ConditionTrue, reason, message, now)
	}
	return now
}

// addSubAgents adds the usage of sub-agents' Turns to the status of their caller. The status already counts the Turns
// whose answers the caller has received; the calls in the status name these Turns. If the status does not list all
// calls, addSubAgents sets the usage to the larger of the status's sum and the sum of spent.
func addSubAgents(s *v1alpha1.TurnStatus, spent []*tool.Spent) {
	all := turn.SumOf(spent)
	if all == nil {
		return
	}
	if before := s.SubAgentUsage; before != nil {
		known := translate.SubAgentUsage(&v1alpha1.Turn{Status: v1alpha1.TurnStatus{SubAgentUsage: before}})
		if s.Steps != nil && int(s.Steps.ToolCalls) > len(s.ToolCalls) {
			if all.Usage.InputTokens+all.Usage.OutputTokens <= before.TotalTokens {
				return
			}
		} else {
			uncounted := slices.DeleteFunc(slices.Clone(spent), func(c *tool.Spent) bool {
				return slices.ContainsFunc(s.ToolCalls, func(r v1alpha1.ToolCallRecord) bool { return r.Turn == c.Turn })
			})
			all = turn.SumOf(append(uncounted, known))
		}
	}
	s.SubAgentUsage = translate.Usage(all.Usage, all.Cost, all.KnownCost)
}

// endPendingCalls gives each pending call of a status an unknown outcome.
//  1. If sideEffects is true, the Turn may have called tools with side effects, and the calls count in
//     unknownOutcomes. A call that waited for approval counts, too: it may have been approved and made after the
//     status was written.
//  2. If unlisted is true, the Turn may have made calls that the status does not list, so unknownOutcomes is at least
//     1.
func endPendingCalls(s *v1alpha1.TurnStatus, sideEffects, unlisted bool) {
	if s.Steps == nil {
		s.Steps = &v1alpha1.StepCounts{}
	}
	for i := range s.ToolCalls {
		c := &s.ToolCalls[i]
		if c.Outcome != v1alpha1.ToolCallPending {
			continue
		}
		c.Outcome = v1alpha1.ToolCallUnknown
		if sideEffects {
			s.Steps.UnknownOutcomes++
		}
	}
	if unlisted {
		s.Steps.UnknownOutcomes = max(1, s.Steps.UnknownOutcomes)
	}
}

// Loss is the loss of a Turn's journal.
type Loss struct {
	// Reason is the reason of the condition JournalLost.
	Reason string
	// Facts says how the loss was noticed: which store had the journal, which one is used now, and how many entries are
	// left.
	Facts string
	// Entries is the number of entries of the journal that are left.
	Entries int64
	// SideEffects is true if the Turn may have called a tool that is not ReadOnly.
	SideEffects bool
	// BeforeRequest is true if the Turn has certainly not sent a request to a model, so no budget has counted it.
	BeforeRequest bool
}

// lostBeforeRequest begins the message of the condition JournalLost if Loss.BeforeRequest is true. IsCounted reads it.
const lostBeforeRequest = "the journal of the turn was lost before its first request to a model: "

// IsCounted reports whether a budget may have counted the Turn in a journal that was lost.
func IsCounted(t *v1alpha1.Turn) bool {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionJournalLost)
	return c != nil && c.Status == metav1.ConditionTrue && !strings.HasPrefix(c.Message, lostBeforeRequest)
}

// Message returns the message for a Turn that does not continue, with the next step for the user.
func (l *Loss) Message(t *v1alpha1.Turn) string {
	message := "the journal of the turn was lost: " + l.Facts + ". "
	if !l.SideEffects {
		return message + "The status has everything that is known about the turn"
	}
	message += "The turn may have called tools after what its status shows, so it does not start over. Check what these tools did; " +
		"then create a new Turn, with spec.onJournalLoss set to Rerun if repeated calls do no harm"
	if len(t.Status.PendingApprovals) > 0 {
		message += ". The calls that were waiting for approval can no longer be approved; one that was approved before may have been made"
	}
	if names := t.Status.AwaitedTurns; len(names) > 0 {
		message += ". The Turns of its sub-agents that had not ended were cancelled; see the status of each: " +
			strings.Join(names, ", ")
	}
	return message
}

// StartOver returns the message for a Turn that starts over, or that continues after the entries that are left.
func (l *Loss) StartOver() string {
	message := "the journal of the turn was lost: "
	if l.BeforeRequest {
		message = lostBeforeRequest
	}
	message += l.Facts
	if l.Entries > 0 {
		message += fmt.Sprintf(". The turn continues after entry %d, the last one left, and its status does not "+
			"count its usage after that entry", l.Entries)
	} else {
		message += ". The turn starts over, and its status does not count its earlier usage"
	}
	if l.SideEffects {
		message += ". Earlier calls may be made again, because spec.onJournalLoss is Rerun"
	}
	return message
}
