package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

var _ = Describe("Turns that finished before the manager started", func() {
	It("are handled once, and no controller reconciles them again", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		first := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("over", ttl(3600)), newTurn("later", ttl(3600)), newTurn("kept"), newTurn("asked"))
		s.allReach(ctx, 4, v1alpha1.TurnReasonCompleted)
		first.stop()
		change(ctx, s, "over", &v1alpha1.Turn{}, ttl(0))
		change(ctx, s, "asked", &v1alpha1.Turn{}, ttl(3600))
		later := s.turn(ctx, "later")

		looks := reconciles("turn")
		s.run()
		Eventually(func() bool {
			return apierrors.IsNotFound(apiClient.Get(ctx, s.key("over"), &v1alpha1.Turn{}))
		}).Should(BeTrue(), "its time was over while no manager ran")
		says(ctx, s, &v1alpha1.Turn{}, "asked", func(t *v1alpha1.Turn) string {
			return time.Duration(t.Status.ObservedGeneration).String()
		}, Equal("2ns"))
		s.create(ctx, newTurn("new"))
		s.reaches(ctx, "new", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "later").ResourceVersion).To(Equal(later.ResourceVersion), "nothing is to be done about it yet")
		change(ctx, s, "later", &v1alpha1.Turn{}, ttl(0))
		Eventually(func() bool {
			return apierrors.IsNotFound(apiClient.Get(ctx, s.key("later"), &v1alpha1.Turn{}))
		}).Should(BeTrue(), "its time was shortened")
		Expect(reconciles("turn")-looks).To(BeNumerically("<=", 4), "only the new Turn is looked at")
	}, SpecTimeout(2*patience))
})
