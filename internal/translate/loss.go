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
	// Reason is the reason of the condition JournalLost.
	Reason string
	// Facts names the store that had the journal and the store that is in use now.
	Facts string
	// Entries is how many entries of the journal are left.
	Entries int64
	// SideEffects is true if the Turn may have called a tool that is not ReadOnly.
	SideEffects bool
}

// Message returns the message for a Turn that does not continue, with the next step for the user.
func (l *Loss) Message(t *v1alpha1.Turn) string {
	message := "the journal of the turn was lost: " + l.Facts + ". "
	if !l.SideEffects {
		return message + "The status has all that is known of the turn"
	}
	message += "The turn may have called tools after what its status shows, so it does not start over. Check what these tools did; " +
		"then create a new Turn, with spec.onJournalLoss set to Rerun if repeated calls do no harm"
	if len(t.Status.PendingApprovals) > 0 {
		message += ". The calls that were waiting for approval can no longer be approved; one that was approved before may have been made"
	}
	if names := t.Status.AwaitedTurns; len(names) > 0 {
		message += ". The Turns of its sub-agents were cancelled as far as they had not ended; the status of each says what it did: " +
			strings.Join(names, ", ")
	}
	return message
}

// StartOver returns the message for a Turn that starts over, or that continues after the entries that are left.
func (l *Loss) StartOver() string {
	message := "the journal of the turn was lost: " + l.Facts
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

// StartOver writes into the status of a Turn that it starts over, and removes the counts and calls of the runs
// before.
func StartOver(t *v1alpha1.Turn, l *Loss, now time.Time) {
	s := &t.Status
	s.Steps, s.ToolCalls, s.Usage, s.SubAgentUsage, s.PendingApprovals, s.AwaitedTurns = nil, nil, nil, nil, nil, nil
	setCondition(t, v1alpha1.ConditionJournalLost, metav1.ConditionTrue, l.Reason, truncateJSON(l.StartOver(), maxMessageBytes), now)
}

// CutOff writes the end of a Turn whose run had no result, because its journal cannot be used or because of a fault
// within Capstan. The facts in the status stay; calls that were under way get an unknown outcome. l is nil if the
// journal is not lost.
func CutOff(t *v1alpha1.Turn, stop turn.Stop, message string, l *Loss, now time.Time) {
	s := &t.Status
	s.StopReason = v1alpha1.StopReason(stop)
	if l != nil {
		endPendingCalls(s, l.SideEffects, l.SideEffects)
	} else {
		endPendingCalls(s, s.Executor.SideEffects, s.Executor.SideEffects && !NothingBegun(s.Executor))
	}
	status, reason := mainCondition(stop)
	End(t, status, reason, message, now)
	missing := "the run had no result"
	if l != nil {
		missing = "the journal was lost"
		setCondition(t, v1alpha1.ConditionJournalLost, metav1.ConditionTrue, l.Reason,
			truncateJSON("the journal of the turn was lost: "+l.Facts, maxMessageBytes), now)
	}
	setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionFalse, v1alpha1.TurnReasonPartiallyFinalized,
		"the record has only the facts of the status: "+missing, now)
}

// TakeIn adds the usage of sub-agents' Turns to the status of their caller. The status already counts the Turns
// whose answers the caller has received; its listed calls name them. If the status cannot list all calls, the
// larger of both sums counts.
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

// EndUnread writes the end of a Turn whose journal cannot be read, because no executor is running. The facts in the
// status stay. A run that handed the Turn back has reported all its calls; the calls of any other run are unknown.
func EndUnread(t *v1alpha1.Turn, reason, message string, now time.Time) {
	if b := t.Status.Executor; b != nil {
		endPendingCalls(&t.Status, b.SideEffects, b.SideEffects && !b.JournalComplete)
	}
	End(t, metav1.ConditionFalse, reason, message, now)
}

// endPendingCalls gives each pending call of a status an unknown outcome.
//  1. With sideEffects, the Turn may have called tools with side effects, and the calls count in unknownOutcomes.
//     A call that waited for approval counts too: it may have been approved and made after the status was written.
//  2. With unlisted, there may be calls that the status does not list: at least one outcome counts as unknown.
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

// maxListedTools is how many tools the status of an Agent lists at most; the Agent may have more.
const maxListedTools = 128

// MayAffect reports whether a Turn may call a tool that is not ReadOnly, as its Agent is now. It returns true if
// that is unknown. A run that finds otherwise writes that into the status before it makes such a call.
func MayAffect(t *v1alpha1.Turn, a *v1alpha1.Agent) bool {
	if a == nil {
		return true
	}
	switch p := a.Spec.ToolPolicy; {
	case t.Spec.Execution == v1alpha1.ExecutionPrepareOnly, len(a.Spec.Tools) == 0,
		p != nil && p.Effects == v1alpha1.AllowedEffectsReadOnly:
		return false
	case a.Status.ObservedGeneration != a.Generation, len(a.Status.Tools) == 0, len(a.Status.Tools) == maxListedTools:
		return true
	}
	return slices.ContainsFunc(a.Status.Tools, func(e v1alpha1.ExposedTool) bool { return e.Effect != v1alpha1.ToolEffectReadOnly })
}

// Bind returns the binding of a Turn to an executor with a store. It keeps the record of earlier bindings, so that
// the next run can compare its journal with it. If the record says that no run has begun anything, the Turn may
// begin in any store. A run that did not hand the Turn back may have written more to the journal than the record
// says.
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

// NothingBegun reports whether a binding says that no earlier run has begun anything.
func NothingBegun(b *v1alpha1.ExecutorBinding) bool {
	return b.JournalComplete && b.JournalEntries != nil && *b.JournalEntries == 0
}

// Abandon marks the record of the journal in a binding as incomplete: its run did not hand the Turn back, and may
// have written more entries.
func Abandon(b *v1alpha1.ExecutorBinding) { b.JournalComplete = false }
