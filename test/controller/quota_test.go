package controller_test

import (
	"fmt"
	"regexp"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/quota"
)

// journalUse returns the quota verdict for the namespace in the Lease of the test environment's executor.
func (s *testEnv) journalUse(ctx SpecContext, m *runningManager) func() (quota.Verdict, error) {
	return func() (quota.Verdict, error) {
		var lease coordinationv1.Lease
		err := apiClient.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: executor.LeasePrefix + m.options.ExecutorName}, &lease)
		return quota.Decode(lease.Annotations[executor.JournalUseAnnotation]).VerdictFor(s.namespace), err
	}
}

var _ = Describe("A namespace whose journals are near their quota", func() {
	const many = 16 // Turns with replies of 50 kB
	It("lets new Turns wait, and then continues them", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{reply: {text: "0123456789", repeat: 5000}}]`)
		m := s.run(func(o *manager.Options) { o.JournalQuotaPerNamespace = "1Mi" })
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurns(many, func(t *v1alpha1.Turn) { t.Labels = map[string]string{"part": "first"} })...)
		s.awaitAll(ctx, many, v1alpha1.TurnReasonCompleted)
		Eventually(ctx, s.journalUse(ctx, m)).Should(HaveField("New", true),
			"the executor must report that the namespace is near its quota")
		var waits *v1alpha1.Turn
		Eventually(ctx, func() string { // the controller may not have read the report yet
			late := newTurn("")
			late.GenerateName, late.Spec.Message = "late-", "late"
			s.create(ctx, late)
			Eventually(ctx, func() string {
				waits = s.turn(ctx, late.Name)
				return waits.StateReason()
			}).Should(BeElementOf(v1alpha1.TurnReasonCompleted, v1alpha1.TurnReasonWaitingForJournalSpace))
			return waits.StateReason()
		}).Should(Equal(v1alpha1.TurnReasonWaitingForJournalSpace))
		Expect(message(waits)).To(MatchRegexp(
			`the journals of namespace "%s" use \d{3} KiB of their quota of 1.0 MiB(, and running Turns .* more)?; .*delete finished Turns`,
			s.namespace))
		Expect(apiClient.DeleteAllOf(ctx, &v1alpha1.Turn{}, client.InNamespace(s.namespace),
			client.MatchingLabels{"part": "first"})).To(Succeed())
		s.awaitState(ctx, waits.Name, v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(2*patience))

	It("lets new Turns wait for the expected writes of running Turns", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{when: {contains: hangs}, fault: {hang: AfterHeaders}}, {reply: {text: "0123456789", repeat: 5000}}]`)
		m := s.run(func(o *manager.Options) { o.JournalQuotaPerNamespace = "1Mi" })
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("first"))
		s.awaitState(ctx, "first", v1alpha1.TurnReasonCompleted)
		for i := range many {
			s.create(ctx, newTurn(fmt.Sprint("hangs-", i)))
		}
		Eventually(ctx, s.journalUse(ctx, m)).Should(And(HaveField("New", true), HaveField("Running", false)),
			"expected bytes must count")
		s.create(ctx, newTurn("late"))
		s.awaitState(ctx, "late", v1alpha1.TurnReasonWaitingForJournalSpace)
		// How many Turns run when the message is written depends on how soon the executor measures: a run that
		// begins later waits, too. But each running Turn writes from 44 to 62 KiB, as the first one did, and together
		// with what is used this must reach 80 % of the quota.
		const least, most, nearlyFull = 44, 62, 1024 * 8 / 10
		expected := regexp.MustCompile(`use (\d+) KiB of their quota of 1.0 MiB, and running Turns will write about (\d+) KiB more`)
		Eventually(func(g Gomega) {
			text := message(s.turn(ctx, "late"))
			found := expected.FindStringSubmatch(text)
			g.Expect(found).To(HaveLen(3), text)
			used, err := strconv.Atoi(found[1])
			g.Expect(err).NotTo(HaveOccurred())
			more, err := strconv.Atoi(found[2])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(used+more).To(BeNumerically(">=", nearlyFull), text)
			running := int(s.fake.Stats().InFlight)
			g.Expect(more).To(And(BeNumerically(">=", least*running), BeNumerically("<", most*running)), text)
		}).WithContext(ctx).Should(Succeed())
		for i := range many {
			s.desire(ctx, fmt.Sprint("hangs-", i), v1alpha1.DesiredStateCancelled)
		}
		s.awaitState(ctx, "late", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(2*patience))
})
