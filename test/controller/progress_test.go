package controller_test

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// countingModel calls a tool once per step, as often as the message says, and then answers.
const countingModel = `
rules:
- when: {contains: "20 steps", toolMessages: 20}
  reply: {text: "Counted to 20."}
- when: {contains: "20 steps"}
  reply: {toolCalls: [{name: count, arguments: '{"step": {{ add .ToolMessages 1 }}}'}]}
- when: {contains: "1 step", toolMessages: 0}
  reply: {toolCalls: [{name: count, arguments: '{"step": 1}'}]}
`

// counts offers a tool whose calls take this long.
func counts(took time.Duration) func(*manager.Options) {
	return offering(tool.Tool{
		Tool:   prompt.Tool{Name: "count", Parameters: []prompt.Parameter{{Name: "step", Type: "number", Required: true}}},
		Effect: tool.ReadOnly,
		Caller: tool.CallerFunc(func(ctx context.Context, _ tool.Call) (tool.Result, error) {
			select {
			case <-time.After(took):
			case <-ctx.Done():
			}
			return tool.Result{Content: "counted"}, ctx.Err()
		}),
	})
}

func manySteps(t *v1alpha1.Turn) {
	t.Spec.Limits = &v1alpha1.Limits{MaxSteps: new(int32(30)), MaxToolCalls: new(int32(30))}
}

// mostWrites returns the maximum number of status writes of a Turn: one when it is bound, one when it ends, and on a
// slow machine, one in each five seconds of its run.
func mostWrites(t *v1alpha1.Turn) int64 {
	return 2 + *t.Status.DurationMilliseconds/5000
}

var _ = Describe("The progress of a Turn", func() {
	It("of 20 steps needs no more writes than the progress of one step", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, countingModel)
		s.run(counts(0))
		s.create(ctx, append(s.basics(), newTurn("warm"))...)
		s.awaitState(ctx, "warm", v1alpha1.TurnReasonCompleted) // so that neither of the other Turns waits for the Agent
		for message, steps := range map[string]int{"1 step": 2, "20 steps": 21} {
			before := requests(ctx, "PUT", "turns", "status")
			name := strings.ReplaceAll(message, " ", "-")
			s.create(ctx, newTurn(name, manySteps, asking(message)))
			t := s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
			Expect(t.Status.Steps.Count).To(BeEquivalentTo(steps))
			Expect(t.Status.ToolCalls).To(HaveLen(steps - 1))
			Expect(requests(ctx, "PUT", "turns", "status")-before).To(And(BeNumerically(">=", 2), BeNumerically("<=", mostWrites(t))),
				"bind and end")
		}
	}, SpecTimeout(patience))

	It("is in its status during a long run, with at most one write in five seconds", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, countingModel)
		s.run(counts(7 * time.Second))
		s.create(ctx, append(s.basics(), newTurn("warm"))...)
		s.awaitState(ctx, "warm", v1alpha1.TurnReasonCompleted)
		before := requests(ctx, "PUT", "turns", "status")
		s.create(ctx, newTurn("long", asking("1 step")))
		Eventually(func() []v1alpha1.ToolCallRecord { return s.turn(ctx, "long").Status.ToolCalls }).WithContext(ctx).Should(HaveLen(1))
		t := s.turn(ctx, "long")
		Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonRunning))
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallPending))
		Expect(t.Status.Steps.Count).To(BeEquivalentTo(1))
		Expect(time.Now()).To(BeTemporally(">=", t.Status.StartTime.Add(5*time.Second)))
		t = s.awaitState(ctx, "long", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallSucceeded))
		Expect(requests(ctx, "PUT", "turns", "status")-before).To(And(BeNumerically(">=", 3), BeNumerically("<=", mostWrites(t))),
			"bind, once meanwhile, and end")
	}, SpecTimeout(patience))
})
