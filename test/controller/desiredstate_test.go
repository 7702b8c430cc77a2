package controller_test

import (
	"context"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

// stuckModel never answers a message that contains the word "stuck".
const stuckModel = `rules: [{when: {contains: stuck}, fault: {hang: AfterHeaders}}]`

var _ = Describe("A Turn that is suspended", func() {
	It("before its start waits, and runs when it is set to Active", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		// The Turn must start in time when it is set to Active, so it must not wait for the first check of its Agent.
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
		const startingDeadline = 5
		s.create(ctx, newTurn("later", desired(v1alpha1.DesiredStateSuspended), startWithin(startingDeadline)))
		t := s.awaitState(ctx, "later", v1alpha1.TurnReasonSuspended)
		Expect(conditionsOf(t.Status.Conditions)).To(ConsistOf("Succeeded=Unknown Suspended"), "it is not reconciling")
		Expect(message(t)).To(Equal("the turn is suspended; set desiredState to Active to continue"))
		Expect(t.Status.StartTime).To(BeNil())

		// The starting deadline must not run while the Turn is suspended, so let it pass.
		Eventually(time.Now).Should(BeTemporally(">", t.CreationTimestamp.Add((startingDeadline+1)*time.Second)))
		s.desire(ctx, "later", v1alpha1.DesiredStateActive)
		t = s.awaitState(ctx, "later", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.ObservedGeneration).To(Equal(t.Generation))
		Expect(t.Generation).To(BeEquivalentTo(2))
	}, SpecTimeout(patience))

	It("while it waits for its Agent stays suspended when the Agent appears", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, newTurn("later"))
		s.awaitState(ctx, "later", v1alpha1.TurnReasonWaitingForAgent)
		s.desire(ctx, "later", v1alpha1.DesiredStateSuspended)
		t := s.awaitState(ctx, "later", v1alpha1.TurnReasonSuspended)
		Expect(t.Status.ObservedGeneration).To(BeEquivalentTo(2))
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("other"))
		s.awaitState(ctx, "other", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "later").StateReason()).To(Equal(v1alpha1.TurnReasonSuspended))
		s.desire(ctx, "later", v1alpha1.DesiredStateActive)
		s.awaitState(ctx, "later", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("during a model request keeps the reply, and ends with it when it is set to Active", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		release := s.hold()
		s.create(ctx, newTurn("held"))
		s.awaitHeld(ctx, 1)
		s.desire(ctx, "held", v1alpha1.DesiredStateSuspended)
		s.awaitSeen(ctx)
		release()
		t := s.awaitState(ctx, "held", v1alpha1.TurnReasonSuspended)
		Expect(t.BoundTo()).To(BeEmpty())
		Expect(t.Status.Result).To(BeNil(), "a suspended Turn has not ended")
		Expect(s.fake.Stats().ByOutcome).To(Equal(map[server.Outcome]int64{server.OutcomeAnswered: 1}))

		s.desire(ctx, "held", v1alpha1.DesiredStateActive)
		t = s.awaitState(ctx, "held", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("This is demo-small. You said: held"))
		Expect(t.Status.Steps).To(HaveValue(Equal(v1alpha1.StepCounts{Count: 1, ModelRequests: 1, Resumes: 1})))
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1), "the reply must not be paid for twice")
		Eventually(s.events).WithArguments(ctx, "Turn", "held").Should(ConsistOf("Normal Resumed", "Normal Succeeded"))
	}, SpecTimeout(patience))
})

var _ = Describe("A Turn that is cancelled", func() {
	It("before its start ends as cancelled, and stays cancelled", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, newTurn("never"))
		s.awaitState(ctx, "never", v1alpha1.TurnReasonWaitingForAgent)
		s.desire(ctx, "never", v1alpha1.DesiredStateCancelled)
		t := s.awaitState(ctx, "never", v1alpha1.TurnReasonCancelled)
		Expect(message(t)).To(Equal("the turn was cancelled before it ran"))
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopCancelled))
		Eventually(s.events).WithArguments(ctx, "Turn", "never").Should(Equal([]string{"Normal Cancelled"}))

		t.Spec.DesiredState = v1alpha1.DesiredStateActive
		Expect(apiClient.Update(ctx, t)).To(MatchError(ContainSubstring("desiredState must stay Cancelled")))
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("other"))
		s.awaitState(ctx, "other", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "never").ResourceVersion).To(Equal(t.ResourceVersion), "a finished Turn stays as it is")
	}, SpecTimeout(patience))

	It("during its run ends immediately, and so does its request", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		s.desire(ctx, "stuck", v1alpha1.DesiredStateCancelled)
		t := s.awaitState(ctx, "stuck", v1alpha1.TurnReasonCancelled)
		Expect(message(t)).To(Equal("the turn was cancelled while it ran"))
		Expect(t.Status.ObservedGeneration).To(BeEquivalentTo(2))
		Expect(t.Status.Preparation).NotTo(BeNil(), "the preparation is kept")
		s.awaitInFlight(ctx, 0)
		Expect(s.fake.Stats().Cancelled).To(BeEquivalentTo(1))
		Eventually(s.events).WithArguments(ctx, "Turn", "stuck").Should(Equal([]string{"Normal Cancelled"}))
	}, SpecTimeout(patience))

	It("while it is suspended ends as cancelled, with its usage so far", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		release := s.hold()
		s.create(ctx, newTurn("held"))
		s.awaitHeld(ctx, 1)
		s.desire(ctx, "held", v1alpha1.DesiredStateSuspended)
		s.awaitSeen(ctx)
		release()
		s.awaitState(ctx, "held", v1alpha1.TurnReasonSuspended)
		s.desire(ctx, "held", v1alpha1.DesiredStateCancelled)
		t := s.awaitState(ctx, "held", v1alpha1.TurnReasonCancelled)
		Expect(message(t)).To(Equal("the turn was cancelled"))
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopCancelled))
		Expect(t.Status.Usage).NotTo(BeNil(), "the reply was paid for before the Turn was suspended")
		Expect(t.Status.Result.Text).NotTo(BeEmpty())
		Expect(t.Status.Steps.ModelRequests).To(BeEquivalentTo(1))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))
})

var _ = Describe("A Turn with execution PrepareOnly", func() {
	It("sends no request to a model", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("dry", func(t *v1alpha1.Turn) { t.Spec.Execution = v1alpha1.ExecutionPrepareOnly }))
		t := s.awaitState(ctx, "dry", v1alpha1.TurnReasonPrepared)
		Expect(t.Status.Preparation.MessageCount).To(BeEquivalentTo(3))
		Expect(conditionsOf(t.Status.Conditions)).To(
			ConsistOf("Succeeded=True Prepared", "Prepared=True Prepared", "Finalized=True Finalized"))
		Expect(t.Status.Usage).To(BeNil())
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))
})

var _ = Describe("A finished Turn", func() {
	gone := func(ctx context.Context, s *testEnv, name string) {
		GinkgoHelper()
		Eventually(func() bool {
			return apierrors.IsNotFound(apiClient.Get(ctx, s.key(name), &v1alpha1.Turn{}))
		}).Should(BeTrue(), "the turn must be deleted")
	}

	It("is deleted with its journal when its TTL has passed", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		m := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("at-once", ttl(0)), newTurn("soon", ttl(10)), newTurn("kept"), newTurn("a-year", ttl(31536000)))
		t := s.awaitState(ctx, "soon", v1alpha1.TurnReasonCompleted)
		gone(ctx, s, "at-once")
		gone(ctx, s, "soon")
		Expect(time.Now()).To(BeTemporally(">=", t.Status.CompletionTime.Add(10*time.Second)))
		kept, year := s.awaitState(ctx, "kept", v1alpha1.TurnReasonCompleted), s.awaitState(ctx, "a-year", v1alpha1.TurnReasonCompleted)
		Eventually(m.journals).WithArguments(ctx).Should(ConsistOf(string(kept.UID), string(year.UID)))

		// A TTL that is set or shortened after the end also applies.
		change(ctx, s, "kept", &v1alpha1.Turn{}, ttl(1))
		change(ctx, s, "a-year", &v1alpha1.Turn{}, ttl(0))
		gone(ctx, s, "kept")
		gone(ctx, s, "a-year")
		Eventually(m.journals).WithArguments(ctx).Should(BeEmpty())
	}, SpecTimeout(patience))

	It("updates observedGeneration when its TTL is set after its end", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("kept"))
		s.awaitState(ctx, "kept", v1alpha1.TurnReasonCompleted)
		change(ctx, s, "kept", &v1alpha1.Turn{}, ttl(3600))
		awaitText(ctx, s, &v1alpha1.Turn{}, "kept", func(t *v1alpha1.Turn) string {
			Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonCompleted))
			return strconv.FormatInt(t.Status.ObservedGeneration, 10)
		}, Equal("2"))
	}, SpecTimeout(patience))
})

var _ = Describe("A deleted Turn", func() {
	It("that runs stops its request, and its journal is deleted", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		m := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		Expect(m.journals(ctx)).To(HaveLen(1))
		Expect(apiClient.Delete(ctx, s.turn(ctx, "stuck"))).To(Succeed())
		Eventually(func() server.Stats { return s.fake.Stats() }).Should(
			And(HaveField("InFlight", BeZero()), HaveField("Cancelled", BeEquivalentTo(1))))
		Eventually(m.journals).WithArguments(ctx).Should(BeEmpty())
	}, SpecTimeout(patience))

	It("that runs stops and frees its slot even if it has a foreign finalizer", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		s.run()
		s.create(ctx, s.basics(parallel(1))...)
		s.create(ctx, newTurn("stuck", func(t *v1alpha1.Turn) { t.Finalizers = []string{"example.com/keep"} }))
		s.awaitInFlight(ctx, 1)
		s.create(ctx, newTurn("next"), newTurn("queued-stuck", func(t *v1alpha1.Turn) { t.Finalizers = []string{"example.com/keep"} }))
		s.awaitState(ctx, "next", v1alpha1.TurnReasonQueued)
		Expect(apiClient.Delete(ctx, s.turn(ctx, "queued-stuck"))).To(Succeed())
		Expect(apiClient.Delete(ctx, s.turn(ctx, "stuck"))).To(Succeed())
		s.awaitState(ctx, "next", v1alpha1.TurnReasonCompleted)
		for _, name := range []string{"stuck", "queued-stuck"} {
			s.awaitState(ctx, name, v1alpha1.TurnReasonCancelled)
			change(ctx, s, name, &v1alpha1.Turn{}, func(t *v1alpha1.Turn) { t.Finalizers = nil })
		}
	}, SpecTimeout(patience))

	// Serial: the manager of all namespaces would take over the Turns of specs that run at the same time.
	It("that was deleted while no manager ran loses its journal when the next manager starts", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		m := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("answered"))
		t := s.awaitState(ctx, "answered", v1alpha1.TurnReasonCompleted)
		m.stop()
		Expect(apiClient.Delete(ctx, t)).To(Succeed())
		Expect(m.journals(ctx)).To(Equal([]string{string(t.UID)}))

		// Only a manager of all namespaces knows whether a Turn's namespace is gone.
		next := start(func() manager.Options {
			o := m.options
			o.WatchNamespaces = nil
			return o
		}())
		Eventually(next.journals).WithArguments(ctx).ShouldNot(ContainElement(string(t.UID)))
	}, SpecTimeout(patience))
})

// journals returns the UIDs of the Turns in the manager's journal.
func (m *runningManager) journals(ctx context.Context) []string {
	GinkgoHelper()
	store, err := sqlite.OpenReader(ctx, m.options.DataDir+"/journal.db")
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(store.Close()).To(Succeed()) }()
	uids, err := store.UIDs(ctx, "", 1000)
	Expect(err).NotTo(HaveOccurred())
	return uids
}
