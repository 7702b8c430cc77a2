package turnstatus

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/store"
)

// Binding holds the facts about a new binding of a Turn.
type Binding struct {
	// Executor is the name of the executor, and Store is the store in which it keeps journals.
	Executor string
	Store    store.Identity
	// SideEffects is true if the Turn may call a tool that is not ReadOnly, or if that is unknown.
	SideEffects bool
	// Overdue is true if the executor must end the Turn, because it waited too long for its start after a suspension.
	Overdue bool
	// Epoch and Start are set by capstan run only, which reads them from the journal. If they are zero, the epoch is one
	// more than before, and a Turn that has not started starts now.
	Epoch int64
	Start time.Time
}

// Bind binds a Turn to an executor. Four facts of earlier runs stay in the status:
//  1. The pending calls: the run accepts a decision only about a call that the status lists.
//  2. The awaited Turns of sub-agents: by this list the run knows that they were created, even if one has been
//     deleted since.
//  3. The record of the journal, so that the run can compare its journal with it. If the record says that no run has
//     begun anything, the Turn may begin in any store.
//  4. The start, unless it is in the future. Then a clock was wrong, and the Turn would have more time than its limit.
func Bind(t *v1alpha1.Turn, b Binding, now time.Time) {
	s := &t.Status
	resumeClock(s, now)
	wait(t, v1alpha1.TurnReasonRunning, boundTo(b.Executor), now)
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

// Adopt binds a bound Turn anew to its executor, so that writes of the earlier run are refused.
func Adopt(t *v1alpha1.Turn) {
	t.Status.Executor.Epoch++
	t.Status.Executor.JournalComplete = false // the earlier run may have written more entries
}

// NothingBegun reports whether a binding says that no earlier run has begun anything.
func NothingBegun(b *v1alpha1.ExecutorBinding) bool {
	return b.JournalComplete && b.JournalEntries != nil && *b.JournalEntries == 0
}
