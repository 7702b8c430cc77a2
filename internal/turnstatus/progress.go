package turnstatus

import (
	"slices"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Progress writes the counts, calls and usage of a Turn's runs until now into its status.
func Progress(t *v1alpha1.Turn, p turn.Progress) {
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
