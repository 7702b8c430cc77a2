package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

var _ = Describe("The ceilings of a manager", func() {
	ceilings := func(values map[string]string) func(*manager.Options) {
		return func(o *manager.Options) { o.Limits = values }
	}
	stuckTurn := func(l v1alpha1.Limits) *v1alpha1.Turn {
		t := newTurn("stuck", limited(l))
		t.Spec.Message = "stuck"
		return t
	}

	It("bound the budget of a Turn that asks for more", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run(ceilings(map[string]string{"maxTokens": "10"}))
		s.create(ctx, s.basics()...)
		s.create(ctx, stuckTurn(v1alpha1.Limits{MaxTokens: new(int64(1_000_000))}))
		t := s.awaitState(ctx, "stuck", v1alpha1.TurnReasonBudgetExceeded)
		Expect(message(t)).To(ContainSubstring("budget of 10 tokens"))
		Expect(s.fake.Stats().Requests).To(BeZero(), "the request could have exceeded the budget")
	}, SpecTimeout(patience))

	It("bound the time of a Turn that asks for more", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run(ceilings(map[string]string{"timeoutSeconds": "2"}))
		s.create(ctx, s.basics()...)
		s.create(ctx, stuckTurn(v1alpha1.Limits{TimeoutSeconds: new(int32(600))}))
		t := s.awaitState(ctx, "stuck", v1alpha1.TurnReasonDeadlineExceeded)
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopDeadline))
		Expect(message(t)).To(ContainSubstring("2s"))
	}, SpecTimeout(patience))

	It("bound a Turn that waits for its Agent", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run(ceilings(map[string]string{"startingDeadlineSeconds": "1"}))
		s.create(ctx, stuckTurn(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(600))}))
		t := s.awaitState(ctx, "stuck", v1alpha1.TurnReasonDeadlineExceeded)
		Expect(message(t)).To(HavePrefix("the turn did not start within 1s (limits.startingDeadlineSeconds)"))
	}, SpecTimeout(patience))
})
