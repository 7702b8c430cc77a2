package controller_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

var _ = Describe("A Turn that is applied together with its servers", func() {
	It("waits until the model endpoint answers", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.gate.down.Store(true)
		s.run(rareProbes)
		s.create(ctx, append(s.basics(), newTurn("early"))...)
		awaitText(ctx, s, &v1alpha1.Turn{}, "early", message, Equal(
			`Agent "support" is not ready: ModelProvider "demo" is new and does not answer `+
				`(EndpointUnreachable): turns wait for it until it is 2m0s old`))
		Expect(s.turn(ctx, "early").StateReason()).To(Equal(v1alpha1.TurnReasonWaitingForAgent))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ProviderNotReady: "))

		s.gate.down.Store(false)
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Steps.ModelRequests).To(BeEquivalentTo(1), "no request may reach the endpoint before it answers")
	}, SpecTimeout(patience))

	It("waits until the tool server answers, and then has its tools", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `apiKeys: [right-key]`), newToolHost("search_tickets")
		host.broken.Store(true)
		s.run(rareProbes)
		s.create(ctx, append(s.basics(withTools("tickets")), newToolServer("tickets", host.url), newTurn("early"))...)
		awaitText(ctx, s, &v1alpha1.Turn{}, "early", message, Equal(
			`Agent "support" is not ready: ToolServer "tickets" is new and does not answer `+
				`(EndpointUnreachable): turns wait for it until it is 2m0s old`))
		Expect(s.turn(ctx, "early").StateReason()).To(Equal(v1alpha1.TurnReasonWaitingForAgent))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ToolServerNotReady: "))

		host.broken.Store(false)
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.ToolCount).To(BeEquivalentTo(2), "search_tickets and read_artifact")
		Expect(t.Status.Preparation.ToolServersMissing).To(BeEmpty())
	}, SpecTimeout(patience))

	It("does not wait for a model if its Agent has a fallback", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run(rareProbes)
		away := s.newProvider("away", func(p *v1alpha1.ModelProvider) { p.Spec.BaseURL = "http://127.0.0.1:1/v1" })
		both := func(a *v1alpha1.Agent) {
			a.Spec.Models = append([]v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: "away"}, Model: modelName}},
				a.Spec.Models...)
		}
		s.create(ctx, append(s.basics(both), away, newTurn("early"))...)
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Steps.ModelRequests).To(BeEquivalentTo(1), "the two requests to the first model did not reach an endpoint")
	}, SpecTimeout(patience))
})
