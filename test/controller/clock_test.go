package controller_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// skewed makes the clock of a manager wrong by this duration.
func skewed(by time.Duration) func(*manager.Options) {
	return func(o *manager.Options) {
		o.Hooks.Clock = func() time.Time { return time.Now().Add(by) }
	}
}

var _ = Describe("Managers whose clocks are wrong", func() {
	// handedOver runs a Turn whose model hangs, first under one clock and then under another.
	handedOver := func(ctx context.Context, first, second time.Duration) {
		s := newTestEnv(ctx, `rules: [{fault: {hang: BeforeHeaders}}]`)
		m := s.run(skewed(first))
		s.create(ctx, s.basics()...)
		begin := time.Now()
		s.create(ctx, newTurn("slow", timeout(10)))
		s.awaitInFlight(ctx, 1)
		running := time.Now()
		m.stop()
		s.awaitInFlight(ctx, 0)
		o := m.options
		skewed(second)(&o)
		again := start(o)
		t := s.awaitState(ctx, "slow", v1alpha1.TurnReasonDeadlineExceeded)
		Expect(*t.Status.DurationMilliseconds).To(And(BeNumerically(">", 9000), BeNumerically("<", 70_000)),
			"the Turn has 10 seconds, however wrong the clocks are")
		Expect(t.Status.StartTime.Time).To(BeTemporally(">", begin.Add(-2*time.Second)),
			"by the clock of the API server, which is correct")
		Expect(t.Status.StartTime.Time).To(BeTemporally("<", running.Add(2*time.Second)),
			"by the clock of the API server, which is correct")
		Expect(t.Status.CompletionTime.Time).To(BeTemporally("~", time.Now(), time.Minute))
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		Expect(again.logs.String()).To(ContainSubstring("the clock of this machine differs from the clock of the API server"))
	}

	It("give a Turn its full time: bound by a manager ahead, continued by a manager behind", func(ctx SpecContext) {
		handedOver(ctx, 10*time.Minute, -10*time.Minute)
	}, SpecTimeout(2*patience))

	It("give a Turn its full time: bound by a manager behind, continued by a manager ahead", func(ctx SpecContext) {
		handedOver(ctx, -10*time.Minute, 10*time.Minute)
	}, SpecTimeout(2*patience))
})
