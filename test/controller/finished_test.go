package controller_test

import (
	"strconv"

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
		s.create(ctx, newTurn("over", ttl(3600)), newTurn("later", ttl(3600)), newTurn("kept"), newTurn("changed"))
		s.awaitAll(ctx, 4, v1alpha1.TurnReasonCompleted)
		first.stop()
		change(ctx, s, "over", &v1alpha1.Turn{}, ttl(0))
		change(ctx, s, "changed", &v1alpha1.Turn{}, ttl(3600))
		later := s.turn(ctx, "later")

		reconciled := reconciles("turn")
		s.run()
		Eventually(func() bool {
			return apierrors.IsNotFound(apiClient.Get(ctx, s.key("over"), &v1alpha1.Turn{}))
		}).Should(BeTrue(), "its TTL passed while no manager ran")
		awaitText(ctx, s, &v1alpha1.Turn{}, "changed", func(t *v1alpha1.Turn) string {
			return strconv.FormatInt(t.Status.ObservedGeneration, 10)
		}, Equal("2"))
		s.create(ctx, newTurn("new"))
		s.awaitState(ctx, "new", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "later").ResourceVersion).To(Equal(later.ResourceVersion), "its TTL has not passed yet")
		change(ctx, s, "later", &v1alpha1.Turn{}, ttl(0))
		Eventually(func() bool {
			return apierrors.IsNotFound(apiClient.Get(ctx, s.key("later"), &v1alpha1.Turn{}))
		}).Should(BeTrue(), "its TTL was shortened")
		Expect(reconciles("turn")-reconciled).To(And(BeNumerically(">", 0), BeNumerically("<=", 4)), "only the new Turn is reconciled")
	}, SpecTimeout(2*patience))
})
