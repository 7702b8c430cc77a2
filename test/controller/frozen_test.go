package controller_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// edit creates another version of the profile and waits until the manager has seen it.
func (s *testEnv) edit(ctx context.Context, version, instructions string) {
	GinkgoHelper()
	change(ctx, s, profile, &v1alpha1.PromptProfile{}, func(p *v1alpha1.PromptProfile) {
		p.Spec.Version, p.Spec.Instructions = version, instructions
	})
	awaitText(ctx, s, &v1alpha1.PromptProfile{}, profile,
		func(p *v1alpha1.PromptProfile) string { return p.Status.ObservedVersion }, Equal(version))
}

var firstVersion = v1alpha1.PromptProfileRevision{Name: profile, ID: "house", Version: "1.0.0", Generation: 1}

var _ = Describe("A prepared Turn", func() {
	It("does not change with its profile", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("before", prepareOnly))
		before := s.awaitState(ctx, "before", v1alpha1.TurnReasonPrepared)
		Expect(before.Status.Preparation.PromptProfile).To(Equal(firstVersion))

		s.edit(ctx, "2.0.0", "Answer at length.")
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, renderHash, Not(Equal(before.Status.Preparation.PromptRenderHash)))
		s.create(ctx, newTurn("after", prepareOnly))
		after := s.awaitState(ctx, "after", v1alpha1.TurnReasonPrepared).Status.Preparation
		Expect(after.PromptProfile).To(And(HaveField("Version", "2.0.0"), HaveField("Generation", BeEquivalentTo(2))))
		Expect(after.PromptRenderHash).NotTo(Equal(before.Status.Preparation.PromptRenderHash))
		Expect(s.turn(ctx, "before").ResourceVersion).To(Equal(before.ResourceVersion))
	}, SpecTimeout(patience))

	It("that falls back is prepared again from its frozen sources, not from the changed profile", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{when: {model: slow}, fault: {status: 503}}]`)
		s.run()
		objects := s.basics(func(a *v1alpha1.Agent) {
			second := v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: provider}, Model: modelName}
			a.Spec.Models[0].Model = "slow"
			a.Spec.Models = append(a.Spec.Models, second)
		})
		objects[theProvider] = s.newProvider(provider, func(p *v1alpha1.ModelProvider) { p.Spec.Retry.MaxAttempts = 1 })
		s.create(ctx, objects...)
		release := s.hold()
		s.create(ctx, newConfigMap("terms", "Three days."), newTurn("falls-back", contributing("terms"), timeout(600)))
		s.awaitHeld(ctx, 1)
		s.edit(ctx, "2.0.0", "Answer at length.")
		s.rewrite(ctx, "terms", "Ten days.")
		release()
		t := s.awaitState(ctx, "falls-back", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation).To(And(HaveField("PromptProfile", firstVersion), HaveField("Model", modelName)))
		for _, r := range s.fake.Requests() {
			Expect(string(r.Body)).To(And(ContainSubstring("Answer in one sentence."), ContainSubstring("Three days.")))
		}
		Expect(s.fake.Requests()).To(HaveLen(2))
	}, SpecTimeout(patience))

	DescribeTable("completes after a restart without its profile and its ConfigMap", func(ctx SpecContext, killed bool) {
		s := newTestEnv(ctx, stuckModel)
		m := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newConfigMap("terms", "Three days."), newTurn("stuck", contributing("terms")))
		s.awaitInFlight(ctx, 1)
		m.stop()
		t := s.awaitState(ctx, "stuck", v1alpha1.TurnReasonPending) // it was handed back
		if killed {
			bound(t, m.options.ExecutorName, t.Epoch()) // as after the kill of the process
			Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		}
		s.drop(ctx, &v1alpha1.PromptProfile{}, profile)
		s.drop(ctx, &corev1.ConfigMap{}, "terms")
		Expect(s.fake.SetConfig(config(``))).To(Succeed())

		start(m.options)
		t = s.awaitState(ctx, "stuck", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.PromptProfile).To(Equal(firstVersion))
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		sent := s.fake.Requests()
		Expect(sent).To(HaveLen(2))
		Expect(sent[1].Body).To(MatchJSON(sent[0].Body), "the request is repeated with the same bytes")
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ProfileNotFound: "))
	},
		Entry("of a process that was killed", SpecTimeout(patience), true),
		Entry("of a process that handed the Turn back", SpecTimeout(patience), false),
	)

	// pausedAfterARequest creates a Turn that has its prompt and has sent one model request. The Turn then waits
	// until it is set to Active or Cancelled.
	pausedAfterARequest := func(ctx context.Context) *testEnv {
		GinkgoHelper()
		s := newTestEnv(ctx, stuckModel)
		m := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		m.stop()
		s.desire(ctx, "stuck", v1alpha1.DesiredStateSuspended)
		Expect(s.fake.SetConfig(config(``))).To(Succeed())
		start(m.options)
		s.awaitState(ctx, "stuck", v1alpha1.TurnReasonSuspended)
		return s
	}

	It("that is cancelled keeps the record of its requests without its profile", func(ctx SpecContext) {
		s := pausedAfterARequest(ctx)
		s.drop(ctx, &v1alpha1.PromptProfile{}, profile)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ProfileNotFound: "))
		s.desire(ctx, "stuck", v1alpha1.DesiredStateCancelled)
		t := s.awaitState(ctx, "stuck", v1alpha1.TurnReasonCancelled)
		Expect(t.Status.Steps).To(HaveValue(HaveField("ModelRequests", BeEquivalentTo(1))))
		Expect(t.Status.Preparation.PromptProfile).To(Equal(firstVersion))
		Expect(s.fake.Requests()).To(HaveLen(1), "no further model request may be sent")
	}, SpecTimeout(patience))

	It("that waited for its models continues when they are back, without its profile", func(ctx SpecContext) {
		s := pausedAfterARequest(ctx)
		s.drop(ctx, &v1alpha1.ModelProvider{}, provider)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ProviderNotFound: "))
		s.desire(ctx, "stuck", v1alpha1.DesiredStateActive)
		s.awaitState(ctx, "stuck", v1alpha1.TurnReasonWaitingForAgent)
		s.drop(ctx, &v1alpha1.PromptProfile{}, profile)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ProfileNotFound: "))
		s.create(ctx, s.newProvider(provider))
		t := s.awaitState(ctx, "stuck", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.PromptProfile).To(Equal(firstVersion))
		sent := s.fake.Requests()
		Expect(sent[len(sent)-1].Body).To(MatchJSON(sent[0].Body), "the request is repeated with the same bytes")
	}, SpecTimeout(patience))

	It("with a lost journal waits for its Agent, and does not loop", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		m := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		m.stop()
		s.drop(ctx, &v1alpha1.PromptProfile{}, profile)
		Expect(s.fake.SetConfig(config(``))).To(Succeed())

		o := m.options
		o.DataDir = GinkgoT().TempDir()
		start(o)
		why := `Agent "support" is not ready: PromptProfile "house" does not exist`
		s.awaitState(ctx, "stuck", v1alpha1.TurnReasonWaitingForAgent)
		awaitText(ctx, s, &v1alpha1.Turn{}, "stuck", message, Equal(why))
		Expect(conditionsOf(s.turn(ctx, "stuck").Status.Conditions)).To(ContainElement("Prepared=Unknown NotPrepared"))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ProfileNotFound: "))
		s.create(ctx, newProfile(profile, func(p *v1alpha1.PromptProfile) { p.Spec.Version = "2.0.0" }))
		t := s.awaitState(ctx, "stuck", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.PromptProfile.Version).To(Equal("2.0.0"))
		Expect(t.Status.Executor.Epoch).To(BeNumerically("<=", 4))
	}, SpecTimeout(patience))
})
