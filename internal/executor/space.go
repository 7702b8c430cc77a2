package executor

import (
	"context"
	"errors"
	"time"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// untilPublished is the time after a measurement within which the Leases report it to the controller.
const untilPublished = 2 * leaseInterval

// JournalUse returns the last report of the journals' quotas, or nil if there is none.
func (e *Executor) JournalUse() *quota.Report {
	if e.Quota == nil {
		return nil
	}
	return e.Quota()
}

// awaitSpace returns loop.ErrInterrupted if the quotas of the journals do not allow the run to begin. Before it returns
// the error, it waits for the few seconds after which the Leases have reported the measurement to the controller.
// Otherwise the controller could bind the Turn again immediately. awaitSpace returns nil if the Turn is cancelled
// during the wait, because the end of a Turn needs little space.
func (r *run) awaitSpace(ctx context.Context) error {
	v := r.executor.JournalUse().VerdictFor(r.namespace)
	begins := r.first && !r.tried
	if stops := v.Running || v.New && begins; !stops {
		return nil
	}
	r.noSpace.Store(&v.Message)
	timer := time.NewTimer(untilPublished)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.cancelled.Done():
		r.noSpace.Store(nil)
		return nil
	case <-r.interrupt:
	}
	return loop.ErrInterrupted
}

// withSpaceCheck returns a context whose long replies and results are not received while the namespace's quota, or the
// quota of all journals, is used up. A run stops only at its next safe point, and thousands of runs may each have asked
// for several megabytes before.
func (r *run) withSpaceCheck(ctx context.Context) context.Context {
	return bytebudget.WithCheck(ctx, func() error {
		if v := r.executor.JournalUse().VerdictFor(r.namespace); v.Running {
			return errors.New(v.Message)
		}
		return nil
	})
}

// Measured stops the runs of namespaces whose quota is used up, at their next safe point. They continue from their
// journals when there is space again. So Turns exceed a quota only by the bytes that they write between two
// measurements and until the current step ends.
func (e *Executor) Measured(report *quota.Report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.runs {
		if v := report.VerdictFor(r.namespace); v.Running {
			r.noSpace.Store(&v.Message)
			r.stopSoon()
		}
	}
}
