package executor

import "github.com/capstan-dev/capstan/internal/quota"

// JournalUse returns the last report of the journals' quotas; nil if there is none.
func (e *Executor) JournalUse() *quota.Report {
	if e.Quota == nil {
		return nil
	}
	return e.Quota()
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
