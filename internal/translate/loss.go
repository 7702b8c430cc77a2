package translate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// Loss is the loss of a Turn's journal.
type Loss struct {
	// Reason of the condition JournalLost.
	Reason string
	// Facts say which store had the journal and which one is there.
	Facts string
	// Entries is how many entries of the journal are left; 0 for none.
	Entries int64
	// SideEffects is true where a tool that is not ReadOnly may have been called.
	SideEffects bool
}

// Message says that the Turn does not go on, and what to do.
func (l *Loss) Message(t *v1alpha1.Turn) string {
	message := "the journal of the turn was lost: " + l.Facts + ". "
	if !l.SideEffects {
		return message + "The status has what was known of the turn"
	}
	message += "The turn may have called tools after what its status shows, so it does not start over. Check what these tools did; " +
		"then create a new Turn, with spec.onJournalLoss set to Rerun if repeated calls do no harm"
	if len(t.Status.PendingApprovals) > 0 {
		message += ". The calls that were waiting for approval can no longer be approved; one that was approved before may have been made"
	}
	if names := t.Status.AwaitedTurns; len(names) > 0 {
		message += ". The Turns of its sub-agents were cancelled as far as they had not ended; the status of each says what it did: " + strings.Join(names, ", ")
	}
	return message
}

// StartOver says that the Turn starts over, or goes on from the entries that are left.
func (l *Loss) StartOver() string {
	message := "the journal of the turn was lost: " + l.Facts
	if l.Entries > 0 {
		message += fmt.Sprintf(". The turn goes on after entry %d, the last that is left, and its status does not count what it used after that", l.Entries)
	} else {
		message += ". The turn starts over, and its status does not count what it used before"
	}
	if l.SideEffects {
		message += ". Calls of before may be made again, as spec.onJournalLoss says (Rerun)"
	}
	return message
}

// StartOver writes into the status of a Turn that it starts over: what is known of the runs before is their past.
func StartOver(t *v1alpha1.Turn, l *Loss, now time.Time) {
	s := &t.Status
	s.Steps, s.ToolCalls, s.Usage, s.SubAgentUsage, s.PendingApprovals, s.AwaitedTurns = nil, nil, nil, nil, nil, nil
	setCondition(t, v1alpha1.ConditionJournalLost, metav1.ConditionTrue, l.Reason, cutJSON(l.StartOver(), maxMessageBytes), now)
}

// CutOff writes the end of a Turn whose run came to no result, because its journal cannot be used or for a fault within Capstan. What
// the status knows of it stays: calls that were under way have an unknown outcome. l is nil for a journal that is not lost.
func CutOff(t *v1alpha1.Turn, stop turn.Stop, message string, l *Loss, now time.Time) {
	s := &t.Status
	s.StopReason = v1alpha1.StopReason(stop)
	if l != nil {
		cutOffCalls(s, l.SideEffects, l.SideEffects)
	} else {
		cutOffCalls(s, s.Executor.SideEffects, s.Executor.SideEffects && !NothingBegun(s.Executor))
	}
	status, reason := verdict(stop)
	End(t, status, reason, message, now)
	missing := "the run came to no result"
	if l != nil {
		missing = "the journal was lost"
		setCondition(t, v1alpha1.ConditionJournalLost, metav1.ConditionTrue, l.Reason, cutJSON("the journal of the turn was lost: "+l.Facts, maxMessageBytes), now)
	}
	setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionFalse, v1alpha1.TurnReasonPartiallyFinalized,
		"the record has only what the status knew: "+missing, now)
}

// TakeIn adds what Turns of sub-agents took to what the status of a Turn knows of them. It knows of those whose answers the Turn
// has: the calls that it lists name them. Where it may not list all of them, the larger of both sums counts.
func TakeIn(t *v1alpha1.Turn, spent []*tool.Spent) {
	s := &t.Status
	all := turn.SumOf(spent)
	if all == nil {
		return
	}
	if before := s.SubAgentUsage; before != nil {
		known := Spent(&v1alpha1.Turn{Status: v1alpha1.TurnStatus{SubAgentUsage: before}})
		if s.Steps != nil && int(s.Steps.ToolCalls) > len(s.ToolCalls) {
			if all.Usage.InputTokens+all.Usage.OutputTokens <= before.TotalTokens {
				return
			}
		} else {
			fresh := slices.DeleteFunc(slices.Clone(spent), func(c *tool.Spent) bool {
				return slices.ContainsFunc(s.ToolCalls, func(r v1alpha1.ToolCallRecord) bool { return r.Turn == c.Turn })
			})
			all = turn.SumOf(append(fresh, known))
		}
	}
	s.SubAgentUsage = usage(finalize.Record{Usage: all.Usage, Cost: all.Cost})
}

// EndUnread writes the end of a Turn whose journal nobody can read, because no executor is there. What the status knows of it stays. A
// run that has handed the Turn back has told all; of any other one it is not known which calls it has made.
func EndUnread(t *v1alpha1.Turn, reason, message string, now time.Time) {
	if b := t.Status.Executor; b != nil {
		cutOffCalls(&t.Status, b.SideEffects, b.SideEffects && !b.JournalComplete)
	}
	End(t, metav1.ConditionFalse, reason, message, now)
}

// cutOffCalls ends the calls of a status that have no end: nobody knows whether they were made. Where the Turn may have called tools
// with side effects, they count as unknown outcomes. A call that waited for approval is one of them, because it may have been
// approved and made after the status was written. unlisted says that there may be calls which the status does not list: then at least
// one outcome is unknown.
func cutOffCalls(s *v1alpha1.TurnStatus, sideEffects, unlisted bool) {
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

// maxListedTools is how many tools the status of an Agent lists; there may be more.
const maxListedTools = 128

// MayAffect reports whether a Turn may call a tool that is not ReadOnly, as its Agent stands: true where that is not known. A run
// that finds otherwise writes so before it makes such a call.
func MayAffect(t *v1alpha1.Turn, a *v1alpha1.Agent) bool {
	if a == nil {
		return true
	}
	switch p := a.Spec.ToolPolicy; {
	case t.Spec.Execution == v1alpha1.ExecutionPrepareOnly, len(a.Spec.Tools) == 0, p != nil && p.Effects == v1alpha1.AllowedEffectsReadOnly:
		return false
	case a.Status.ObservedGeneration != a.Generation, len(a.Status.Tools) == 0, len(a.Status.Tools) == maxListedTools:
		return true
	}
	return slices.ContainsFunc(a.Status.Tools, func(e v1alpha1.ExposedTool) bool { return e.Effect != v1alpha1.ToolEffectReadOnly })
}

// Bind returns the binding of a Turn to an executor with a store. What earlier bindings recorded stays, so that the next run can
// compare; unless they say that nothing was begun: then the Turn may begin in any store. Of a run that has not handed the Turn back,
// nobody knows what it has written.
func Bind(t *v1alpha1.Turn, a *v1alpha1.Agent, executor, storeID, storeIncarnation string) *v1alpha1.ExecutorBinding {
	b := v1alpha1.ExecutorBinding{Name: executor, Epoch: t.Epoch() + 1}
	before := t.Status.Executor
	if before == nil || before.Epoch == 0 {
		b.StoreID, b.StoreIncarnation, b.SideEffects = storeID, storeIncarnation, MayAffect(t, a)
		return &b
	}
	past := *before.DeepCopy()
	if past.Name != "" {
		Abandon(&past)
	}
	if NothingBegun(&past) {
		b.StoreID, b.StoreIncarnation, b.SideEffects = storeID, storeIncarnation, MayAffect(t, a)
	} else {
		b.StoreID, b.StoreIncarnation, b.SideEffects = past.StoreID, past.StoreIncarnation, past.SideEffects
	}
	b.JournalEntries, b.JournalComplete, b.Overdue = past.JournalEntries, past.JournalComplete, past.Overdue
	return &b
}

// NothingBegun reports whether a binding says that no run before it has begun anything.
func NothingBegun(b *v1alpha1.ExecutorBinding) bool {
	return b.JournalComplete && b.JournalEntries != nil && *b.JournalEntries == 0
}

// Abandon writes into a binding that its run was not heard of again: nobody knows what it has written to the journal.
func Abandon(b *v1alpha1.ExecutorBinding) { b.JournalComplete = false }
