package controller_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/shopspring/decimal"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

var _ = Describe("A manager that is stopped in the middle of 50 Turns", func() {
	const turns, slots = 50, 20

	It("lets running Turns end, and the next manager runs the rest", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{fault: {latencyMilliseconds: 2000}}]`)
		m := s.run(func(o *manager.Options) { o.MaxConcurrentTurns, o.ShutdownGraceSeconds = slots, 25 })
		s.create(ctx, s.basics()...)
		release := s.hold()
		s.create(ctx, newTurns(turns)...)
		s.awaitHeld(ctx, slots)
		release()
		m.stop()
		states := s.states(ctx)
		Expect(states[v1alpha1.TurnReasonCompleted]).To(BeNumerically(">=", slots), "the reply that was paid for is kept: %v", states)
		Expect(states[v1alpha1.TurnReasonRunning]).To(BeZero(), "nothing may stay bound to a process that has stopped: %v", states)

		o := m.options
		o.MaxConcurrentTurns = turns
		start(o)
		s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted)
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(turns), "no reply is paid for twice")
	}, SpecTimeout(2*patience))

	It("without a grace period hands running Turns back, and the next manager runs them again", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{fault: {latencyMilliseconds: 2000}}]`)
		m := s.run(func(o *manager.Options) { o.MaxConcurrentTurns = slots })
		s.create(ctx, s.basics()...)
		release := s.hold()
		s.create(ctx, newTurns(turns)...)
		s.awaitHeld(ctx, slots)
		m.stop()
		release() // the model notices only now that the manager has closed its connections
		s.awaitHeld(ctx, 0)
		s.awaitInFlight(ctx, 0)
		Eventually(s.states).WithContext(ctx).WithArguments(ctx).ShouldNot(HaveKey(v1alpha1.TurnReasonRunning), "all are handed back")

		o := m.options
		o.MaxConcurrentTurns = turns
		start(o)
		again := 0
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted) {
			again += int(t.Status.Executor.Epoch) - 1
		}
		Expect(again).To(Equal(slots), "each Turn that ran is bound a second time")
		Expect(s.fake.Stats().ByOutcome[server.OutcomeAnswered]).To(BeEquivalentTo(turns))
	}, SpecTimeout(2*patience))
})

// states counts the Turns of the test environment by state.
func (s *testEnv) states(ctx context.Context) map[string]int {
	GinkgoHelper()
	var turns v1alpha1.TurnList
	Expect(apiClient.List(ctx, &turns, client.InNamespace(s.namespace))).To(Succeed())
	states := map[string]int{}
	for i := range turns.Items {
		states[turns.Items[i].StateReason()]++
	}
	return states
}

var _ = Describe("A Turn whose reply was in the journal when its process died", func() {
	It("ends with that reply and without a model request", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		o := s.options()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("paid"))
		t := s.turn(ctx, "paid")
		bound(t, o.ExecutorName, 1)
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		record(ctx, o, t,
			journal.Record{Kind: journal.Prepared, Payload: prepare.Prepared{
				Prompt: prepare.Prompt{
					Provider: provider, Model: modelName, Messages: []model.Message{{Role: model.RoleUser, Content: "paid"}},
				},
				Report: prepare.Report{
					ContextHash: "0123456789abcdef",
					Profile:     prepare.Revision{Name: profile, ID: "house", Version: "1.0.0"},
				},
			}},
			journal.Record{Kind: journal.ModelRequested, Payload: loop.Request{Provider: provider, Model: modelName, Attempt: 1}},
			journal.Record{Kind: journal.ModelReplied, Payload: loop.Step{
				Step: 1, Provider: provider, Model: modelName,
				Reply: model.Reply{
					Text: "the answer that was paid for", FinishReason: model.FinishStop,
					Usage: model.Usage{InputTokens: 1_000_000, OutputTokens: 1_000_000},
				},
				Cost: &model.Cost{Amount: decimal.NewFromInt(3), Currency: "USD"}, // at the prices at that time
			}})

		start(o)
		t = s.awaitState(ctx, "paid", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("the answer that was paid for"))
		Expect(t.Status.Usage.Cost).To(HaveValue(Equal(v1alpha1.Cost{Amount: "3", Currency: "USD"})))
		Expect(t.Status.Preparation.ContextHash).To(Equal("0123456789abcdef"))
		Expect(t.Status.Steps).To(HaveValue(Equal(v1alpha1.StepCounts{Count: 1, ModelRequests: 1, Resumes: 1})))
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		Expect(s.fake.Stats().Requests).To(BeZero())
		Eventually(s.events).WithArguments(ctx, "Turn", "paid").Should(ConsistOf("Normal Resumed", "Normal Succeeded"))
	}, SpecTimeout(patience))

	It("is bound until its epoch is not older than the journal's, if the journal is ahead of the Turn", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		o := s.options()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("restored"))
		t := s.turn(ctx, "restored")
		bound(t, o.ExecutorName, 1) // as after a restore of the cluster from a backup
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		store, err := sqlite.Open(ctx, filepath.Join(o.DataDir, "journal.db"))
		Expect(err).NotTo(HaveOccurred())
		Expect(store.Append(ctx, string(t.UID), journal.Entry{Seq: 1, Epoch: 4, Kind: "note", Payload: []byte("{}")})).To(Succeed())
		Expect(store.Close()).To(Succeed())

		start(o)
		t = s.awaitState(ctx, "restored", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Executor.Epoch).To(BeNumerically(">=", 4))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))
})

var _ = Describe("A Turn with an unreadable journal", func() {
	It("ends, reports it, and blocks no other Turn", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		o := s.options()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("damaged"))
		t := s.turn(ctx, "damaged")
		bound(t, o.ExecutorName, 1)
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		store, err := sqlite.Open(ctx, filepath.Join(o.DataDir, "journal.db"))
		Expect(err).NotTo(HaveOccurred())
		Expect(store.Append(ctx, string(t.UID),
			journal.Entry{Seq: 1, Epoch: 1, Kind: journal.Prepared, Version: 1, Payload: []byte(`"torn`)})).To(Succeed())
		Expect(store.Close()).To(Succeed())

		start(o)
		t = s.awaitState(ctx, "damaged", v1alpha1.TurnReasonInterrupted)
		Expect(message(t)).To(And(ContainSubstring(`entry 1 ("prepared")`), ContainSubstring("the journal is damaged")))
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopInterrupted))
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))
})

// record writes the journal of a Turn's first binding.
func record(ctx context.Context, o manager.Options, t *v1alpha1.Turn, records ...journal.Record) {
	GinkgoHelper()
	store, err := sqlite.Open(ctx, filepath.Join(o.DataDir, "journal.db"))
	Expect(err).NotTo(HaveOccurred())
	log, err := journal.Open(ctx, string(t.UID), 1, journal.Options{
		Journal: store, Now: time.Now, Apply: func(journal.Entry) error { return nil },
		First: func() []journal.Record { return []journal.Record{{Kind: journal.RunStarted, Payload: struct{}{}}} },
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(log.Append(ctx, records...)).To(Succeed())
	Expect(store.Close()).To(Succeed())
}

var _ = Describe("A Turn of a lost executor", func() {
	// lease returns the Lease of an executor that was renewed some time ago.
	lease := func(name string, ago time.Duration, seconds int32) *coordinationv1.Lease {
		renewed := metav1.NewMicroTime(time.Now().Add(-ago))
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: executor.LeasePrefix + name, Labels: map[string]string{executor.LeaseLabel: executor.LeaseLabelValue},
				Annotations: map[string]string{executor.CapacityAnnotation: "0"},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &renewed, LeaseDurationSeconds: &seconds},
		}
	}

	DescribeTable("is bound again with the next epoch", func(ctx SpecContext, ago time.Duration, seconds int32) {
		s := newTestEnv(ctx, ``)
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("orphan"))
		t := s.turn(ctx, "orphan")
		bound(t, "lost", 7)
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		if seconds > 0 {
			s.create(ctx, lease("lost", ago, seconds))
		}
		m := s.run()
		t = s.awaitState(ctx, "orphan", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Executor).To(beBound(m.options.ExecutorName, 8))
		Expect(t.Status.Steps.Resumes).To(BeZero(), "no earlier run has left entries to continue from")
		Expect(t.Status.CompletionTime.Time).To(BeTemporally(">=", t.Status.StartTime.Add(time.Duration(seconds)*time.Second-ago)),
			"an executor keeps its Turns until its Lease has expired")
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	},
		Entry("without a Lease", SpecTimeout(patience), time.Duration(0), int32(0)),
		Entry("whose Lease has expired", SpecTimeout(patience), time.Hour, int32(15)),
		Entry("whose Lease expires", SpecTimeout(patience), time.Duration(0), int32(2)),
	)

	It("is ended by another executor if its deadline has passed", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.create(ctx, newTurn("orphan", timeout(300)))
		t := s.turn(ctx, "orphan")
		bound(t, "lost", 1)
		// For another 5 minutes, the Turn waits for an executor that reads its journal.
		t.Status.StartTime = &metav1.MicroTime{Time: time.Now().Add(-301 * time.Second)}
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		s.run()
		t = s.awaitState(ctx, "orphan", v1alpha1.TurnReasonDeadlineExceeded)
		// An executor ends the Turn and finds no journal. The Turn's status does not record which store has the
		// journal.
		Expect(message(t)).To(HavePrefix("the turn reached its time limit of 5m0s, and the journal of the turn was lost"))
		Expect(message(t)).To(ContainSubstring("did not record its store"))
	}, SpecTimeout(patience))
})

var _ = Describe("A Turn whose end was in the journal when its process died", func() {
	It("ends with its answer, although its time ended long before another process starts", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		m := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("paid", timeout(60)))
		t := s.awaitState(ctx, "paid", v1alpha1.TurnReasonCompleted)
		answer := t.Status.Result.Text
		m.stop()
		// The process died before it wrote the end into the status.
		binding := *t.Status.Executor
		binding.Name = m.options.ExecutorName
		t.Status = v1alpha1.TurnStatus{}
		bound(t, binding.Name, binding.Epoch)
		t.Status.Executor = &binding
		t.Status.StartTime = &metav1.MicroTime{Time: time.Now().Add(-10 * time.Minute)}
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())

		o := m.options
		o.ExecutorName = "replaced"
		gate := make(chan struct{})
		slow := rest.CopyConfig(apiConfig)
		slow.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return heldBack{next, executor.LeasePrefix + o.ExecutorName, gate}
		})
		startAs(slow, o)
		t = s.awaitState(ctx, "paid", v1alpha1.TurnReasonPending)
		Expect(message(t)).To(Equal("no executor is running"))
		close(gate)
		t = s.awaitState(ctx, "paid", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result).To(HaveValue(HaveField("Text", answer)))
		Expect(t.Status.Executor).To(beBound("replaced", binding.Epoch+1))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))
})

// heldBack holds the requests for a Lease back until the gate is closed.
type heldBack struct {
	next  http.RoundTripper
	lease string
	gate  <-chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (h heldBack) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/leases/"+h.lease) {
		select {
		case <-h.gate:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return h.next.RoundTrip(r)
}

var _ = Describe("An executor whose Turn was bound elsewhere", func() {
	It("stops its run and writes nothing", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckModel)
		m := s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("stuck"))
		s.awaitInFlight(ctx, 1)
		s.awaitState(ctx, "stuck", v1alpha1.TurnReasonRunning)
		t := s.turn(ctx, "stuck")
		t.Status.Executor = &v1alpha1.ExecutorBinding{Name: "elsewhere", Epoch: 2}
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())

		s.awaitInFlight(ctx, 0)
		Eventually(running).Should(BeZero())
		m.stop()
		Expect(s.turn(ctx, "stuck").ResourceVersion).To(Equal(t.ResourceVersion))
		Expect(s.events(ctx, "Turn", "stuck")).To(BeEmpty())
	}, SpecTimeout(patience))
})
