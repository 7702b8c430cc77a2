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

// payingModel calls the tool pay once per Turn, and then answers.
const payingModel = `
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: pay}]}
- reply: {text: "Done."}
`

// paymentServer is a tool server that counts payments. While it holds payments, no call returns.
type paymentServer struct {
	*fakeToolServer
	payments atomic.Int64
	mu       sync.Mutex
	// released is closed to release the payments.
	released chan struct{}
}

// newPaymentServer returns a server that holds all payments, and a change of its ToolServer that declares the effect of
// the tool pay.
func newPaymentServer(effect v1alpha1.ToolEffect) (*paymentServer, func(*v1alpha1.ToolServer)) {
	t := &paymentServer{fakeToolServer: newFakeToolServer(), released: make(chan struct{})}
	hints := destructive
	if effect == v1alpha1.ToolEffectReadOnly {
		hints = readOnly // a hint would make a declared effect stricter
	}
	t.offer("pay", hints, func(ctx context.Context, _ string) string {
		t.payments.Add(1)
		t.mu.Lock()
		released := t.released
		t.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
		case <-t.over:
		}
		return "Paid."
	})
	return t, declaring(v1alpha1.ToolDeclaration{Name: "pay", Effect: effect})
}

// setReleased releases the payments, or holds new payments again.
func (t *paymentServer) setReleased(released bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if released {
		close(t.released)
		return
	}
	t.released = make(chan struct{})
}

// dyingClient is a client whose process may die. After its death, each status write fails as if the Turn were gone.
type dyingClient struct {
	client.Client
	dead *atomic.Bool
}

func (m dyingClient) Status() client.SubResourceWriter {
	return dyingStatusWriter{m.Client.Status(), m.dead}
}

type dyingStatusWriter struct {
	client.SubResourceWriter
	dead *atomic.Bool
}

func (w dyingStatusWriter) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if w.dead.Load() {
		return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("turns").GroupResource(), o.GetName())
	}
	return w.SubResourceWriter.Update(ctx, o, opts...)
}

// dying stops all status writes of a manager once dead is true.
func dying(dead *atomic.Bool) func(*manager.Options) {
	return func(o *manager.Options) {
		o.Hooks.Status = func(c client.Client) client.Client { return dyingClient{c, dead} }
	}
}

func lostCondition(t *v1alpha1.Turn) *metav1.Condition {
	return meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionJournalLost)
}

// restartEmpty restarts the manager under the same name with an empty data directory.
func (m *runningManager) restartEmpty(change ...func(*manager.Options)) *runningManager {
	GinkgoHelper()
	o := m.options
	o.DataDir, o.Hooks.Status = GinkgoT().TempDir(), nil
	for _, f := range change {
		f(&o)
	}
	return start(o)
}

// expectLost checks that a Turn has ended because its journal was lost, and that its condition, its Events and the log
// report it.
func (s *testEnv) expectLost(ctx context.Context, m *runningManager, t *v1alpha1.Turn, loss string) {
	GinkgoHelper()
	Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonInterrupted), message(t))
	Expect(t.Status.StopReason).To(Equal(v1alpha1.StopInterrupted))
	Expect(message(t)).To(HavePrefix("the journal of the turn was lost: "))
	Expect(lostCondition(t)).To(HaveField("Reason", loss))
	Expect(t.Status.Steps.UnknownOutcomes).To(BeNumerically(">=", 1))
	Expect(t.Status.PendingApprovals).To(BeEmpty())
	Eventually(s.events).WithArguments(ctx, "Turn",
		t.Name).WithContext(ctx).Should(ContainElements("Warning JournalLost", "Warning Failed"))
	Expect(m.logs.String()).To(ContainSubstring("the journal of the turn was lost"))
}

var _ = Describe("A manager that restarts with an empty store", func() {
	DescribeTable("repeats no call that may have been made", func(ctx SpecContext, killed bool) {
		const turns = 5
		s := newTestEnv(ctx, payingModel)
		desk, declared := newPaymentServer(v1alpha1.ToolEffectDestructive)
		var dead atomic.Bool
		m := s.run(rareProbes, dying(&dead))
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurns(turns)...)
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(turns))
		dead.Store(killed)
		m.stop()
		desk.setReleased(true)
		next := m.restartEmpty()
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonInterrupted) {
			s.expectLost(ctx, next, &t, v1alpha1.TurnReasonOtherStore)
			Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		}
		Expect(desk.payments.Load()).To(BeEquivalentTo(turns), "no call is made twice")
	},
		Entry("after it was stopped", SpecTimeout(4*patience), false),
		Entry("after it was killed, under the same name", SpecTimeout(4*patience), true),
	)

	It("requests no approval a second time", func(ctx SpecContext) {
		s := newTestEnv(ctx, payingModel)
		desk, declared := newPaymentServer(v1alpha1.ToolEffectDestructive)
		desk.setReleased(true)
		m := s.run(rareProbes)
		s.equip(ctx, desk.url, "pay", declared)
		change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Tools[0].RequireApproval = []string{"pay"} })
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, func(a *v1alpha1.Agent) string {
			if len(a.Status.Tools) == 1 && a.Status.Tools[0].RequiresApproval {
				return "requires approval"
			}
			return ""
		}, Equal("requires approval"))
		s.create(ctx, newTurn("parked"))
		t := s.awaitState(ctx, "parked", v1alpha1.TurnReasonAwaitingApproval)
		Expect(t.Status.Executor.JournalEntries).To(HaveValue(BeNumerically(">", 1)))
		Eventually(s.events).WithArguments(ctx, "Turn", "parked").Should(ContainElement("Normal AwaitingApproval"))
		m.stop()
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		next := m.restartEmpty()
		t = s.awaitState(ctx, "parked", v1alpha1.TurnReasonInterrupted)
		s.expectLost(ctx, next, t, v1alpha1.TurnReasonOtherStore)
		Expect(s.events(ctx, "Turn", "parked")).To(ConsistOf("Normal AwaitingApproval", "Warning JournalLost", "Warning Failed"))
		Expect(desk.payments.Load()).To(BeZero())
	}, SpecTimeout(4*patience))

	It("does not run a suspended Turn again", func(ctx SpecContext) {
		s := newTestEnv(ctx, payingModel)
		desk, declared := newPaymentServer(v1alpha1.ToolEffectDestructive)
		m := s.run(rareProbes)
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurn("suspended"))
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(1))
		s.desire(ctx, "suspended", v1alpha1.DesiredStateSuspended)
		s.awaitSeen(ctx)
		desk.setReleased(true)
		s.awaitState(ctx, "suspended", v1alpha1.TurnReasonSuspended)
		m.stop()
		next := m.restartEmpty()
		s.desire(ctx, "suspended", v1alpha1.DesiredStateActive)
		s.expectLost(ctx, next, s.awaitState(ctx, "suspended", v1alpha1.TurnReasonInterrupted), v1alpha1.TurnReasonOtherStore)
		Expect(desk.payments.Load()).To(BeEquivalentTo(1))
	}, SpecTimeout(4*patience))

	DescribeTable("starts a Turn over", func(ctx SpecContext, effect v1alpha1.ToolEffect, policy v1alpha1.JournalLossPolicy) {
		s := newTestEnv(ctx, payingModel)
		desk, declared := newPaymentServer(effect)
		m := s.run(rareProbes)
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurn("again", func(t *v1alpha1.Turn) { t.Spec.OnJournalLoss = policy }))
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(1))
		Expect(s.turn(ctx, "again").Status.Executor.SideEffects).To(Equal(effect != v1alpha1.ToolEffectReadOnly))
		m.stop()
		desk.setReleased(true)
		next := m.restartEmpty()
		t := s.awaitState(ctx, "again", v1alpha1.TurnReasonCompleted)
		Expect(lostCondition(t)).To(HaveField("Message",
			ContainSubstring("The turn starts over, and its status does not count its earlier usage")))
		Expect(desk.payments.Load()).To(BeEquivalentTo(2))
		Eventually(s.events).WithArguments(ctx, "Turn",
			"again").WithContext(ctx).Should(ConsistOf("Warning JournalLost", "Normal Succeeded"))
		Expect(next.logs.String()).To(ContainSubstring("The journal of a turn was lost; the turn starts over"))
	},
		Entry("that can only read", SpecTimeout(4*patience), v1alpha1.ToolEffectReadOnly, v1alpha1.JournalLossInterrupt),
		Entry("whose spec says Rerun", SpecTimeout(4*patience), v1alpha1.ToolEffectDestructive, v1alpha1.JournalLossRerun),
	)
})

var _ = Describe("A PostgreSQL that has lost its journals", func() {
	It("does not make a manager call a tool a second time", func(ctx SpecContext) {
		s := newTestEnv(ctx, payingModel)
		desk, declared := newPaymentServer(v1alpha1.ToolEffectDestructive)
		databaseURL := postgrestest.Database(GinkgoTB())
		m := s.run(rareProbes, func(o *manager.Options) { o.Store = databaseURL })
		s.equip(ctx, desk.url, "pay", declared)
		s.create(ctx, newTurn("truncated"))
		Eventually(desk.payments.Load).WithContext(ctx).Should(BeEquivalentTo(1))
		m.stop()
		for _, table := range []string{"capstan_artifact", "capstan_journal", "capstan_turn"} {
			postgrestest.Exec(GinkgoTB(), databaseURL, "TRUNCATE "+table+" CASCADE")
		}
		desk.setReleased(true)
		next := m.restartEmpty()
		s.expectLost(ctx, next, s.awaitState(ctx, "truncated", v1alpha1.TurnReasonInterrupted), v1alpha1.TurnReasonEntriesMissing)
		Expect(desk.payments.Load()).To(BeEquivalentTo(1))
	}, SpecTimeout(4*patience))
})
