package executor

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/store"
)

// TestRunsStopWhenTheQuotaIsUsedUp checks that a run stops at its next safe point once the quota of its namespace is
// used up, and not earlier.
func TestRunsStopWhenTheQuotaIsUsedUp(t *testing.T) {
	budget := func(used int64) *quota.Report {
		return &quota.Report{Namespaces: map[string]quota.Budget{"helpdesk": {Used: used, Limit: 100}}}
	}
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	r := newRun(t, e)
	e.runs[r.turn.UID] = r
	for _, report := range []*quota.Report{nil, {}, budget(99), {Namespaces: map[string]quota.Budget{"sales": {Used: 100, Limit: 100}}}} {
		if e.Measured(report); isClosed(r.interrupt) {
			t.Fatalf("the run was stopped by %+v, want it to finish", report)
		}
	}
	e.Measured(budget(100))
	if !isClosed(r.interrupt) {
		t.Fatal("the run continues, want it to stop at its next safe point")
	}
	r.turn = r.progress.stop()
	r.writeOutcome(t.Context(), nil, loop.ErrInterrupted)
	got := stored(t, e)
	if got.BoundTo() != "" || got.IsFinished() || got.StateReason() != v1alpha1.TurnReasonWaitingForJournalSpace {
		t.Errorf("the Turn is bound to %q as %s, want it to wait for space", got.BoundTo(), got.StateReason())
	}
}

// TestRunsEndWhileTheQuotaIsMeasured checks for a data race, so it can only fail with the race detector.
func TestRunsEndWhileTheQuotaIsMeasured(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	r := newRun(t, e)
	e.runs[r.turn.UID] = r
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.turn = r.progress.stop()
		r.writeOutcome(t.Context(), nil, loop.ErrInterrupted)
	}()
	e.Measured(&quota.Report{})
	<-ended
}

// TestRunThatMayNotBeginWaitsForSpace checks how long a run waits for journal space before it stops.
func TestRunThatMayNotBeginWaitsForSpace(t *testing.T) {
	const full, tight, free = 100, 85, 10
	for name, tc := range map[string]struct {
		reason  string
		used    int64
		change  func(r *run)
		waits   time.Duration
		stopped bool
	}{
		"free":           {"there is enough space", free, func(*run) {}, 0, false},
		"new, tight":     {"the controller did not know that yet", tight, func(r *run) { r.first = true }, untilPublished, true},
		"begun, tight":   {"running Turns may finish", tight, func(*run) {}, 0, false},
		"tried, tight":   {"it already runs", tight, func(r *run) { r.first, r.tried = true, true }, 0, false},
		"begun, used up": {"no Turn continues", full, func(*run) {}, untilPublished, true},
		"asked to stop":  {"it stops immediately", full, func(r *run) { r.stopSoon() }, 0, true},
		"cancelled":      {"it then ends", full, func(r *run) { time.AfterFunc(time.Second, r.cancel) }, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				report := &quota.Report{Namespaces: map[string]quota.Budget{"helpdesk": {Used: tc.used, Limit: 100}}}
				e := &Executor{Quota: func() *quota.Report { return report }}
				r := &run{
					executor: e, namespace: "helpdesk", epoch: 1, cancellation: newCancellation(t.Context()),
					interrupt: make(chan struct{}),
				}
				tc.change(r)
				begun := time.Now()
				err := r.awaitSpace(t.Context())
				if errors.Is(err, loop.ErrInterrupted) != tc.stopped || time.Since(begun) != tc.waits {
					t.Errorf("awaitSpace = %v after %s, want it stopped: %t, after %s: %s", err, time.Since(begun),
						tc.stopped, tc.waits, tc.reason)
				}
				if (r.noSpace.Load() != nil) != tc.stopped {
					t.Errorf("the run waits for space: %v, want %t", r.noSpace.Load(), tc.stopped)
				}
			})
		})
	}
}

// TestLongAnswersAreNotReceivedWithoutSpace checks that a run receives no long answer while the quota of its namespace
// is used up, whatever runs of other namespaces do.
func TestLongAnswersAreNotReceivedWithoutSpace(t *testing.T) {
	memory := bytebudget.New(1<<20, 1<<20)
	report := &quota.Report{}
	e := &Executor{Quota: func() *quota.Report { return report }}
	receive := func(namespace string) error {
		ctx := (&run{executor: e, namespace: namespace}).withSpaceCheck(t.Context())
		held, err := memory.Account(namespace, bytebudget.Replies).For(ctx).Reserve(ctx, 1<<10)
		held.Release()
		return err
	}
	for _, tc := range []struct {
		used              int64
		helpdesk, another bool
	}{{79, true, true}, {99, true, true}, {100, false, true}} {
		report = &quota.Report{Namespaces: map[string]quota.Budget{"helpdesk": {Used: tc.used, Limit: 100}}}
		for namespace, want := range map[string]bool{"helpdesk": tc.helpdesk, "sales": tc.another} {
			if err := receive(namespace); (err == nil) != want || err != nil && !errors.Is(err, bytebudget.ErrNoSpace) {
				t.Errorf("with %d %% of the quota of helpdesk, a long answer for %s: %v, want it received: %t",
					tc.used, namespace, err, want)
			}
		}
	}
}

func TestLeasePublishesJournalUse(t *testing.T) {
	report := &quota.Report{Total: quota.Budget{Used: 90, Limit: 100}}
	e := &Executor{
		Name: me, Capacity: 10, Store: store.NewTracker(&journaltest.Store{}, store.TrackerOptions{}),
		Quota: func() *quota.Report { return report },
	}
	lease := &coordinationv1.Lease{}
	h := &heldLease{executor: e}
	h.describe(lease)
	if got := quota.Decode(lease.Annotations[JournalUseAnnotation]); got == nil || got.Total != report.Total {
		t.Errorf("the Lease says %q, want %+v", lease.Annotations[JournalUseAnnotation], report)
	}
	e.Quota = nil
	h.describe(lease)
	if said, there := lease.Annotations[JournalUseAnnotation]; there {
		t.Errorf("the Lease still has the journal use %q, want none", said)
	}
}
