package controller_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

var _ = Describe("Limits of a ModelProvider", func() {
	It("make Turns wait, and apply immediately when they change", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		limited := s.newProvider(provider, func(p *v1alpha1.ModelProvider) {
			p.Spec.Limits = &v1alpha1.RateLimits{MaxConcurrentRequests: new(int64(1))}
		})
		s.create(ctx, newSecret(secretName, apiKey), limited, newProfile(profile), newAgent(agent))
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		s.create(ctx, newTurn("waits"), newTurn("cancelled"), newTurn("suspended"))
		for _, name := range []string{"waits", "cancelled", "suspended"} {
			t := s.awaitState(ctx, name, v1alpha1.TurnReasonQueued)
			Expect(message(t)).To(MatchRegexp(`^bound to executor ".*", and waiting for ModelProvider "%s": its rate limits `, provider))
			Expect(t.BoundTo()).NotTo(BeEmpty())
		}
		s.desire(ctx, "cancelled", v1alpha1.DesiredStateCancelled)
		s.desire(ctx, "suspended", v1alpha1.DesiredStateSuspended)
		s.awaitState(ctx, "cancelled", v1alpha1.TurnReasonCancelled)
		s.awaitState(ctx, "suspended", v1alpha1.TurnReasonSuspended)
		Expect(s.asked()).To(HaveLen(1), "the Turns that wait have sent no request")

		change(ctx, s, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) {
			p.Spec.Limits.MaxConcurrentRequests = new(int64(2))
		})
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("leave slots to other Agents while no model of an Agent answers", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{when: {model: `+modelName+`}, fault: {status: 503}}, {reply: {text: Fine.}}]`)
		s.run(func(o *manager.Options) { o.MaxConcurrentTurns = 2 })
		s.create(ctx, s.basics()...)
		s.create(ctx, newAgent("other", func(a *v1alpha1.Agent) { a.Spec.Models[0].Model = "spare" }))
		s.create(ctx, newTurns(3)...) // with two attempts each
		Eventually(func(g Gomega) {
			p := &v1alpha1.ModelProvider{}
			g.Expect(apiClient.Get(ctx, s.key(provider), p)).To(Succeed())
			g.Expect(meta.IsStatusConditionFalse(p.Status.Conditions, v1alpha1.ConditionAvailable)).To(BeTrue())
		}).WithContext(ctx).Should(Succeed())
		s.create(ctx, newTurn("held-1"), newTurn("held-2"), newTurn("held-3"))
		s.create(ctx, newTurn("answered", func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = "other" }))
		awaitText(ctx, s, &v1alpha1.Turn{}, "held-3", message, Equal(
			`no model of Agent "support" answers (their circuit breakers are open): `+
				`one of its turns tries them, and the others wait`))
		Expect(s.turn(ctx, "held-3").BoundTo()).To(BeEmpty())
		s.awaitState(ctx, "answered", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "held-3").StateReason()).To(Equal(v1alpha1.TurnReasonQueued))
	}, SpecTimeout(patience))

	It("show an open circuit as a condition", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{fault: {status: 503}}]`)
		s.run()
		s.create(ctx, s.basics()...)
		for i := range 3 {
			s.create(ctx, newTurn(fmt.Sprint("fails-", i)))
		}
		Eventually(func(g Gomega) {
			p := &v1alpha1.ModelProvider{}
			g.Expect(apiClient.Get(ctx, s.key(provider), p)).To(Succeed())
			c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAvailable)
			g.Expect(c).NotTo(BeNil())
			g.Expect(c.Reason).To(Equal(v1alpha1.ReasonCircuitOpen))
			g.Expect(c.Message).To(ContainSubstring("requests to " + modelName + " are held back"))
		}).WithContext(ctx).Should(Succeed())
	}, SpecTimeout(patience))
})
