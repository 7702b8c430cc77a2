package controller_test

import (
	"encoding/json"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// asked returns the last message of each model request, in order.
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

var _ = Describe("Many Turns", func() {
	DescribeTable("run at the same time up to the limit, and all end",
		func(ctx SpecContext, slots int, ofAgent *int32, forSlots int) {
			s := newTestEnv(ctx, `rules: [{fault: {latencyMilliseconds: 30}}]`)
			s.run(func(o *manager.Options) { o.MaxConcurrentTurns = slots })
			s.create(ctx, s.basics(func(a *v1alpha1.Agent) { a.Spec.MaxParallelTurns = ofAgent })...)
			const turns = 60
			release := s.hold()
			s.create(ctx, newTurns(turns)...)
			s.awaitHeld(ctx, 4) // the limit
			s.awaitStates(ctx, map[string]int{v1alpha1.TurnReasonRunning: 4, v1alpha1.TurnReasonQueued: turns - 4})
			Expect(s.gate.waiting.Load()).To(BeEquivalentTo(4), "never more than the limit")
			Expect(gauge("capstan_turns_waiting_for_slots")).To(BeEquivalentTo(forSlots), "only Turns that more slots would start")
			release()
			s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted)
			Expect(s.fake.Stats().PeakInFlight).To(BeNumerically("<=", 4), "never more than the limit")
			Expect(s.fake.Stats().Requests).To(BeEquivalentTo(turns))
		},
		Entry("of the agent", SpecTimeout(2*patience), 1000, new(int32(4)), 0),
		Entry("of the manager", SpecTimeout(2*patience), 4, nil, 56),
		Entry("of both", SpecTimeout(2*patience), 5, new(int32(4)), 0),
	)

	It("run in the order of their creation, and report the reason of their wait", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		turns := newTurns(10)
		s.create(ctx, turns...)
		var names []string
		for _, o := range turns {
			t := s.awaitState(ctx, o.GetName(), v1alpha1.TurnReasonQueued)
			Expect(message(t)).To(Equal(`Agent "support" already runs as many turns as it may (maxParallelTurns is 1)`))
			Expect(conditionsOf(t.Status.Conditions)).To(ConsistOf("Succeeded=Unknown Queued", "Reconciling=True Queued"))
			names = append(names, t.Name)
		}
		s.desire(ctx, "stuck", v1alpha1.DesiredStateCancelled)
		for _, name := range names {
			s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
		}
		Expect(s.asked()).To(Equal(append([]string{"stuck"}, names...)))
	}, SpecTimeout(patience))

	It("continue when maxParallelTurns is raised", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newTurn("stuck-0"))
		s.awaitInFlight(ctx, 1)
		for i := 1; i < 4; i++ {
			s.create(ctx, newTurn(fmt.Sprintf("stuck-%d", i)))
			s.awaitState(ctx, fmt.Sprintf("stuck-%d", i), v1alpha1.TurnReasonQueued)
		}
		change(ctx, s, agent, &v1alpha1.Agent{}, parallel(3))
		s.awaitInFlight(ctx, 3)
		Expect(s.turn(ctx, "stuck-3").StateReason()).To(Equal(v1alpha1.TurnReasonQueued))
		change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.MaxParallelTurns = nil })
		s.awaitInFlight(ctx, 4)
	}, SpecTimeout(patience))

	It("are not blocked by a waiting Turn that is cancelled, suspended or deleted", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		names := []string{"a-cancelled", "b-suspended", "c-deleted", "d-runs", "e-runs"}
		for _, name := range names {
			s.create(ctx, newTurn(name))
		}
		for _, name := range names {
			s.awaitState(ctx, name, v1alpha1.TurnReasonQueued)
		}
		s.desire(ctx, "a-cancelled", v1alpha1.DesiredStateCancelled)
		s.desire(ctx, "b-suspended", v1alpha1.DesiredStateSuspended)
		Expect(apiClient.Delete(ctx, s.turn(ctx, "c-deleted"))).To(Succeed())
		s.awaitState(ctx, "a-cancelled", v1alpha1.TurnReasonCancelled)
		s.awaitState(ctx, "b-suspended", v1alpha1.TurnReasonSuspended)

		s.desire(ctx, "stuck", v1alpha1.DesiredStateCancelled)
		s.awaitState(ctx, "e-runs", v1alpha1.TurnReasonCompleted)
		Expect(s.asked()).To(Equal([]string{"stuck", "d-runs", "e-runs"}))
	}, SpecTimeout(patience))

	It("of one Agent do not keep another Agent's Turn from a free slot", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run(func(o *manager.Options) { o.MaxConcurrentTurns = 2 })
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newAgent("other"))
		ofOther := func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = "other" }
		s.create(ctx, newTurn("stuck-a"), newTurn("stuck-b", ofOther))
		s.awaitInFlight(ctx, 2)
		s.create(ctx, newTurn("a-waits"))
		s.awaitState(ctx, "a-waits", v1alpha1.TurnReasonQueued)
		s.create(ctx, newTurn("b-waits", ofOther))
		s.awaitState(ctx, "b-waits", v1alpha1.TurnReasonQueued)

		s.desire(ctx, "stuck-b", v1alpha1.DesiredStateCancelled)
		s.awaitState(ctx, "b-waits", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "a-waits").StateReason()).To(Equal(v1alpha1.TurnReasonQueued))
	}, SpecTimeout(patience))

	It("beyond the queue of their namespace end immediately, and the waiting ones continue", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run(func(o *manager.Options) { o.MaxConcurrentTurns, o.MaxQueuedTurnsPerNamespace = 1, 1 })
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		s.create(ctx, newTurn("waits"))
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonQueued)
		s.create(ctx, newTurn("refused"))
		t := s.awaitState(ctx, "refused", v1alpha1.TurnReasonQueueFull)
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopQueueFull))
		Expect(message(t)).To(ContainSubstring("--max-queued-turns-per-namespace"))
		Expect(t.Status.Usage).To(BeNil())

		s.desire(ctx, "stuck", v1alpha1.DesiredStateCancelled)
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("run at the same time, 300 of them, and all succeed with two status writes each", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("warm"))
		s.awaitState(ctx, "warm", v1alpha1.TurnReasonCompleted) // so that no other Turn waits for the Agent
		Expect(apiClient.Delete(ctx, s.turn(ctx, "warm"))).To(Succeed())
		s.fake.Reset()
		const turns = 300
		writes := requests(ctx, "PUT", "turns", "status")
		release := s.hold()
		s.create(ctx, newTurns(turns, func(t *v1alpha1.Turn) { t.Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: new(int32(300))} })...)
		s.awaitHeld(ctx, turns) // no Turn waits for another
		release()
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(1))
		}
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(turns), "each reply is paid for once")
		Expect(requests(ctx, "PUT", "turns", "status")-writes).To(BeEquivalentTo(2*turns), "bind and end: no Turn waits for a slot")
	}, SpecTimeout(4*patience))
})
