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

// journalSpace is what the Leases of living executors say of the journals' quotas: controllers have no store. The zero value knows of none.
type journalSpace struct {
	mu      sync.Mutex
	reports map[string]journalReport // by the name of the Lease
	// tight are the namespaces whose new Turns waited when that was last looked at; the empty one stands for all.
	tight []string
}

type journalReport struct {
	text   string
	report *quota.Report
}

// see notes what the Lease of a living executor says.
func (s *journalSpace) see(l *coordinationv1.Lease) {
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
}

// forget drops what the Lease of an executor that is gone has said.
func (s *journalSpace) forget(lease string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, lease)
}

// of returns what the quotas mean for a namespace: the strictest of what the executors say.
func (s *journalSpace) of(namespace string) quota.Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	var strictest quota.Verdict
	for _, r := range s.reports {
		if v := r.report.Of(namespace); v.Running && !strictest.Running || v.New && !strictest.New {
			strictest = v
		}
	}
	return strictest
}

// opened returns the namespaces whose Turns need not wait any more, since it was last called; the empty one stands for all.
func (s *journalSpace) opened() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tight []string
	for _, r := range s.reports {
		tight = append(tight, r.report.Tight()...)
	}
	slices.Sort(tight)
	tight = slices.Compact(tight)
	opened := slices.DeleteFunc(s.tight, func(namespace string) bool { return slices.Contains(tight, namespace) })
	s.tight = tight
	return opened
}

// wakeForSpace brings back the Turns that waited for space that there is now.
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

// whenJournalsFull makes a new Turn wait while the journals of its namespace, or of all, are near their quota. One that has run goes on
// until the quota is used up; then it waits as new ones do.
func whenJournalsFull(v view) (decision, bool) {
	fresh := v.turn.Epoch() == 0 || v.turn.StateReason() == v1alpha1.TurnReasonWaitingForJournalSpace
	if !v.journals.Running && (!v.journals.New || !fresh) {
		return decision{}, false
	}
	return decision{action: wait, reason: v1alpha1.TurnReasonWaitingForJournalSpace, message: v.journals.Message, after: untilDeadline(v)}, true
}
