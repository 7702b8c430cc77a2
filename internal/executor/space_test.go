package executor

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/store"
)

// TestRunsWaitOnceTheQuotaIsUsedUp: up to then they go on.
func TestRunsWaitOnceTheQuotaIsUsedUp(t *testing.T) {
	budget := func(used int64) *quota.Report {
		return &quota.Report{Namespaces: map[string]quota.Budget{"helpdesk": {Used: used, Limit: 100}}}
	}
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	r := newRun(t, e)
	e.runs[r.turn.UID] = r
	stopped := func() bool {
		select {
		case <-r.interrupt:
			return true
		default:
			return false
		}
	}
	for _, report := range []*quota.Report{nil, {}, budget(99), {Namespaces: map[string]quota.Budget{"sales": {Used: 100, Limit: 100}}}} {
		if e.Measured(report); stopped() {
			t.Fatalf("the run was stopped by %+v, want it to finish", report)
		}
	}
	e.Measured(budget(100))
	if !stopped() {
		t.Fatal("the run goes on, want it to stop at its next safe point")
	}
	r.turn = r.progress.stop()
	r.conclude(t.Context(), nil, loop.ErrInterrupted)
	got := stored(t, e)
	if got.BoundTo() != "" || got.IsFinished() || got.StateReason() != v1alpha1.TurnReasonWaitingForJournalSpace {
		t.Errorf("the Turn is bound to %q as %s, want it to wait for space", got.BoundTo(), got.StateReason())
	}
}

// TestRunsEndWhileTheQuotaIsMeasured finds a data race, which only the race detector sees.
func TestRunsEndWhileTheQuotaIsMeasured(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	r := newRun(t, e)
	e.runs[r.turn.UID] = r
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.turn = r.progress.stop()
		r.conclude(t.Context(), nil, loop.ErrInterrupted)
	}()
	e.Measured(&quota.Report{})
	<-ended
}

func TestTheLeaseSaysHowMuchJournalsUse(t *testing.T) {
	report := &quota.Report{Total: quota.Budget{Used: 90, Limit: 100}}
	e := &Executor{Name: me, Capacity: 10, Store: store.NewTracker(&journaltest.Memory{}, store.TrackerOptions{}), Quota: func() *quota.Report { return report }}
	lease := &coordinationv1.Lease{}
	h := &heldLease{executor: e}
	h.describe(lease)
	if got := quota.Decode(lease.Annotations[JournalUseAnnotation]); got == nil || got.Total != report.Total {
		t.Errorf("the Lease says %q, want %+v", lease.Annotations[JournalUseAnnotation], report)
	}
	e.Quota = nil
	h.describe(lease)
	if said, there := lease.Annotations[JournalUseAnnotation]; there {
		t.Errorf("the Lease says %q of an earlier process, want nothing", said)
	}
}
