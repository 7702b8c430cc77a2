package executor

import (
	"context"
	"time"

	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// untilPublished is how long after a measurement the Leases have said what it means to those who bind Turns.
const untilPublished = 2 * leaseInterval

// JournalUse returns the last report of the journals' quotas; nil if there is none.
func (e *Executor) JournalUse() *quota.Report {
	if e.Quota == nil {
		return nil
	}
	return e.Quota()
}

// awaitSpace returns loop.ErrInterrupted if the run may not begin because of the quotas of journals. A controller may have bound the
// Turn before it knew of that: the Leases tell it some seconds after the measurement. The run waits for as long, so that the Turn is not
// bound again at once. A Turn that is to end is ended all the same, which takes little space.
func (r *run) awaitSpace(ctx context.Context) error {
	v := r.executor.JournalUse().Of(r.namespace)
	begins := r.first && !r.tried
	if stops := v.Running || v.New && begins; !stops || r.cancelled.Err() != nil || r.binding.Overdue {
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

// Measured stops the runs of namespaces whose quota is used up, at their next safe point: they go on from their journals when there is
// space again. So what Turns write beyond a quota is what they write between two measurements and until a step has ended.
func (e *Executor) Measured(report *quota.Report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.runs {
		if v := report.Of(r.namespace); v.Running {
			r.noSpace.Store(&v.Message)
			r.stopSoon()
		}
	}
}
