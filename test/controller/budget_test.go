package controller_test

import (
	"fmt"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// newBudget returns a Budget that allows one Turn per month. Other Turns wait.
func newBudget(name string, change ...func(*v1alpha1.Budget)) *v1alpha1.Budget {
	return build(&v1alpha1.Budget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.BudgetSpec{
			Period: v1alpha1.BudgetPeriodMonth, Limits: v1alpha1.BudgetLimits{Turns: new(int64(1))},
			OnExceeded: v1alpha1.OnBudgetExceededQueue,
		},
	}, change)
}

func rejecting(b *v1alpha1.Budget) { b.Spec.OnExceeded = v1alpha1.OnBudgetExceededReject }

func ofAgents(names ...string) func(*v1alpha1.Budget) {
	return func(b *v1alpha1.Budget) {
		b.Spec.Selector = &v1alpha1.BudgetSelector{Agents: &v1alpha1.BudgetAgents{Names: names}}
	}
}

func ofRequesters(names ...string) func(*v1alpha1.Budget) {
	return func(b *v1alpha1.Budget) { b.Spec.Selector = &v1alpha1.BudgetSelector{Requesters: names} }
}

func requestedBy(name string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.RequestedBy = &v1alpha1.Requester{Username: name} }
}

// awaitReason waits until a condition of a Budget has a reason, and returns its message.
func (s *testEnv) awaitReason(ctx SpecContext, name, condition, reason string) string {
	GinkgoHelper()
	var text string
	Eventually(func(g Gomega) {
		var b v1alpha1.Budget
		g.Expect(apiClient.Get(ctx, s.key(name), &b)).To(Succeed())
		c := meta.FindStatusCondition(b.Status.Conditions, condition)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Reason).To(Equal(reason), c.Message)
		g.Expect(c.ObservedGeneration).To(Equal(b.Generation))
		text = c.Message
	}).WithContext(ctx).Should(Succeed())
	return text
}

var _ = Describe("A Budget", func() {
	// begin creates the Budget and runs a Turn that uses it up.
	begin := func(ctx SpecContext, budget *v1alpha1.Budget, change ...func(*v1alpha1.Turn)) *testEnv {
		GinkgoHelper()
		s := newTestEnv(ctx, ``)
		s.create(ctx, append(s.basics(), budget)...)
		s.run()
		s.create(ctx, newTurn("first", change...))
		s.awaitState(ctx, "first", v1alpha1.TurnReasonCompleted)
		return s
	}
	const refused = `^Budget "month"(: 1 of 1 turns are spent;| allows 1 turns per month, and 1 have begun:) ` +
		`the next period begins at \d{4}-\d\d-01T00:00:00Z$`

	It("lets Turns wait until it is raised or deleted", func(ctx SpecContext) {
		s := begin(ctx, newBudget("month"))
		s.create(ctx, newTurn("second"))
		Expect(message(s.awaitState(ctx, "second", v1alpha1.TurnReasonWaitingForBudget))).To(MatchRegexp(refused))
		Expect(s.awaitReason(ctx, "month", v1alpha1.ConditionExceeded, v1alpha1.ReasonLimitReached)).To(
			MatchRegexp(`^Budget "month": 1 of 1 turns are spent; the next period begins at \d{4}-\d\d-01T00:00:00Z$`))
		Eventually(func() []string { return s.events(ctx, "Budget", "month") }).WithContext(ctx).Should(
			ConsistOf("Warning LimitReached", "Warning WarnPercentReached"))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1), "the Turn that waits has sent no request")

		change(ctx, s, "month", &v1alpha1.Budget{}, func(b *v1alpha1.Budget) { b.Spec.Limits.Turns = new(int64(2)) })
		s.awaitState(ctx, "second", v1alpha1.TurnReasonCompleted)

		s.create(ctx, newTurn("third"))
		s.awaitState(ctx, "third", v1alpha1.TurnReasonWaitingForBudget)
		Expect(apiClient.Delete(ctx, newBudget("month", func(b *v1alpha1.Budget) { b.Namespace = s.namespace }))).To(Succeed())
		s.awaitState(ctx, "third", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("lets a Turn continue once its selector no longer selects it", func(ctx SpecContext) {
		s := begin(ctx, newBudget("month", ofAgents(agent)))
		s.create(ctx, newTurn("second"))
		s.awaitState(ctx, "second", v1alpha1.TurnReasonWaitingForBudget)
		change(ctx, s, "month", &v1alpha1.Budget{}, ofAgents("another"))
		s.awaitState(ctx, "second", v1alpha1.TurnReasonCompleted)
		change(ctx, s, "month", &v1alpha1.Budget{}, ofAgents(agent))
		s.awaitReason(ctx, "month", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
		s.create(ctx, newTurn("third"))
		Expect(message(s.awaitState(ctx, "third", v1alpha1.TurnReasonWaitingForBudget))).To(MatchRegexp(refused),
			"the Turn that was not selected does not count")
	}, SpecTimeout(patience))

	It("lets a Turn continue once the labels of its Agent no longer match", func(ctx SpecContext) {
		label := func(many int, team string) func(*v1alpha1.Agent) {
			return func(a *v1alpha1.Agent) {
				a.Labels = map[string]string{"team": team}
				for i := range many {
					a.Labels[fmt.Sprint("label-", i)] = ""
				}
			}
		}
		s := newTestEnv(ctx, ``)
		s.create(ctx, append(s.basics(), newBudget("month", func(b *v1alpha1.Budget) {
			b.Spec.Selector = &v1alpha1.BudgetSelector{Agents: &v1alpha1.BudgetAgents{LabelSelector: &v1alpha1.LabelSelector{
				MatchLabels: map[string]v1alpha1.LabelValue{"team": "a"},
			}}}
		}))...)
		change(ctx, s, agent, &v1alpha1.Agent{}, label(100, "b")) // too many labels: each Budget selects it
		s.run()
		s.create(ctx, newTurn("first"))
		s.awaitState(ctx, "first", v1alpha1.TurnReasonCompleted)
		s.create(ctx, newTurn("second"))
		s.awaitState(ctx, "second", v1alpha1.TurnReasonWaitingForBudget)
		change(ctx, s, agent, &v1alpha1.Agent{}, label(0, "b"))
		s.awaitState(ctx, "second", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("holds back neither a Turn that it has counted nor a Turn that asks no model", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		s.create(ctx, append(s.basics(), newBudget("month"))...)
		s.create(ctx, newTurn("delete", timeout(20)))
		parked := s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		s.awaitReason(ctx, "month", v1alpha1.ConditionExceeded, v1alpha1.ReasonLimitReached)
		s.create(ctx, newTurn("second"))
		s.awaitState(ctx, "second", v1alpha1.TurnReasonWaitingForBudget)
		s.create(ctx, newTurn("prompt", prepareOnly))
		s.awaitState(ctx, "prompt", v1alpha1.TurnReasonPrepared)
		s.decide(ctx, parked, 0, v1alpha1.ApprovalApproved)
		s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))

	It("ends Turns before their first request", func(ctx SpecContext) {
		s := begin(ctx, newBudget("month", rejecting))
		s.create(ctx, newTurn("second"))
		Expect(message(s.awaitState(ctx, "second", v1alpha1.TurnReasonBudgetExceeded))).To(MatchRegexp(refused))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))

	It("of requesters applies to all Turns while the API server does not check who asks", func(ctx SpecContext) {
		s := begin(ctx, newBudget("month", rejecting, ofRequesters("eve")), requestedBy("ada"))
		s.create(ctx, newTurn("second", requestedBy("bob")), newTurn("third"))
		for _, name := range []string{"second", "third"} {
			Expect(message(s.awaitState(ctx, name, v1alpha1.TurnReasonBudgetExceeded))).To(MatchRegexp(refused))
		}
		Expect(s.awaitReason(ctx, "month", v1alpha1.ConditionReady, v1alpha1.ReasonRequestersNotChecked)).To(Equal(
			"the API server does not check requesters, so the budget applies to the Turns of all requesters: install config/policy, " +
				"or set requesterPolicy.install=true in the chart"))
	}, SpecTimeout(patience))

	It("of requesters applies to their Turns and to those without a requester", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.create(ctx, append(s.basics(), newBudget("month", rejecting, ofRequesters("eve", "robin")))...)
		s.run(func(o *manager.Options) { o.TrustRequestedBy = true })
		s.create(ctx, newTurn("of-ada", requestedBy("ada")), newTurn("of-robin", requestedBy("robin")))
		s.awaitState(ctx, "of-ada", v1alpha1.TurnReasonCompleted)
		s.awaitState(ctx, "of-robin", v1alpha1.TurnReasonCompleted)
		s.create(ctx, newTurn("of-eve", requestedBy("eve")), newTurn("of-nobody"), newTurn("again-of-ada", requestedBy("ada")))
		s.awaitState(ctx, "again-of-ada", v1alpha1.TurnReasonCompleted)
		for _, name := range []string{"of-eve", "of-nobody"} {
			Expect(message(s.awaitState(ctx, name, v1alpha1.TurnReasonBudgetExceeded))).To(MatchRegexp(refused))
		}
		s.awaitReason(ctx, "month", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	}, SpecTimeout(patience))
})
