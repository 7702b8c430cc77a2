package controller

import (
	"context"
	"slices"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/fairqueue"
	"github.com/capstan-dev/capstan/internal/quota"
)

// journalSpace holds the reports on the journal quotas that are in the Leases of living executors. The controller
// depends on the reports because it must not wait for the store. The zero value has no reports.
type journalSpace struct {
	mu      sync.Mutex
	reports map[string]journalReport // by the name of the Lease
	// combined is the report of all executors, or nil if there are no reports.
	combined *quota.Report
	// tight holds the namespaces whose new Turns had to wait when opened was last called; the empty name means all
	// namespaces.
	tight []string
}

type journalReport struct {
	text   string
	report *quota.Report
}

// observe records the report in the Lease of a living executor.
func (s *journalSpace) observe(l *coordinationv1.Lease) {
	text := l.Annotations[executor.JournalUseAnnotation]
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, known := s.reports[l.Name]; known && last.text == text {
		return
	}
	if s.reports == nil {
		s.reports = map[string]journalReport{}
	}
	s.reports[l.Name] = journalReport{text, quota.Decode(text)}
	s.combine()
}

// combine combines the reports. The caller must hold the lock.
func (s *journalSpace) combine() {
	reports := make([]*quota.Report, 0, len(s.reports))
	for _, r := range s.reports {
		reports = append(reports, r.report)
	}
	s.combined = quota.Combine(reports...)
}

// forget drops the report of a lost executor.
func (s *journalSpace) forget(lease string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, lease)
	s.combine()
}

// verdictFor returns the effect of the quotas on a namespace.
func (s *journalSpace) verdictFor(namespace string) quota.Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.combined.VerdictFor(namespace)
}

// opened returns the namespaces whose Turns had to wait at the last call of opened and need not wait any more. The
// empty name means all namespaces.
func (s *journalSpace) opened() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	tight := s.combined.WaitingNamespaces()
	opened := slices.DeleteFunc(s.tight, func(namespace string) bool { return slices.Contains(tight, namespace) })
	s.tight = tight
	return opened
}

// wakeForSpace wakes the Turns that waited for journal space that is now free.
func (r *ExecutorReconciler) wakeForSpace(ctx context.Context) error {
	for _, namespace := range r.space.opened() {
		var turns v1alpha1.TurnList
		if err := r.Client.List(ctx, &turns, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range turns.Items {
			if t := &turns.Items[i]; t.StateReason() == v1alpha1.TurnReasonWaitingForJournalSpace {
				r.Turns.enqueue(client.ObjectKeyFromObject(t), fairqueue.Normal)
			}
		}
	}
	return nil
}

// whenJournalsFull makes a new Turn wait while the journals of its namespace, or of all namespaces, are near their
// quota. A Turn that has already run continues until the quota is used up, and then waits like a new Turn.
func whenJournalsFull(v snapshot) (decision, bool) {
	fresh := v.turn.Epoch() == 0 || v.turn.StateReason() == v1alpha1.TurnReasonWaitingForJournalSpace
	if !v.journals.Running && (!v.journals.New || !fresh) {
		return decision{}, false
	}
	return decision{
		action: wait, reason: v1alpha1.TurnReasonWaitingForJournalSpace, message: v.journals.Message,
		after: untilDeadline(v),
	}, true
}
