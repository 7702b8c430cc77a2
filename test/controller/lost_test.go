package controller_test

import (
	"context"
	"sync"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// payingModel asks for one payment for each message, under an account of that name, and then answers.
const payingModel = `
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: pay}]}
- reply: {text: "Done."}
`

// till is a server of tools that counts payments. While it holds them up, none returns.
type till struct {
	*callee
	payments atomic.Int64
	mu       sync.Mutex
	open     chan struct{}
}

// newTill is a till that holds payments up.
func newTill(effect v1alpha1.ToolEffect) (*till, func(*v1alpha1.ToolServer)) {
	t := &till{callee: newCallee(), open: make(chan struct{})}
	hints := destructive
	if effect == v1alpha1.ToolEffectReadOnly {
		hints = readOnly // a hint makes a declared effect stricter
	}
	t.offer("pay", hints, func(ctx context.Context, _ string) string {
		t.payments.Add(1)
		t.mu.Lock()
		open := t.open
		t.mu.Unlock()
		select {
		case <-open:
		case <-ctx.Done():
		case <-t.over:
		}
		return "Paid."
	})
	return t, declaring(v1alpha1.ToolDeclaration{Name: "pay", Effect: effect})
}

// let lets payments through, or holds them up.
func (t *till) let(through bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if through {
		close(t.open)
		return
	}
	t.open = make(chan struct{})
}

// mortal is a client whose process may die: then it writes no status any more, and takes every Turn for gone.
type mortal struct {
	client.Client
	dead *atomic.Bool
}

func (m mortal) Status() client.SubResourceWriter { return mortalWriter{m.Client.Status(), m.dead} }

type mortalWriter struct {
	client.SubResourceWriter
	dead *atomic.Bool
}

func (w mortalWriter) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if w.dead.Load() {
		return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("turns").GroupResource(), o.GetName())
	}
	return w.SubResourceWriter.Update(ctx, o, opts...)
}

// dying makes the statuses of a manager stay as they are once dead is true.
func dying(dead *atomic.Bool) func(*manager.Options) {
	return func(o *manager.Options) {
		o.Hooks.Status = func(c client.Client) client.Client { return mortal{c, dead} }
	}
}

func lostCondition(t *v1alpha1.Turn) *metav1.Condition {
	return meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionJournalLost)
}

// again starts the manager anew, under the same name and with an empty data directory.
func (m *runningManager) again(change ...func(*manager.Options)) *runningManager {
	GinkgoHelper()
	o := m.options
	o.DataDir, o.Hooks.Status = GinkgoT().TempDir(), nil
	for _, f := range change {
		f(&o)
	}
	return start(o)
}

// isLost checks that a Turn has ended because its journal was lost, and that everything says so.
func (s *stage) isLost(ctx context.Context, m *runningManager, t *v1alpha1.Turn, loss string) {
	GinkgoHelper()
	Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonInterrupted), message(t))
	Expect(t.Status.StopReason).To(Equal(v1alpha1.StopInterrupted))
	Expect(message(t)).To(HavePrefix("the journal of the turn was lost: "))
	Expect(lostCondition(t)).To(HaveField("Reason", loss))
	Expect(t.Status.Steps.UnknownOutcomes).To(BeNumerically(">=", 1))
	Expect(t.Status.PendingApprovals).To(BeEmpty())
	Eventually(s.events).WithArguments(ctx, "Turn", t.Name).WithContext(ctx).Should(ContainElements("Warning JournalLost", "Warning Failed"))
	Expect(m.logs.String()).To(ContainSubstring("the journal of the turn was lost"))
}

var _ = Describe("A manager that comes back with an empty store", func() {
	DescribeTable("makes no call a second time that may have been made", func(ctx SpecContext, killed bool) {
		const turns = 5
		s := newStage(ctx, payingModel)
		desk, declared := newTill(v1alpha1.ToolEffectDestructive)
		var dead atomic.Bool
		m := s.run(seldom, dying(&dead))
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurns(turns)...)
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(turns))
		dead.Store(killed)
		m.stop()
		desk.let(true)
		next := m.again()
		for _, t := range s.allReach(ctx, turns, v1alpha1.TurnReasonInterrupted) {
			s.isLost(ctx, next, &t, v1alpha1.TurnReasonOtherStore)
			Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		}
		Expect(desk.payments.Load()).To(BeEquivalentTo(turns), "no call is made twice")
	},
		Entry("after it was stopped", SpecTimeout(4*patience), false),
		Entry("after it was killed, under the same name", SpecTimeout(4*patience), true),
	)

	It("asks about no call a second time", func(ctx SpecContext) {
		s := newStage(ctx, payingModel)
		desk, declared := newTill(v1alpha1.ToolEffectDestructive)
		desk.let(true)
		m := s.run(seldom)
		s.equip(ctx, desk.url, "pay", declared)
		change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Tools[0].RequireApproval = []string{"pay"} })
		says(ctx, s, &v1alpha1.Agent{}, agent, func(a *v1alpha1.Agent) string {
			if len(a.Status.Tools) == 1 && a.Status.Tools[0].RequiresApproval {
				return "asks"
			}
			return ""
		}, Equal("asks"))
		s.create(ctx, newTurn("parked"))
		t := s.reaches(ctx, "parked", v1alpha1.TurnReasonAwaitingApproval)
		Expect(t.Status.Executor.JournalEntries).To(HaveValue(BeNumerically(">", 1)))
		m.stop()
		s.decides(ctx, t, 0, v1alpha1.ApprovalApproved)
		next := m.again()
		t = s.reaches(ctx, "parked", v1alpha1.TurnReasonInterrupted)
		s.isLost(ctx, next, t, v1alpha1.TurnReasonOtherStore)
		Expect(s.events(ctx, "Turn", "parked")).To(ConsistOf("Normal AwaitingApproval", "Warning JournalLost", "Warning Failed"))
		Expect(desk.payments.Load()).To(BeZero())
	}, SpecTimeout(4*patience))

	It("does not run a suspended Turn anew", func(ctx SpecContext) {
		s := newStage(ctx, payingModel)
		desk, declared := newTill(v1alpha1.ToolEffectDestructive)
		m := s.run(seldom)
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurn("suspended"))
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(1))
		s.desire(ctx, "suspended", v1alpha1.DesiredStateSuspended)
		desk.let(true)
		s.reaches(ctx, "suspended", v1alpha1.TurnReasonSuspended)
		m.stop()
		next := m.again()
		s.desire(ctx, "suspended", v1alpha1.DesiredStateActive)
		s.isLost(ctx, next, s.reaches(ctx, "suspended", v1alpha1.TurnReasonInterrupted), v1alpha1.TurnReasonOtherStore)
		Expect(desk.payments.Load()).To(BeEquivalentTo(1))
	}, SpecTimeout(4*patience))

	DescribeTable("starts a Turn over", func(ctx SpecContext, effect v1alpha1.ToolEffect, policy v1alpha1.JournalLossPolicy) {
		s := newStage(ctx, payingModel)
		desk, declared := newTill(effect)
		m := s.run(seldom)
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurn("again", func(t *v1alpha1.Turn) { t.Spec.OnJournalLoss = policy }))
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(1))
		Expect(s.turn(ctx, "again").Status.Executor.SideEffects).To(Equal(effect != v1alpha1.ToolEffectReadOnly))
		m.stop()
		desk.let(true)
		next := m.again()
		t := s.reaches(ctx, "again", v1alpha1.TurnReasonCompleted)
		Expect(lostCondition(t)).To(HaveField("Message", ContainSubstring("The turn starts over, and its status does not count what it used before")))
		Expect(desk.payments.Load()).To(BeEquivalentTo(2))
		Eventually(s.events).WithArguments(ctx, "Turn", "again").WithContext(ctx).Should(ConsistOf("Warning JournalLost", "Normal Succeeded"))
		Expect(next.logs.String()).To(ContainSubstring("The journal of a turn was lost; it starts over"))
	},
		Entry("that can only read", SpecTimeout(4*patience), v1alpha1.ToolEffectReadOnly, v1alpha1.JournalLossInterrupt),
		Entry("whose spec says Rerun", SpecTimeout(4*patience), v1alpha1.ToolEffectDestructive, v1alpha1.JournalLossRerun),
	)
})

var _ = Describe("A PostgreSQL that has lost its journals", func() {
	It("makes no manager call a tool a second time", func(ctx SpecContext) {
		s := newStage(ctx, payingModel)
		desk, declared := newTill(v1alpha1.ToolEffectDestructive)
		databaseURL := postgrestest.Database(GinkgoTB())
		m := s.run(seldom, func(o *manager.Options) { o.Store = databaseURL })
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurn("truncated"))
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(1))
		m.stop()
		for _, table := range []string{"capstan_artifact", "capstan_journal", "capstan_turn"} {
			postgrestest.Exec(GinkgoTB(), databaseURL, "TRUNCATE "+table+" CASCADE")
		}
		desk.let(true)
		next := m.again()
		s.isLost(ctx, next, s.reaches(ctx, "truncated", v1alpha1.TurnReasonInterrupted), v1alpha1.TurnReasonEntriesMissing)
		Expect(desk.payments.Load()).To(BeEquivalentTo(1))
	}, SpecTimeout(4*patience))
})
