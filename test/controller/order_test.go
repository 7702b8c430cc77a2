package controller_test

import (
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// The objects that a Turn needs, by their index in the result of basics, and the Turn itself.
const (
	theSecret = iota
	theProvider
	theProfile
	theAgent
	theTurn
)

var _ = Describe("Objects in any order", func() {
	DescribeTable("lead to an answered Turn", func(ctx SpecContext, order ...int) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		objects := append(s.basics(), newTurn("early"))
		for n, i := range order {
			s.create(ctx, objects[i])
			// The manager must have seen all existing objects before the next one is created; otherwise the order
			// would not matter.
			if existing := order[:n+1]; slices.Contains(existing, theTurn) && !slices.Contains(existing, theAgent) {
				t := s.awaitState(ctx, "early", v1alpha1.TurnReasonWaitingForAgent)
				Expect(message(t)).To(Equal(`Agent "support" does not exist in namespace "` + s.namespace + `"`))
				Expect(conditionsOf(t.Status.Conditions)).To(ConsistOf(
					"Succeeded=Unknown WaitingForAgent", "Reconciling=True WaitingForAgent"))
			} else if slices.Contains(existing, theAgent) && n < len(order)-1 {
				awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, Not(BeEmpty()))
			}
		}
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("This is demo-small. You said: early"))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	},
		Entry("bottom up", SpecTimeout(patience), theSecret, theProvider, theProfile, theAgent, theTurn),
		Entry("top down", SpecTimeout(patience), theTurn, theAgent, theProfile, theProvider, theSecret),
		Entry("the Turn, then bottom up", SpecTimeout(patience), theTurn, theSecret, theProvider, theProfile, theAgent),
		Entry("the Agent first, the profile last", SpecTimeout(patience), theAgent, theTurn, theSecret, theProvider, theProfile),
		Entry("the profile first, the provider last", SpecTimeout(patience), theProfile, theAgent, theTurn, theSecret, theProvider),
	)

	It("report the missing object until it exists", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		objects := s.basics()
		agentSays := func(profileReason, modelsReason, text string) {
			GinkgoHelper()
			awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, Equal(text))
			var a v1alpha1.Agent
			Expect(apiClient.Get(ctx, s.key(agent), &a)).To(Succeed())
			Expect(meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionProfileResolved).Reason).To(Equal(profileReason))
			Expect(meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionModelsResolved).Reason).To(Equal(modelsReason))
			Expect(a.Status.ObservedGeneration).To(Equal(a.Generation))
		}
		turnSays := func(text string) {
			GinkgoHelper()
			awaitText(ctx, s, &v1alpha1.Turn{}, "early", message, ContainSubstring(text))
			Expect(s.turn(ctx, "early").StateReason()).To(Equal(v1alpha1.TurnReasonWaitingForAgent))
		}
		s.create(ctx, newTurn("early"), objects[theAgent])
		agentSays("ProfileNotFound", "ProviderNotFound",
			`ProfileNotFound: PromptProfile "house" does not exist; ModelProvider "demo" does not exist`)
		turnSays(`Agent "support" is not ready: PromptProfile "house" does not exist; ModelProvider "demo" does not exist`)

		s.create(ctx, objects[theProfile])
		agentSays("Resolved", "ProviderNotFound", `ProviderNotFound: ModelProvider "demo" does not exist`)
		turnSays(`is not ready: ModelProvider "demo" does not exist`)

		s.create(ctx, objects[theProvider])
		missing := `Secret "model-key" does not exist in namespace "` + s.namespace + `": create it with key "apiKey"`
		agentSays("Resolved", "ProviderNotReady", `ProviderNotReady: ModelProvider "demo" is not ready: `+missing)
		turnSays(missing)

		s.create(ctx, objects[theSecret])
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(conditionsOf(t.Status.Conditions)).NotTo(ContainElement(HavePrefix("Reconciling")))
	}, SpecTimeout(patience))

	It("recover when a broken profile is fixed, and its waiting Turn continues", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		objects := s.basics()
		broken := newProfile(profile, func(p *v1alpha1.PromptProfile) {
			p.Spec.Instructions = "Be brief.\nYou talk to {{ .userNam }}."
		})
		s.create(ctx, objects[theSecret], objects[theProvider], broken, objects[theAgent], newTurn("waits"))
		where := MatchRegexp(`instructions:2:\d+: .*userNam`)
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, profile, profileReadiness, where)
		var p v1alpha1.PromptProfile
		Expect(apiClient.Get(ctx, s.key(profile), &p)).To(Succeed())
		Expect(conditionsOf(p.Status.Conditions)).To(ContainElement("Ready=False RenderFailed"))
		awaitText(ctx, s, &v1alpha1.Turn{}, "waits", message, where)

		change(ctx, s, profile, &v1alpha1.PromptProfile{}, func(p *v1alpha1.PromptProfile) {
			p.Spec.Instructions = "Be brief."
			p.Spec.Version = "1.0.1"
		})
		t := s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.PromptProfile).To(And(HaveField("Version", "1.0.1"), HaveField("Generation", BeEquivalentTo(2))))
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, s.key(agent), &a)).To(Succeed())
		Expect(conditionsOf(a.Status.Conditions)).To(ContainElement("Ready=True Ready"))
	}, SpecTimeout(patience))

	It("report an unknown time zone, on the Agent and on its Turns", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics(func(a *v1alpha1.Agent) { a.Spec.TimeZone = "Europe/Atlantis" })...)
		s.create(ctx, newTurn("lost"))
		wanted := ContainSubstring(`"Europe/Atlantis" is not an IANA time zone: use a name such as Europe/Berlin or UTC`)
		awaitText(ctx, s, &v1alpha1.Turn{}, "lost", message, wanted)
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, s.key(agent), &a)).To(Succeed())
		Expect(conditionsOf(a.Status.Conditions)).To(ContainElement("Ready=False InvalidTimeZone"))

		change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.TimeZone = "Europe/Berlin" })
		s.awaitState(ctx, "lost", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))
})
