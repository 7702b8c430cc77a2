package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
)

var _ = Describe("Two managers with leader election", func() {
	It("work one at a time: the second takes over when the first stops", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{fault: {latencyMilliseconds: 500}}]`)
		elected := func(name string, slots int) func(*manager.Options) {
			return func(o *manager.Options) {
				o.LeaderElect, o.ExecutorName, o.MaxConcurrentTurns, o.ShutdownGraceSeconds = true, name, slots, 25
			}
		}
		leads := func(name string) {
			GinkgoHelper()
			awaitText(ctx, s, &coordinationv1.Lease{}, executor.LeasePrefix+name, func(l *coordinationv1.Lease) string {
				return *l.Spec.HolderIdentity
			}, Equal(name))
		}
		first := s.run(elected("first", 5))
		leads("first")
		second := s.run(elected("second", 100))
		s.create(ctx, s.basics()...)
		const turns = 20
		release := s.hold()
		s.create(ctx, newTurns(turns)...)
		s.awaitHeld(ctx, 5)
		Expect(second.logs.String()).NotTo(ContainSubstring("Executor is ready"), "only the leader runs Turns")
		Expect(gauge("capstan_controller_active")).To(BeEquivalentTo(1), "only the leader runs controllers")

		release()
		first.stop()
		leads("second")
		Eventually(gauge).WithArguments("capstan_controller_active").Should(BeEquivalentTo(1), "the new leader runs controllers")
		counts := map[string]int{}
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted) {
			counts[t.Status.Executor.Name]++
		}
		Expect(counts).To(And(HaveKey("first"), HaveKey("second"), HaveLen(2)))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(turns), "no reply is lost or paid for twice")
	}, SpecTimeout(2*patience))
})
