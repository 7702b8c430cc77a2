package controller_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

var _ = Describe("A Turn of a Session that is deleted before its end", func() {
	// paying returns a test environment with the Turn "one", whose payment has begun. The payment server holds the
	// payment.
	paying := func(ctx context.Context) (*testEnv, *paymentServer) {
		GinkgoHelper()
		s := newTestEnv(ctx, payingModel)
		desk, declared := newPaymentServer(v1alpha1.ToolEffectReadOnly)
		s.run(rareProbes)
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurn("one", inSession))
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(1))
		return s, desk
	}

	DescribeTable("is charged to the Session, once", func(ctx SpecContext, suspended bool) {
		s, desk := paying(ctx)
		if suspended {
			s.desire(ctx, "one", v1alpha1.DesiredStateSuspended)
			s.awaitSeen(ctx)
			desk.setReleased(true)
			s.awaitState(ctx, "one", v1alpha1.TurnReasonSuspended)
		}
		Expect(apiClient.Delete(ctx, s.turn(ctx, "one"))).To(Succeed())
		Eventually(func() int64 { return s.session(ctx).Status.Turns }).WithContext(ctx).Should(BeEquivalentTo(1))
		charged := s.session(ctx).Status
		Expect(charged.Usage.TotalTokens).To(BeNumerically(">", 0))
		Expect(charged.LastTurnName).To(Equal("one"))

		if !suspended {
			desk.setReleased(true)
		}
		s.create(ctx, newTurn("two", inSession))
		two := s.awaitState(ctx, "two", v1alpha1.TurnReasonCompleted)
		Expect(two.Status.Decision.TurnNumber).To(BeEquivalentTo(2))
		Expect(s.session(ctx).Status.Turns).To(BeEquivalentTo(2))
		Expect(s.session(ctx).Status.Usage.TotalTokens).To(Equal(charged.Usage.TotalTokens + two.Status.Usage.TotalTokens))
	},
		Entry("while it runs", SpecTimeout(2*patience), false),
		Entry("while it is suspended", SpecTimeout(2*patience), true),
	)
})

var _ = Describe("A Turn that ends without an executor", func() {
	It("has the usage of its journal in its record, which agrees with Budgets", func(ctx SpecContext) {
		program := buildManager(ctx)
		s := newTestEnv(ctx, `rules: [{fault: {hang: BeforeHeaders}}]`)
		databaseURL := postgrestest.Database(GinkgoTB())
		s.create(ctx, s.basics()...)
		s.create(ctx, newBudget("month", func(b *v1alpha1.Budget) {
			b.Spec.Limits = v1alpha1.BudgetLimits{Tokens: new(int64(1_000_000))}
		}))
		s.run(sharedStore(databaseURL, "controller", 1, manager.RoleController))
		lost := s.share(ctx, program, "lost", databaseURL, apiConfig, manager.EnvPrefix+"ROLES="+manager.RoleExecutor)
		s.create(ctx, newTurn("one", timeout(30)))
		s.awaitInFlight(ctx, 1)
		Eventually(lost.Kill()).Should(gexec.Exit(137))
		one := s.awaitState(ctx, "one", v1alpha1.TurnReasonDeadlineExceeded)
		Expect(one.Status.Usage).To(BeNil(), "the executor was killed before it wrote the usage of the request")

		kept, err := postgres.Open(ctx, databaseURL)
		Expect(err).NotTo(HaveOccurred())
		defer func() { Expect(kept.Close()).To(Succeed()) }()
		var records []turnrecord.Record
		Eventually(func(g Gomega) {
			records, _, err = kept.Records(ctx, store.RecordQuery{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(records).To(HaveLen(1))
		}).WithContext(ctx).Should(Succeed())
		Expect(records[0].Reason).To(Equal(v1alpha1.TurnReasonDeadlineExceeded))
		Expect(records[0].Completed).To(BeTemporally("==", one.Status.CompletionTime.Time))
		Expect(records[0].Models).To(ConsistOf(And(HaveField("Model", modelName), HaveField("Usage.Estimated", true))))
		used := records[0].Models[0].Usage
		accounts, err := kept.Accounts(ctx, time.Now())
		Expect(err).NotTo(HaveOccurred())
		Expect(accounts).To(ConsistOf(And(HaveField("Tokens", used.InputTokens+used.OutputTokens),
			HaveField("ReservedTokens", BeZero()), HaveField("Turns", BeEquivalentTo(1)))))
		entries, err := journal.Collect(ctx, kept, string(one.UID))
		Expect(err).NotTo(HaveOccurred())
		Expect(entries[len(entries)-1].Kind).To(Equal(journal.Finalized), "the journal must have the end of the Turn")
	}, SpecTimeout(4*patience))
})

var _ = Describe("A Session with a lost history", func() {
	It("makes its next Turn wait if its policy says so, until a person continues without the history", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		m := s.run()
		s.create(ctx, append(s.basics(), newSession(func(n *v1alpha1.Session) { n.Spec.OnHistoryLoss = v1alpha1.OnHistoryLossWait }))...)
		s.create(ctx, newTurn("one", inSession))
		one := s.awaitState(ctx, "one", v1alpha1.TurnReasonCompleted)
		m.stop()
		m.restartEmpty()
		s.create(ctx, newTurn("two", inSession), newTurn("three", inSession))
		two := s.awaitState(ctx, "two", v1alpha1.TurnReasonWaitingForSession)
		Expect(message(two)).To(ContainSubstring("set spec.onHistoryLoss to Continue"))
		Eventually(func(g Gomega) {
			status := s.session(ctx).Status
			g.Expect(status.MissingTurns).To(BeEquivalentTo(1))
			g.Expect(status.Turns).To(BeEquivalentTo(1), "the usage of the lost Turn counts")
			g.Expect(meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionHistoryComplete)).To(
				HaveField("Reason", v1alpha1.ReasonHistoryLost))
			g.Expect(meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)).To(
				HaveField("Reason", v1alpha1.ReasonHistoryLost))
		}).WithContext(ctx).Should(Succeed())
		Eventually(s.events).WithArguments(ctx, "Session", conversation).WithContext(ctx).Should(ContainElement("Warning HistoryLost"))
		Expect(s.prompts()).To(HaveLen(1), "the model is not asked")

		change(ctx, s, conversation, &v1alpha1.Session{},
			func(n *v1alpha1.Session) { n.Spec.OnHistoryLoss = v1alpha1.OnHistoryLossContinue })
		two = s.awaitState(ctx, "two", v1alpha1.TurnReasonCompleted)
		three := s.awaitState(ctx, "three", v1alpha1.TurnReasonCompleted)
		Expect(meta.FindStatusCondition(two.Status.Conditions, v1alpha1.ConditionHistoryComplete)).To(
			HaveField("Reason", v1alpha1.ReasonHistoryLost))
		Expect(two.Status.Decision.TurnNumber).To(BeEquivalentTo(2))
		Expect(s.prompts()[1]).To(Equal("user: two"))
		status := s.session(ctx).Status
		Expect(status.Turns).To(BeEquivalentTo(3))
		Expect(status.Usage.TotalTokens).To(
			Equal(one.Status.Usage.TotalTokens + two.Status.Usage.TotalTokens + three.Status.Usage.TotalTokens))
	}, SpecTimeout(4*patience))
})

var _ = Describe("Times that outlive a manager whose clock is wrong", func() {
	for name, clocks := range map[string]struct{ first, second time.Duration }{
		"ahead, then behind": {10 * time.Minute, -10 * time.Minute},
		"behind, then ahead": {-10 * time.Minute, 10 * time.Minute},
	} {
		// handOver stops a manager and starts the next one, whose clock is wrong in the other direction.
		handOver := func(m *runningManager) {
			GinkgoHelper()
			m.stop()
			o := m.options
			skewed(clocks.second)(&o)
			start(o)
		}

		It("expire an approval at the right time by the clock of the API server: "+name, func(ctx SpecContext) {
			const limit = 8 * time.Second
			s := newTestEnv(ctx, payingModel)
			desk, declared := newPaymentServer(v1alpha1.ToolEffectDestructive)
			desk.setReleased(true)
			m := s.run(rareProbes, skewed(clocks.first))
			s.equip(ctx, desk.url, "pay", declared)
			change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Tools[0].RequireApproval = []string{"pay"} })
			awaitText(ctx, s, &v1alpha1.Agent{}, agent, func(a *v1alpha1.Agent) string {
				if len(a.Status.Tools) == 1 && a.Status.Tools[0].RequiresApproval {
					return "requires approval"
				}
				return ""
			}, Equal("requires approval"))
			s.create(ctx, newTurn("parked", approvalTimeout(int32(limit/time.Second))))
			t := s.awaitState(ctx, "parked", v1alpha1.TurnReasonAwaitingApproval)
			expiry := t.Status.PendingApprovals[0].ExpiryTime.Time
			Expect(expiry).To(BeTemporally("~", time.Now().Add(limit), time.Minute))
			handOver(m)
			t = s.awaitState(ctx, "parked", v1alpha1.TurnReasonCompleted)
			Expect(t.Status.CompletionTime.Time).To(BeTemporally(">=", expiry.Add(-2*time.Second)), "not before the time has passed")
			Expect(t.Status.CompletionTime.Time).To(BeTemporally("~", expiry, time.Minute))
			Expect(t.Status.ToolCalls[0].Outcome).To(BeEquivalentTo("Refused"))
			Expect(desk.payments.Load()).To(BeZero())
		}, SpecTimeout(2*patience))

		It("delete a finished Turn after its TTL by the clock of the API server: "+name, func(ctx SpecContext) {
			const ttl = 15 * time.Second
			s := newTestEnv(ctx, `apiKeys: [right-key]`)
			m := s.run(skewed(clocks.first))
			s.create(ctx, s.basics()...)
			s.create(ctx, newTurn("short-lived", func(t *v1alpha1.Turn) { t.Spec.TTLSecondsAfterFinished = new(int32(ttl / time.Second)) }))
			done := s.awaitState(ctx, "short-lived", v1alpha1.TurnReasonCompleted).Status.CompletionTime.Time
			Expect(done).To(BeTemporally("~", time.Now(), time.Minute))
			handOver(m)
			var t v1alpha1.Turn
			var gone time.Time
			Eventually(func() bool {
				gone = time.Now()
				return apierrors.IsNotFound(apiClient.Get(ctx, s.key("short-lived"), &t))
			}).WithContext(ctx).Should(BeTrue())
			Expect(gone).To(BeTemporally(">=", done.Add(ttl-2*time.Second)), "not before the time has passed")
			Expect(gone).To(BeTemporally("~", done.Add(ttl), time.Minute))
		}, SpecTimeout(2*patience))
	}
})
