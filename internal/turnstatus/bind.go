package turnstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Binding holds the facts about a new binding of a Turn.
type Binding struct {
	// Executor is the name of the executor, and Store is the store in which it keeps journals.
	Executor string
	Store    store.Identity
	// SideEffects is true if the Turn may call a tool that is not ReadOnly, or if that is unknown.
	SideEffects bool
	// Overdue is true if the executor must end the Turn, because the Turn has run before, and then waited too long: to
	// run again after a suspension or for a Budget, longer than startingDeadlineSeconds, or for its missing Agent.
	Overdue bool
	// Epoch and Start are set by capstan run only, which reads them from the journal. If they are zero, the epoch is
	// one more than before, and a Turn that has not started starts now.
	Epoch int64
	Start time.Time
}

// Bind binds a Turn to an executor. The first binding sets the ID of its trace. Later bindings keep facts of earlier
// runs in the status:
//  1. The pending calls: the run accepts a decision only about a call that the status lists.
//  2. The awaited Turns of sub-agents: from this list the run knows that they were created, even if one has been
//     deleted since.
//  3. The store and the number of entries of the journal, with which the run compares its journal, and whether earlier
//     runs may have had side effects, which decides what happens if entries are missing. If no run has begun anything,
//     the Turn may begin in any store, and these facts are those of the new binding.
//  4. The start time. If it is in the future because a clock was wrong, the Turn starts now, because it would otherwise
//     have more time than its limit.
//  5. That the Turn is overdue: see Binding.Overdue.
func Bind(t *v1alpha1.Turn, b Binding, now time.Time) {
	s := &t.Status
	resumeClock(s, now)
	s.AwaitedBudget = nil
	if s.TraceID == "" && t.UID != "" {
		s.TraceID = span.TraceOf(t.Annotations[span.Annotation], string(t.UID)).String()
	}
	setUnfinished(t, v1alpha1.TurnReasonRunning, boundTo(b.Executor), now)
	if !b.Start.IsZero() {
		s.StartTime = new(metav1.NewMicroTime(b.Start))
	} else if s.StartTime == nil || s.StartTime.After(now) {
		s.StartTime = new(metav1.NewMicroTime(now))
	}
	var next v1alpha1.ExecutorBinding
	if t.Epoch() > 0 {
		next = *s.Executor.DeepCopy()
	}
	if next.Name != "" {
		next.JournalComplete = false // the last run did not hand the Turn back, so it may have written more entries
	}
	if next.Epoch == 0 || NothingBegun(&next) {
		next.StoreID, next.StoreIncarnation, next.SideEffects = b.Store.ID, b.Store.Incarnation, b.SideEffects
	}
	next.Name, next.Epoch, next.Overdue = b.Executor, cmp.Or(b.Epoch, next.Epoch+1), next.Overdue || b.Overdue
	s.Executor = &next
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionPrepared) // an earlier run set it
}

// boundTo returns the message of a bound Turn.
func boundTo(executor string) string { return fmt.Sprintf("bound to executor %q", executor) }

// Adopt binds a bound Turn to its executor again, so that writes of the earlier run are refused. The Turn no longer
// waits for what that run waited for. If there is no next epoch, Adopt hands the Turn back instead, and the controller
// ends it: without its name in the status, the writes of the earlier run are refused as well.
func Adopt(t *v1alpha1.Turn, now time.Time) {
	b := t.Status.Executor
	b.JournalComplete = false // the earlier run may have written more entries
	if t.EpochsUsedUp() {
		b.Name = ""
		setUnfinished(t, v1alpha1.TurnReasonPending, "handed back: status.executor.epoch has its highest value", now)
		return
	}
	setUnfinished(t, v1alpha1.TurnReasonRunning, boundTo(t.BoundTo()), now)
	b.Epoch++
}

// NothingBegun reports whether a binding says that no earlier run has begun anything.
func NothingBegun(b *v1alpha1.ExecutorBinding) bool {
	return b.JournalComplete && b.JournalEntries != nil && *b.JournalEntries == 0
}

// Run holds what a run knows when it changes the status of its Turn.
type Run struct {
	// Entries is the number of entries in the journal. If it is nil, the status keeps its number.
	Entries *int64
	// Store is the store of the journal. If it is nil, because the run has not begun, the status keeps its store.
	Store *store.Identity
	// Progress has the counts, calls and usage of all runs, or nil if this run has made no progress.
	Progress *turn.Progress
	// StaysBound is true for capstan run: no other executor can continue the Turn.
	StaysBound bool
}

// write writes what a run knows. handedBack is true if the run has ended, so that it writes no more entries.
func (r Run) write(t *v1alpha1.Turn, handedBack bool) {
	b := t.Status.Executor
	if r.Store != nil {
		b.StoreID, b.StoreIncarnation = r.Store.ID, r.Store.Incarnation
	}
	if r.Entries != nil {
		b.JournalEntries, b.JournalComplete = r.Entries, handedBack
	}
	if r.Progress != nil {
		writeProgress(t, *r.Progress)
	}
}

// unbind ends the binding of a Turn that its run hands back.
func (r Run) unbind(t *v1alpha1.Turn) {
	if !r.StaysBound {
		t.Status.Executor.Name = ""
	}
	r.write(t, true)
}

// RunWait says what a run waits for. The zero value means that the run does not wait.
type RunWait struct {
	// Memory is true if the run waits for RAM of the manager.
	Memory bool
	// Provider is the name of the ModelProvider whose rate limit or circuit breaker holds back the next request, or
	// empty.
	Provider string
}

// WaitForProvider returns the message of a run that waits for a ModelProvider.
func WaitForProvider(name string) string {
	return fmt.Sprintf("waiting for ModelProvider %q: its rate limits or its circuit breaker hold the next request back", name)
}

// RunWaits reports whether the status says that the run of a bound Turn waits for RAM or for a ModelProvider.
func RunWaits(t *v1alpha1.Turn) bool {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	return t.BoundTo() != "" && c != nil && strings.HasPrefix(c.Message, boundTo(t.BoundTo())+", and ")
}

// ReportProgress writes the progress of a run that continues. It also writes into the conditions what the run now waits
// for, or that it does not wait. If runWait is nil, ReportProgress does not change the conditions.
func ReportProgress(t *v1alpha1.Turn, r Run, runWait *RunWait, now time.Time) {
	r.write(t, false)
	if runWait == nil {
		return
	}
	reason, message := v1alpha1.TurnReasonRunning, boundTo(t.BoundTo())
	switch {
	case runWait.Memory:
		message += ", and waiting for RAM of the manager: the conversations of the namespace use their whole share of it"
	case runWait.Provider != "":
		reason = v1alpha1.TurnReasonQueued
		message += ", and " + WaitForProvider(runWait.Provider)
	}
	setUnfinished(t, reason, message, now)
}

// MarkSideEffects writes that a run is about to call a tool that may have a side effect.
func MarkSideEffects(t *v1alpha1.Turn, r Run) {
	r.write(t, false)
	t.Status.Executor.SideEffects = true
}

// StartOver writes the loss of the journal. The run then starts over, or continues after the entries that are left.
// StartOver removes the counts, calls, usage and waits of earlier runs from the status, and sets the store of the
// journal to runStore, the store of this run.
func StartOver(t *v1alpha1.Turn, l *Loss, runStore store.Identity, now time.Time) {
	s, b := &t.Status, t.Status.Executor
	s.Steps, s.ToolCalls, s.Usage, s.SubAgentUsage, s.PendingApprovals, s.AwaitedTurns = nil, nil, nil, nil, nil, nil
	b.StoreID, b.StoreIncarnation, b.JournalEntries, b.JournalComplete = runStore.ID, runStore.Incarnation, nil, false
	setCondition(t, v1alpha1.ConditionJournalLost, metav1.ConditionTrue, l.Reason, l.StartOver(), now)
}

// writeProgress writes the counts, calls and usage of a Turn's runs. Calls that no longer wait for a decision leave
// the list of pending calls.
func writeProgress(t *v1alpha1.Turn, p turn.Progress) {
	s := &t.Status
	s.Steps, s.ToolCalls = translate.StepCounts(p.Counts), translate.ToolCalls(p.Calls)
	if p.Usage != (model.Usage{}) {
		s.Usage = translate.Usage(p.Usage, p.Cost, p.KnownCost)
	}
	if a := p.SubAgents; a != nil {
		s.SubAgentUsage = translate.Usage(a.Usage, a.Cost, a.KnownCost)
	}
	s.PendingApprovals = slices.DeleteFunc(s.PendingApprovals, func(a v1alpha1.PendingApproval) bool {
		return slices.ContainsFunc(p.Calls, func(c turn.CallRecord) bool {
			return c.Step == int(a.Step) && c.CallID == a.CallID && (c.Outcome != "" || c.DecidedBy != "")
		})
	})
}
