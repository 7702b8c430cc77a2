package controller_test

import (
	"encoding/json"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// asked returns the user messages that reached the model, in order.
func (s *testEnv) asked() []string {
	GinkgoHelper()
	var all []string
	for _, r := range s.fake.Requests() {
		var body struct {
			Messages []struct{ Role, Content string }
		}
		Expect(json.Unmarshal(r.Body, &body)).To(Succeed())
		all = append(all, body.Messages[len(body.Messages)-1].Content)
	}
	return all
}

var _ = Describe("More Turns than slots", func() {
	DescribeTable("run up to the limit at once, and all end",
		func(ctx SpecContext, most int, ofAgent *int32) {
			s := newTestEnv(ctx, `rules: [{fault: {latencyMilliseconds: 30}}]`)
			s.run(func(o *manager.Options) { o.MaxConcurrentTurns = most })
			s.create(ctx, s.basics(func(a *v1alpha1.Agent) { a.Spec.MaxParallelTurns = ofAgent })...)
			const turns = 60
			release := s.hold()
			s.create(ctx, newTurns(turns)...)
			s.awaitHeld(ctx, 4) // the limit
			s.allAre(ctx, map[string]int{v1alpha1.TurnReasonRunning: 4, v1alpha1.TurnReasonQueued: turns - 4})
			Expect(s.gate.waiting.Load()).To(BeEquivalentTo(4), "and never more")
			release()
			s.allReach(ctx, turns, v1alpha1.TurnReasonCompleted)
			Expect(s.fake.Stats().PeakInFlight).To(BeNumerically("<=", 4), "and never more")
			Expect(s.fake.Stats().Requests).To(BeEquivalentTo(turns))
		},
		Entry("of the agent", SpecTimeout(2*patience), 1000, new(int32(4))),
		Entry("of the manager", SpecTimeout(2*patience), 4, nil),
		Entry("of both", SpecTimeout(2*patience), 5, new(int32(4))),
	)

	It("run in the order of their creation, and report the reason of their wait", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newTurn("stuck"))
		s.inFlight(ctx, 1)
		turns := newTurns(10)
		s.create(ctx, turns...)
		var names []string
		for _, o := range turns {
			t := s.reaches(ctx, o.GetName(), v1alpha1.TurnReasonQueued)
			Expect(message(t)).To(Equal(`Agent "support" already runs as many turns as it may (maxParallelTurns is 1)`))
			Expect(conditionsOf(t.Status.Conditions)).To(ConsistOf("Succeeded=Unknown Queued", "Reconciling=True Queued"))
			names = append(names, t.Name)
		}
		s.desire(ctx, "stuck", v1alpha1.DesiredStateCancelled)
		for _, name := range names {
			s.reaches(ctx, name, v1alpha1.TurnReasonCompleted)
		}
		Expect(s.asked()).To(Equal(append([]string{"stuck"}, names...)))
	}, SpecTimeout(patience))

	It("continue when maxParallelTurns is raised", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newTurn("stuck-0"))
		s.inFlight(ctx, 1)
		for i := 1; i < 4; i++ {
			s.create(ctx, newTurn(fmt.Sprintf("stuck-%d", i)))
			s.reaches(ctx, fmt.Sprintf("stuck-%d", i), v1alpha1.TurnReasonQueued)
		}
		change(ctx, s, agent, &v1alpha1.Agent{}, parallel(3))
		s.inFlight(ctx, 3)
		Expect(s.turn(ctx, "stuck-3").StateReason()).To(Equal(v1alpha1.TurnReasonQueued))
		change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.MaxParallelTurns = nil })
		s.inFlight(ctx, 4)
	}, SpecTimeout(patience))

	It("are not blocked by a waiting Turn that is cancelled, suspended or deleted", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newTurn("stuck"))
		s.inFlight(ctx, 1)
		names := []string{"a-cancelled", "b-suspended", "c-deleted", "d-runs", "e-runs"}
		for _, name := range names {
			s.create(ctx, newTurn(name))
		}
		for _, name := range names {
			s.reaches(ctx, name, v1alpha1.TurnReasonQueued)
		}
		s.desire(ctx, "a-cancelled", v1alpha1.DesiredStateCancelled)
		s.desire(ctx, "b-suspended", v1alpha1.DesiredStateSuspended)
		Expect(apiClient.Delete(ctx, s.turn(ctx, "c-deleted"))).To(Succeed())
		s.reaches(ctx, "a-cancelled", v1alpha1.TurnReasonCancelled)
		s.reaches(ctx, "b-suspended", v1alpha1.TurnReasonSuspended)

		s.desire(ctx, "stuck", v1alpha1.DesiredStateCancelled)
		s.reaches(ctx, "e-runs", v1alpha1.TurnReasonCompleted)
		Expect(s.asked()).To(Equal([]string{"stuck", "d-runs", "e-runs"}))
	}, SpecTimeout(patience))

	It("of one Agent do not keep another Agent's Turn from a free slot", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run(func(o *manager.Options) { o.MaxConcurrentTurns = 2 })
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newAgent("other"))
		ofOther := func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = "other" }
		s.create(ctx, newTurn("stuck-a"), newTurn("stuck-b", ofOther))
		s.inFlight(ctx, 2)
		s.create(ctx, newTurn("a-waits"))
		s.reaches(ctx, "a-waits", v1alpha1.TurnReasonQueued)
		s.create(ctx, newTurn("b-waits", ofOther))
		s.reaches(ctx, "b-waits", v1alpha1.TurnReasonQueued)

		s.desire(ctx, "stuck-b", v1alpha1.DesiredStateCancelled)
		s.reaches(ctx, "b-waits", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "a-waits").StateReason()).To(Equal(v1alpha1.TurnReasonQueued))
	}, SpecTimeout(patience))

	It("beyond the queue of their namespace end at once, and the waiting ones continue", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run(func(o *manager.Options) { o.MaxConcurrentTurns, o.MaxQueuedTurnsPerNamespace = 1, 1 })
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("stuck"))
		s.inFlight(ctx, 1)
		s.create(ctx, newTurn("waits"))
		s.reaches(ctx, "waits", v1alpha1.TurnReasonQueued)
		s.create(ctx, newTurn("refused"))
		t := s.reaches(ctx, "refused", v1alpha1.TurnReasonQueueFull)
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopQueueFull))
		Expect(message(t)).To(ContainSubstring("--max-queued-turns-per-namespace"))
		Expect(t.Status.Usage).To(BeNil())

		s.desire(ctx, "stuck", v1alpha1.DesiredStateCancelled)
		s.reaches(ctx, "waits", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("run 300 at once, and all succeed, with two status writes each", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("warm"))
		s.reaches(ctx, "warm", v1alpha1.TurnReasonCompleted) // so that no other Turn waits for the Agent
		Expect(apiClient.Delete(ctx, s.turn(ctx, "warm"))).To(Succeed())
		s.fake.Reset()
		const turns = 300
		writes := requests(ctx, "PUT", "turns", "status")
		release := s.hold()
		s.create(ctx, newTurns(turns, func(t *v1alpha1.Turn) { t.Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: new(int32(300))} })...)
		s.awaitHeld(ctx, turns) // no Turn waits for another
		release()
		for _, t := range s.allReach(ctx, turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(1))
		}
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(turns), "each is bought once")
		Expect(requests(ctx, "PUT", "turns", "status")-writes).To(BeEquivalentTo(2*turns), "bind and end: none waits in a queue")
	}, SpecTimeout(4*patience))
})
