package controller_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// callRecorder records the calls of tools that require approval.
type callRecorder struct {
	mu    sync.Mutex
	names []string
}

// offers gives each Turn tools with these names that require approval.
func (m *callRecorder) offers(names ...string) func(*manager.Options) {
	return func(o *manager.Options) {
		o.Hooks.Tools = func(context.Context, *v1alpha1.Agent) []tool.Tool {
			var all []tool.Tool
			for _, name := range names {
				all = append(all, tool.Tool{
					Tool:   prompt.Tool{Name: name, Parameters: []prompt.Parameter{{Name: "n", Type: "integer"}}},
					Effect: tool.Destructive, RequiresApproval: true,
					Caller: tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
						m.mu.Lock()
						defer m.mu.Unlock()
						m.names = append(m.names, name)
						return tool.Result{Content: "done"}, nil
					}),
				})
			}
			return all
		}
	}
}

func (m *callRecorder) calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.names...)
}

var _ = Describe("A hostile model endpoint", func() {
	It("cannot use an approval of another call, whatever IDs it writes", func(ctx SpecContext) {
		shared := strings.Repeat("x", 128)
		s := newTestEnv(ctx, fmt.Sprintf(`
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{id: %[1]s1, name: close_ticket}, {id: %[1]s2, name: wipe_all}]}
- reply: {text: "Done."}
`, shared))
		var m callRecorder
		s.run(m.offers("close_ticket", "wipe_all"))
		s.create(ctx, append(s.basics(), newTurn("one"))...)
		t := s.awaitState(ctx, "one", v1alpha1.TurnReasonAwaitingApproval)
		Expect(t.Status.PendingApprovals).To(HaveLen(2))
		closes, wipes := t.Status.PendingApprovals[0], t.Status.PendingApprovals[1]
		Expect([]string{closes.Name, wipes.Name}).To(Equal([]string{"close_ticket", "wipe_all"}))
		Expect(closes.CallID).NotTo(Equal(wipes.CallID), "each call has its own ID")
		Expect(closes.ArgumentsHash).To(Equal(wipes.ArgumentsHash))

		By("approving with the name of the other tool, which releases nothing")
		s.decide(ctx, t, 1, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.ToolName = "close_ticket" })
		s.decide(ctx, t, 1, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.RequestID = closes.RequestID })
		s.expectUnchanged(ctx, t)

		By("approving one call and denying the other")
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		s.decide(ctx, t, 1, v1alpha1.ApprovalDenied)
		s.awaitState(ctx, "one", v1alpha1.TurnReasonCompleted)
		Expect(m.calls()).To(Equal([]string{"close_ticket"}))
	}, SpecTimeout(patience))

	It("cannot cause a call that the status has not listed", func(ctx SpecContext) {
		var calls []string
		for i := range 27 {
			calls = append(calls, fmt.Sprintf(`{name: wipe, arguments: '{"n": %d}'}`, i))
		}
		s := newTestEnv(ctx, "rules:\n- when: {toolMessages: 0}\n  reply: {toolCalls: ["+strings.Join(calls,
			", ")+"]}\n- reply: {text: Done.}\n")
		var m callRecorder
		s.run(m.offers("wipe"))
		s.create(ctx, append(s.basics(), newTurn("many", func(t *v1alpha1.Turn) {
			t.Spec.Limits = &v1alpha1.Limits{MaxToolCalls: new(int32(100))}
		}))...)
		t := s.awaitState(ctx, "many", v1alpha1.TurnReasonAwaitingApproval)
		Expect(t.Status.PendingApprovals).To(HaveLen(25))
		seen := sets.New[string]()
		for i, p := range t.Status.PendingApprovals {
			seen.Insert(p.RequestID)
			s.decide(ctx, t, i, v1alpha1.ApprovalApproved)
		}
		Eventually(func(g Gomega) {
			t = s.turn(ctx, "many")
			g.Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonAwaitingApproval))
			g.Expect(t.Status.PendingApprovals).To(HaveLen(2))
			g.Expect(seen.HasAny(t.Status.PendingApprovals[0].RequestID, t.Status.PendingApprovals[1].RequestID)).To(BeFalse())
		}).WithContext(ctx).Should(Succeed())
		Expect(m.calls()).To(HaveLen(25), "the others wait until they are listed")
		s.decide(ctx, t, 0, v1alpha1.ApprovalDenied)
		s.decide(ctx, t, 1, v1alpha1.ApprovalApproved)
		s.awaitState(ctx, "many", v1alpha1.TurnReasonCompleted)
		Expect(m.calls()).To(HaveLen(26))
	}, SpecTimeout(2*patience))
})
