package turnstatus

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Run holds what a run knows when it changes the status of its Turn.
type Run struct {
	// Journal is what the run knows about the journal, or nil if it knows no more than the status says.
	Journal *Journal
	// Progress has the counts, calls and usage of all runs, or nil if this run has made no progress.
	Progress *turn.Progress
	// StaysBound is true for capstan run: no other executor can continue the Turn.
	StaysBound bool
}

// Journal is what a run knows about the journal of its Turn.
type Journal struct {
	// Store is the store of the journal. It is nil if the run has not begun; then the status keeps the store.
	Store *store.Identity
	// Entries is the number of entries in the journal.
	Entries int64
}

// write writes what a run knows. handedBack is true if the run has ended, so that it writes no more entries.
func (r Run) write(t *v1alpha1.Turn, handedBack bool) {
	if j, b := r.Journal, t.Status.Executor; j != nil {
		if j.Store != nil {
			b.StoreID, b.StoreIncarnation = j.Store.ID, j.Store.Incarnation
		}
		b.JournalEntries, b.JournalComplete = new(j.Entries), handedBack
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

// ReportProgress writes the progress of a run that continues. awaitsMemory says whether the run waits for memory; nil
// means that this has not changed.
func ReportProgress(t *v1alpha1.Turn, r Run, awaitsMemory *bool, now time.Time) {
	r.write(t, false)
	if awaitsMemory == nil {
		return
	}
	message := boundTo(t.BoundTo())
	if *awaitsMemory {
		message += ", and waiting for memory: the conversations of the namespace use their whole share"
	}
	wait(t, v1alpha1.TurnReasonRunning, message, now)
}

// MarkSideEffects writes that a run is about to call a tool that may have a side effect.
func MarkSideEffects(t *v1alpha1.Turn, j *Journal) {
	Run{Journal: j}.write(t, false)
	t.Status.Executor.SideEffects = true
}

// StartOver writes that a run starts over in another store, or continues after the entries that are left, because the
// journal was lost. It removes the counts and calls of the runs before.
func StartOver(t *v1alpha1.Turn, l *Loss, in store.Identity, now time.Time) {
	s, b := &t.Status, t.Status.Executor
	s.Steps, s.ToolCalls, s.Usage, s.SubAgentUsage, s.PendingApprovals, s.AwaitedTurns = nil, nil, nil, nil, nil, nil
	b.StoreID, b.StoreIncarnation, b.JournalEntries, b.JournalComplete = in.ID, in.Incarnation, nil, false
	setCondition(t, v1alpha1.ConditionJournalLost, metav1.ConditionTrue, l.Reason, l.StartOver(), now)
}

// writeProgress writes the counts, calls and usage of a Turn's runs. Calls that no longer wait for a decision leave
// the list of pending calls.
func writeProgress(t *v1alpha1.Turn, p turn.Progress) {
	s := &t.Status
	s.Steps, s.ToolCalls = translate.StepCounts(p.Counts), translate.ToolCalls(p.Calls)
	if p.Usage != (model.Usage{}) {
		s.Usage = translate.Usage(p.Usage, p.Cost)
	}
	if a := p.SubAgents; a != nil {
		s.SubAgentUsage = translate.Usage(a.Usage, a.Cost)
	}
	s.PendingApprovals = slices.DeleteFunc(s.PendingApprovals, func(a v1alpha1.PendingApproval) bool {
		return slices.ContainsFunc(p.Calls, func(c turn.CallRecord) bool {
			return c.Step == int(a.Step) && c.CallID == a.CallID && (c.Outcome != "" || c.DecidedBy != "")
		})
	})
}
