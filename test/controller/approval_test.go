package controller_test

import (
	"context"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// deletingModel calls the tool delete, once or twice in one reply, and then reports the outcome.
const deletingModel = `
rules:
- when: {contains: both, toolMessages: 0}
  reply: {toolCalls: [{name: delete, arguments: '{"name": "a"}'}, {name: delete, arguments: '{"name": "b"}'}]}
- when: {contains: delete, toolMessages: 0}
  reply: {toolCalls: [{name: delete, arguments: '{"name": "secret-file"}'}]}
- when: {contains: delete}
  reply: {text: "Done."}
`

// deletes makes a manager offer the tool delete, which requires approval, and counts its calls.
func deletes(calls *atomic.Int64) func(*manager.Options) {
	return offering(tool.Tool{
		Tool:   prompt.Tool{Name: "delete", Parameters: []prompt.Parameter{{Name: "name", Required: true}}},
		Effect: tool.Destructive, RequiresApproval: true,
		Caller: tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
			calls.Add(1)
			return tool.Result{Content: "deleted"}, nil
		}),
	})
}

// decide creates a decision about one of the pending calls of a Turn, as the user jane.
func (s *testEnv) decide(
	ctx context.Context, t *v1alpha1.Turn, call int, d v1alpha1.ApprovalDecision, change ...func(*v1alpha1.ToolApproval),
) {
	GinkgoHelper()
	Expect(jane().Create(ctx, s.decision(t, call, d, change...))).To(Succeed())
}

// jane returns a client with which the approver jane makes requests.
func jane() client.Client {
	GinkgoHelper()
	config := rest.CopyConfig(apiConfig)
	config.Impersonate = rest.ImpersonationConfig{UserName: "jane", Groups: []string{"system:masters"}}
	c, err := client.New(config, client.Options{Scheme: apiClient.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	return c
}

// decision returns a decision of jane about one of the pending calls of a Turn.
func (s *testEnv) decision(
	t *v1alpha1.Turn, call int, d v1alpha1.ApprovalDecision, change ...func(*v1alpha1.ToolApproval),
) *v1alpha1.ToolApproval {
	p := t.Status.PendingApprovals[call]
	return build(&v1alpha1.ToolApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, GenerateName: t.Name + "-"},
		Spec: v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: t.Name}, TurnUID: string(t.UID), RequestID: p.RequestID, Step: p.Step, CallID: p.CallID,
			ToolName: p.Name, ToolServerUID: p.ToolServerUID, SchemaHash: p.SchemaHash, ArgumentsHash: p.ArgumentsHash,
			Decision: d, DecidedBy: "jane", Reason: "it is old",
		},
	}, change)
}

func approvalTimeout(seconds int32) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		if t.Spec.Limits == nil {
			t.Spec.Limits = &v1alpha1.Limits{}
		}
		t.Spec.Limits.ApprovalTimeoutSeconds = &seconds
	}
}

// expectUnchanged checks for a second that a Turn does not change.
func (s *testEnv) expectUnchanged(ctx context.Context, t *v1alpha1.Turn) {
	GinkgoHelper()
	Consistently(func() string { return s.turn(ctx, t.Name).ResourceVersion }).WithContext(ctx).WithTimeout(
		time.Second).Should(Equal(t.ResourceVersion))
}

var _ = Describe("A call that requires approval", func() {
	It("parks its Turn, which continues after the approval", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		s.create(ctx, append(s.basics(), newTurn("delete", timeout(20)))...)
		t := s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		Expect(message(t)).To(Equal("a call of tool delete requires approval: run capstan approve " + s.namespace +
			"/delete or capstan deny " + s.namespace + "/delete"))
		Expect(t.BoundTo()).To(BeEmpty())
		Expect(t.Status.PendingApprovals).To(HaveLen(1))
		Expect(t.Status.PendingApprovals[0].Name).To(Equal("delete"))
		Expect(t.Status.PendingApprovals[0].ExpiryTime.Sub(t.Status.PendingApprovals[0].RequestTime.Time)).To(
			BeNumerically("~", 24*time.Hour, 2*time.Second))
		Expect(t.Status.ToolCalls).To(HaveLen(1))
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallPending))
		Expect(t.Status.Steps.Count).To(BeEquivalentTo(1))
		Eventually(running).WithContext(ctx).Should(BeZero(), "no executor runs a Turn that waits for an approval")
		Eventually(s.events).WithArguments(ctx, "Turn", "delete").Should(Equal([]string{"Normal AwaitingApproval"}))

		By("approving other calls, which changes nothing")
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.TurnUID = "of-an-earlier-turn" })
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.ArgumentsHash = "of-other-arguments" })
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.CallID = "another" })
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.Step = 2 })
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.ToolName = "another" })
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.ToolServerUID = "of-an-earlier-server" })
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.SchemaHash = "of-another-schema" })
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.RequestID = "of-an-earlier-request" })
		s.expectUnchanged(ctx, t)
		Eventually(time.Now).WithContext(ctx).Should(BeTemporally(">", t.Status.StartTime.Add(21*time.Second)),
			"the time of the wait must not count towards its deadline")

		By("approving the pending call")
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		t = s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
		Expect(t.Status.Result.Text).To(Equal("Done."))
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallSucceeded))
		Expect(t.Status.ToolCalls[0].DecidedBy).To(Equal("jane"))
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		Expect(t.Status.PendingApprovals).To(BeEmpty())
		Expect(t.Status.ParkedTime).To(BeNil())
		Expect(t.Status.ParkedMilliseconds).To(BeNumerically(">", 1000))
		Expect(*t.Status.DurationMilliseconds).To(BeNumerically(">", 20_000), "the duration includes the wait")
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(2), "no reply is paid for twice")
	}, SpecTimeout(patience))

	It("is not made if it is denied, and the model sees the denial", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		s.create(ctx, append(s.basics(), newTurn("delete"))...)
		t := s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		s.decide(ctx, t, 0, v1alpha1.ApprovalDenied)
		t = s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeZero())
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallRefused))
		Expect(t.Status.ToolCalls[0].DecidedBy).To(Equal("jane"))
		heard := s.heard()
		Expect(heard[1][len(heard[1])-1].Content).To(And(ContainSubstring("error (denied)"), ContainSubstring("it is old")))
	}, SpecTimeout(patience))

	It("is denied when its approval expires, with two bindings in all", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		s.create(ctx, append(s.basics(), newTurn("delete", approvalTimeout(2)))...)
		t := s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeZero())
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallRefused))
		Expect(t.Status.ToolCalls[0].DecidedBy).To(BeEmpty())
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2), "it is bound again once, after the approval has expired")
	}, SpecTimeout(patience))

	It("is decided separately from the other calls of its reply", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		s.create(ctx, append(s.basics(), newTurn("delete-both", func(t *v1alpha1.Turn) { t.Spec.Message = "delete both" }))...)
		t := s.awaitState(ctx, "delete-both", v1alpha1.TurnReasonAwaitingApproval)
		Expect(t.Status.PendingApprovals).To(HaveLen(2))
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		Eventually(func() []v1alpha1.PendingApproval { return s.turn(ctx, "delete-both").Status.PendingApprovals }).WithContext(
			ctx).Should(HaveLen(1))
		t = s.awaitState(ctx, "delete-both", v1alpha1.TurnReasonAwaitingApproval)
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		Expect(calls.Load()).To(BeEquivalentTo(1))
		s.expectUnchanged(ctx, t) // a used decision must not wake the Turn again
		s.decide(ctx, t, 0, v1alpha1.ApprovalDenied)
		t = s.awaitState(ctx, "delete-both", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
		Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(3))
		Eventually(s.events).WithArguments(ctx, "Turn", "delete-both").Should(ConsistOf("Normal AwaitingApproval", "Normal Succeeded"))
	}, SpecTimeout(patience))

	It("waits for its decision across a restart, and other Turns use its slot", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		singleSlot := func(o *manager.Options) { o.MaxConcurrentTurns = 1 }
		m := s.run(deletes(&calls), singleSlot)
		s.create(ctx, append(s.basics(), newTurn("delete"))...)
		s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		s.create(ctx, newTurn("other"))
		s.awaitState(ctx, "other", v1alpha1.TurnReasonCompleted)
		m.stop()
		t := s.turn(ctx, "delete")
		Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonAwaitingApproval))
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved) // while no manager runs
		start(m.options)
		s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(3))
	}, SpecTimeout(2*patience))

	It("is never made when its Turn is cancelled", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		s.create(ctx, append(s.basics(), newTurn("delete"))...)
		t := s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		s.desire(ctx, "delete", v1alpha1.DesiredStateCancelled)
		t = s.awaitState(ctx, t.Name, v1alpha1.TurnReasonCancelled)
		Expect(t.Status.PendingApprovals).To(BeEmpty())
		Expect(t.Status.Usage).NotTo(BeNil(), "the usage before the cancellation must be in the status")
		Expect(calls.Load()).To(BeZero())
	}, SpecTimeout(patience))

	It("is made if it is approved during a suspension", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		s.create(ctx, append(s.basics(), newTurn("delete"))...)
		before := s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		s.desire(ctx, "delete", v1alpha1.DesiredStateSuspended)
		Expect(s.awaitState(ctx, "delete", v1alpha1.TurnReasonSuspended).Status.PendingApprovals).To(BeEmpty())
		s.decide(ctx, before, 0, v1alpha1.ApprovalApproved)
		s.expectUnchanged(ctx, s.turn(ctx, "delete"))
		s.desire(ctx, "delete", v1alpha1.DesiredStateActive)
		s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))

	It("keeps later Turns of its Session waiting", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		s.run(deletes(&calls))
		talk := func(t *v1alpha1.Turn) { t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "talk"} }
		s.create(ctx, append(s.basics(), newTurn("delete", talk))...)
		t := s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		s.create(ctx, newTurn("later", talk))
		s.awaitState(ctx, "later", v1alpha1.TurnReasonWaitingForSession)
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		s.awaitState(ctx, "later", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "delete").Status.Decision.TurnNumber).To(BeEquivalentTo(1))
		Expect(s.turn(ctx, "later").Status.Decision.TurnNumber).To(BeEquivalentTo(2))
	}, SpecTimeout(patience))
})
