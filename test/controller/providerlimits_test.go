package controller_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

var _ = Describe("Limits of a ModelProvider", func() {
	It("make Turns wait, and apply at once when they change", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		limited := s.newProvider(provider, func(p *v1alpha1.ModelProvider) {
			p.Spec.Limits = &v1alpha1.RateLimits{MaxConcurrentRequests: new(int64(1))}
		})
		s.create(ctx, newSecret(secretName, apiKey), limited, newProfile(profile), newAgent(agent))
		s.create(ctx, newTurn("stuck"))
		s.inFlight(ctx, 1)
		s.create(ctx, newTurn("waits"), newTurn("cancelled"), newTurn("suspended"))
		for _, name := range []string{"waits", "cancelled", "suspended"} {
			t := s.reaches(ctx, name, v1alpha1.TurnReasonQueued)
			Expect(message(t)).To(MatchRegexp(`^bound to executor ".*", and waiting for ModelProvider "%s": its rate limits `, provider))
			Expect(t.BoundTo()).NotTo(BeEmpty())
		}
		s.desire(ctx, "cancelled", v1alpha1.DesiredStateCancelled)
		s.desire(ctx, "suspended", v1alpha1.DesiredStateSuspended)
		s.reaches(ctx, "cancelled", v1alpha1.TurnReasonCancelled)
		s.reaches(ctx, "suspended", v1alpha1.TurnReasonSuspended)
		Expect(s.asked()).To(HaveLen(1), "the Turns that wait have sent nothing")

		change(ctx, s, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) {
			p.Spec.Limits.MaxConcurrentRequests = new(int64(2))
		})
		s.reaches(ctx, "waits", v1alpha1.TurnReasonCompleted)
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
