package controller_test

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// delegatingModel calls the sub-agent helper if the message begins with "delegate", with the rest of the message as the
// task. Any other task tells the model how to behave.
const delegatingModel = `
rules:
- when: {matches: "^delegate", toolMessages: 0, hasTools: true}
  reply: {toolCalls: [{name: helper, arguments: '{"task": {{ first "delegate (.*)" .User | json }}, "context": "It is blue."}'}]}
- when: {matches: "^delegate"}
  reply: {text: "I was told so."}
- when: {contains: "subtask stuck"}
  fault: {hang: AfterHeaders}
- when: {contains: "subtask fail"}
  fault: {status: 400}
- when: {contains: "subtask delete", toolMessages: 0}
  reply: {toolCalls: [{name: delete, arguments: '{"name": "a"}'}]}
- when: {contains: "subtask long"}
  reply: {text: '{{ range groups "." "0123456789" }}` +
	`{{ range groups "." "0123456789012345678901234567890123456789" }}` +
	`{{ range groups "." "0123456789" }}0123456789{{ end }}{{ end }}{{ end }} and the end'}
- when: {contains: "subtask"}
  reply: {text: "The answer is 42."}
`

// helper is the name of the Agent to which other Agents delegate tasks.
const helper = "helper"

func delegates(a *v1alpha1.Agent) {
	a.Spec.Tools = []v1alpha1.AgentTool{{AgentRef: &v1alpha1.SharedReference{Name: helper}}}
}

// team returns an Agent and its sub-agent helper, which has itself as a sub-agent, too.
func (s *testEnv) team() []client.Object {
	return append(s.basics(delegates), newAgent(helper, delegates))
}

func asking(message string, change ...func(*v1alpha1.Turn)) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Spec.Message = message
		build(t, change)
	}
}

// awaitChild waits for the Turn of a Turn's sub-agent.
func (s *testEnv) awaitChild(ctx context.Context, parent string) *v1alpha1.Turn {
	GinkgoHelper()
	var found v1alpha1.Turn
	Eventually(func(g Gomega) {
		var turns v1alpha1.TurnList
		g.Expect(apiClient.List(ctx, &turns, client.InNamespace(s.namespace),
			client.MatchingLabels{"capstan.dev/parent": parent})).To(Succeed())
		g.Expect(turns.Items).To(HaveLen(1), "each call creates one Turn")
		found = turns.Items[0]
	}).WithContext(ctx).Should(Succeed())
	return &found
}

// lastMessage returns the last message of the last request.
func (s *testEnv) lastMessage() string {
	heard := s.heard()
	last := heard[len(heard)-1]
	return last[len(last)-1].Content
}

var _ = Describe("A sub-agent", func() {
	It("works in a Turn of its own, in the only slot, and its usage counts", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		s.run(func(o *manager.Options) { o.MaxConcurrentTurns = 1 })
		s.create(ctx, s.team()...)
		release := s.hold()
		s.create(ctx, newTurn("parent", asking("delegate subtask one", func(t *v1alpha1.Turn) {
			t.Spec.WebMode = v1alpha1.WebModeOn
			t.Spec.Limits = &v1alpha1.Limits{MaxTokens: new(int64(100_000)), MaxCost: new("10"), TimeoutSeconds: new(int32(60))}
		})))
		s.awaitHeld(ctx, 1)
		release()
		t := s.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		c := s.awaitChild(ctx, "parent")
		Expect(c.StateReason()).To(Equal(v1alpha1.TurnReasonCompleted))
		Expect(c.Spec.Message).To(Equal("subtask one\n\nContext:\nIt is blue."))
		Expect(c.Spec.Depth).To(HaveValue(BeEquivalentTo(1)))
		Expect(c.Spec.WebMode).To(Equal(v1alpha1.WebModeOn))
		Expect(*c.Spec.Limits.TimeoutSeconds).To(BeNumerically("<=", 60))
		Expect(*c.Spec.Limits.MaxTokens).To(And(BeNumerically("<", 100_000), BeNumerically(">", 90_000)))
		Expect(*c.Spec.Limits.MaxCost).To(HavePrefix("9.99"))
		Expect(c.Status.Preparation.Mode).To(Equal(v1alpha1.PromptModeMinimal))
		owner := metav1.GetControllerOf(c)
		Expect(owner.UID).To(Equal(t.UID))
		Expect(*owner.BlockOwnerDeletion).To(BeFalse())

		Expect(s.lastMessage()).To(ContainSubstring("The answer is 42."))
		Expect(t.Status.ToolCalls).To(HaveLen(1))
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallSucceeded))
		Expect(t.Status.ToolCalls[0].Turn).To(Equal(c.Name))
		Expect(t.Status.SubAgentUsage).To(Equal(c.Status.Usage))
		Expect(t.Status.AwaitedTurns).To(BeEmpty())
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2), "the Turn is parked once, and bound again")
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(3))
	}, SpecTimeout(patience))

	// endsFirst ends a Turn with two levels of sub-agents, and checks that these end before the Turn.
	endsFirst := func(ctx context.Context, state string, end func(s *testEnv), change ...func(*v1alpha1.Turn)) {
		s := newTestEnv(ctx, delegatingModel)
		s.run()
		s.create(ctx, append(s.team(), newTurn("parent", asking("delegate delegate subtask stuck", change...)))...)
		s.awaitReceived(ctx, 3) // the requests of its two callers, and its own
		s.awaitInFlight(ctx, 1)
		first := s.awaitChild(ctx, "parent")
		end(s)
		t := s.awaitState(ctx, "parent", state)
		first = s.turn(ctx, first.Name)
		Expect(first.IsFinished()).To(BeTrue(), "no sub-agent may run for a Turn that has ended")
		second := s.awaitChild(ctx, first.Name)
		Expect(second.IsFinished()).To(BeTrue(), "nor may a sub-agent of a sub-agent")
		Expect(first.Status.Usage.TotalTokens).To(BeNumerically(">", 0))
		Expect(second.Status.Usage).To(HaveValue(HaveField("Estimated", true)), "its request was cut off, and may be billed")
		Expect(t.Status.SubAgentUsage.TotalTokens).To(Equal(first.Status.Usage.TotalTokens+second.Status.Usage.TotalTokens),
			"the usage of both counts")
		Expect(t.Status.Descendants).To(BeEquivalentTo(2))
		Expect(t.Status.Usage.TotalTokens).To(BeNumerically(">", 0))
	}

	It("that runs when its caller is cancelled ends before the caller, and its usage counts", func(ctx SpecContext) {
		endsFirst(ctx, v1alpha1.TurnReasonCancelled, func(s *testEnv) { s.desire(ctx, "parent", v1alpha1.DesiredStateCancelled) })
	}, SpecTimeout(2*patience))

	It("that runs at the deadline of its caller ends before the caller, even without its Agent", func(ctx SpecContext) {
		endsFirst(ctx, v1alpha1.TurnReasonDeadlineExceeded, func(s *testEnv) {
			Expect(apiClient.Delete(ctx, &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: agent}})).To(Succeed())
		}, timeout(25))
	}, SpecTimeout(2*patience))

	It("returns a long answer completely", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		s.run()
		s.create(ctx, append(s.team(), newTurn("parent", asking("delegate subtask long")))...)
		t := s.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		c := s.awaitChild(ctx, "parent")
		Expect(c.Status.Result.Truncated).To(BeTrue())
		Expect(t.Status.ToolCalls[0].Bytes).To(Equal(c.Status.Result.Bytes))
		Expect(s.lastMessage()).To(ContainSubstring("and the end"))
	}, SpecTimeout(patience))

	It("that fails is data for the model, and its usage counts", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		s.run()
		s.create(ctx, append(s.team(), newTurn("parent", asking("delegate subtask fail")))...)
		t := s.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		Expect(s.awaitChild(ctx, "parent").StateReason()).To(Equal(v1alpha1.TurnReasonModelFailed))
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallFailed))
		Expect(t.Status.ToolCalls[0].Turn).To(Equal(s.awaitChild(ctx, "parent").Name))
		Expect(s.lastMessage()).To(ContainSubstring("error (failed): the sub-agent did not succeed (ModelFailed)"))
	}, SpecTimeout(patience))

	It("hands work on as deep as the limits allow", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		s.run()
		s.create(ctx, append(s.team(), newTurn("parent", asking("delegate delegate delegate delegate subtask", func(t *v1alpha1.Turn) {
			t.Spec.Limits = &v1alpha1.Limits{MaxDepth: new(int32(2))}
		})))...)
		t := s.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		first := s.awaitChild(ctx, "parent")
		second := s.awaitChild(ctx, first.Name)
		Expect(second.Spec.Depth).To(HaveValue(BeEquivalentTo(2)))
		Expect(second.Spec.Limits.MaxDepth).To(HaveValue(BeEquivalentTo(2)))
		Expect(second.Status.ToolCalls).To(BeEmpty(), "it has no sub-agent to call")
		var turns v1alpha1.TurnList
		Expect(apiClient.List(ctx, &turns, client.InNamespace(s.namespace))).To(Succeed())
		Expect(turns.Items).To(HaveLen(3))
		Expect(first.Status.SubAgentUsage.TotalTokens).To(Equal(second.Status.Usage.TotalTokens))
		Expect(t.Status.SubAgentUsage.TotalTokens).To(Equal(first.Status.Usage.TotalTokens+second.Status.Usage.TotalTokens),
			"the usage of all levels counts")
	}, SpecTimeout(patience))

	It("ends with its caller, and so do its own sub-agents", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		s.run()
		s.create(ctx, append(s.team(), newTurn("parent", asking("delegate delegate subtask stuck")))...)
		waits := s.awaitState(ctx, "parent", v1alpha1.TurnReasonWaitingForSubAgent)
		first := s.awaitChild(ctx, "parent")
		Expect(waits.Status.AwaitedTurns).To(Equal([]string{first.Name}))
		Expect(waits.Status.ParkedTime).To(BeNil(), "its time limit keeps running")
		Expect(message(waits)).To(Equal("the Turn " + first.Name + " of a sub-agent has not ended"))
		second := s.awaitChild(ctx, first.Name)
		s.awaitInFlight(ctx, 1)
		s.desire(ctx, "parent", v1alpha1.DesiredStateCancelled)
		for _, name := range []string{"parent", first.Name, second.Name} {
			s.awaitState(ctx, name, v1alpha1.TurnReasonCancelled)
		}
		s.awaitInFlight(ctx, 0)
	}, SpecTimeout(patience))

	It("has less time than its caller, which can report it", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		s.run()
		s.create(ctx, append(s.team(), newTurn("parent", asking("delegate subtask stuck", timeout(60))))...)
		s.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, s.awaitChild(ctx, "parent").Name).StateReason()).To(Equal(v1alpha1.TurnReasonDeadlineExceeded))
		Expect(s.lastMessage()).To(ContainSubstring("the sub-agent did not succeed (DeadlineExceeded)"))
	}, SpecTimeout(2*patience))

	It("ends at the deadline of its caller", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		s.run()
		s.create(ctx, append(s.basics(delegates), newAgent(helper, parallel(1)))...)
		s.create(ctx, newTurn("busy", asking("subtask stuck", func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = helper })))
		s.awaitInFlight(ctx, 1)
		s.create(ctx, newTurn("parent", asking("delegate subtask", timeout(20))))
		s.awaitState(ctx, "parent", v1alpha1.TurnReasonWaitingForSubAgent)
		c := s.awaitChild(ctx, "parent")
		s.desire(ctx, c.Name, v1alpha1.DesiredStateSuspended) // its own deadline does not pass meanwhile
		s.awaitState(ctx, c.Name, v1alpha1.TurnReasonSuspended)
		t := s.awaitState(ctx, "parent", v1alpha1.TurnReasonDeadlineExceeded)
		Expect(t.Status.Usage).NotTo(BeNil(), "the usage before the deadline must be in the status")
		Expect(t.Status.AwaitedTurns).To(BeEmpty())
		s.awaitState(ctx, c.Name, v1alpha1.TurnReasonCancelled)
	}, SpecTimeout(patience))

	It("whose parent was deleted is cancelled", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		s.run()
		s.create(ctx, append(s.team(), newTurn("parent", asking("delegate subtask stuck")))...)
		t := s.awaitState(ctx, "parent", v1alpha1.TurnReasonWaitingForSubAgent)
		s.awaitInFlight(ctx, 1)
		Expect(apiClient.Delete(ctx, t)).To(Succeed())
		s.awaitState(ctx, s.awaitChild(ctx, "parent").Name, v1alpha1.TurnReasonCancelled)
	}, SpecTimeout(patience))

	It("that waits for an approval stops the time of its caller", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		s.create(ctx, append(s.team(), newTurn("parent", asking("delegate subtask delete", timeout(20))))...)
		Eventually(func() *metav1.MicroTime { return s.turn(ctx, "parent").Status.ParkedTime }).WithContext(ctx).ShouldNot(BeNil())
		t := s.awaitState(ctx, "parent", v1alpha1.TurnReasonWaitingForSubAgent)
		c := s.awaitState(ctx, s.awaitChild(ctx, "parent").Name, v1alpha1.TurnReasonAwaitingApproval)
		Eventually(time.Now).WithContext(ctx).Should(BeTemporally(">", t.Status.StartTime.Add(21*time.Second)))
		s.decide(ctx, c, 0, v1alpha1.ApprovalApproved)
		t = s.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
		Expect(t.Status.ParkedMilliseconds).To(BeNumerically(">", 1000))
	}, SpecTimeout(patience))

	It("continues while its parent's process restarts, and its answer is found", func(ctx SpecContext) {
		s := newTestEnv(ctx, delegatingModel)
		m := s.run()
		s.create(ctx, s.team()...)
		s.create(ctx, newTurn("parent", asking("delegate subtask one")))
		Eventually(func() string { return strings.Join(s.turn(ctx, "parent").Status.AwaitedTurns, " ") }).WithContext(
			ctx).ShouldNot(BeEmpty())
		m.stop()
		start(m.options)
		s.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		s.awaitChild(ctx, "parent")
		Expect(s.lastMessage()).To(ContainSubstring("The answer is 42."))
	}, SpecTimeout(patience))
})
