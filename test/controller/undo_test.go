package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

// notingModel adds a note to two tickets.
const notingModel = `
rules:
- when: {toolMessages: 0, hasTools: true}
  reply:
    toolCalls:
    - {name: add_note, arguments: '{"id": "1042", "note": "On Monday."}'}
    - {name: add_note, arguments: '{"id": "1061", "note": "On Monday."}'}
- reply: {text: "Done."}
`

// undoes makes a Turn undo the calls of another Turn.
func undoes(uid string, calls ...string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Spec.Message, t.Spec.Undo = "", &v1alpha1.TurnUndo{TurnUID: uid, Calls: calls}
	}
}

var _ = Describe("A Turn that undoes calls", func() {
	It("runs each compensation of a deleted Turn once, after its approval", func(ctx SpecContext) {
		desk, url := harnesstest.Tickets(GinkgoTB())
		notes := func(id string) []string {
			t, err := desk.Get(id)
			Expect(err).NotTo(HaveOccurred())
			return t.Notes
		}
		s := newTestEnv(ctx, notingModel)
		s.run(func(o *manager.Options) { o.JournalRetention = time.Hour }) // the journal of the deleted Turn must stay
		s.equip(ctx, url, "add_note close_ticket get_ticket hand_over remove_note search_tickets ticket_context",
			declaring(v1alpha1.ToolDeclaration{
				Name: tickets.ToolNote, Effect: v1alpha1.ToolEffectIdempotent, Compensation: &v1alpha1.Compensation{
					Tool: tickets.ToolRemoveNote,
					Arguments: []v1alpha1.CompensationArgument{
						{Name: "id", Value: "arguments.id"}, {Name: "note", Value: "arguments.note"},
					},
				},
			}))
		s.create(ctx, newTurn("notes"))
		done := s.awaitState(ctx, "notes", v1alpha1.TurnReasonCompleted)
		Expect(notes("1042")).To(ContainElement("On Monday."))
		Expect(notes("1061")).To(ContainElement("On Monday."))
		requests := s.fake.Stats().Requests
		Expect(apiClient.Delete(ctx, done)).To(Succeed())

		By("waiting for the approval of each call")
		s.create(ctx, newTurn("undo", undoes(string(done.UID))))
		waits := s.awaitState(ctx, "undo", v1alpha1.TurnReasonAwaitingApproval)
		Expect(waits.Status.PendingApprovals).To(HaveExactElements(
			And(HaveField("Name", "remove_note"), HaveField("CallID", done.Status.ToolCalls[1].CallID)),
			And(HaveField("Name", "remove_note"), HaveField("CallID", done.Status.ToolCalls[0].CallID))), "the newest call comes first")
		Expect(notes("1061")).To(ContainElement("On Monday."))
		s.decide(ctx, waits, 0, v1alpha1.ApprovalApproved)
		s.decide(ctx, waits, 1, v1alpha1.ApprovalApproved)
		t := s.awaitState(ctx, "undo", v1alpha1.TurnReasonUndone)
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopUndone))
		Expect(t.Status.Result.Text).To(Equal("add_note (call " + done.Status.ToolCalls[1].CallID + "): undone by remove_note\n" +
			"add_note (call " + done.Status.ToolCalls[0].CallID + "): undone by remove_note\n"))
		Expect(t.Status.ToolCalls).To(HaveEach(And(HaveField("Outcome", v1alpha1.ToolCallSucceeded), HaveField("DecidedBy", "jane"))))
		Expect(t.Status.Steps).To(And(HaveField("Count", BeZero()), HaveField("ModelRequests", BeZero())))
		Expect(notes("1042")).NotTo(ContainElement("On Monday."))
		Expect(notes("1061")).NotTo(ContainElement("On Monday."))
		Expect(s.fake.Stats().Requests).To(Equal(requests), "no request is sent to a model")
		Eventually(s.events).WithArguments(ctx, "Turn", "undo").Should(ContainElement("Normal Succeeded"))

		By("undoing no call twice, and failing if the Turn to undo has no journal")
		s.create(ctx, newTurn("again", undoes(string(done.UID))), newTurn("none", undoes("0e2a1d0c-8b7e-4c5f-9a51-3f1f7f0f1c11")))
		again := s.awaitState(ctx, "again", v1alpha1.TurnReasonUndone)
		Expect(again.Status.ToolCalls).To(BeEmpty())
		Expect(again.Status.Result.Text).To(ContainSubstring(`the Turn "undo" has undone the call`))
		Expect(message(s.awaitState(ctx, "none", v1alpha1.TurnReasonPreparationFailed))).To(
			HavePrefix("Turn spec.undo.turnUID: there is no journal of a Turn"))
	}, SpecTimeout(patience))

	It("counts the calls that are not selected as not undone", func(ctx SpecContext) {
		desk, url := harnesstest.Tickets(GinkgoTB())
		s := newTestEnv(ctx, notingModel)
		s.run()
		s.equip(ctx, url, "add_note close_ticket get_ticket hand_over remove_note search_tickets ticket_context",
			declaring(v1alpha1.ToolDeclaration{
				Name: tickets.ToolNote, Effect: v1alpha1.ToolEffectIdempotent, Compensation: &v1alpha1.Compensation{
					Tool: tickets.ToolRemoveNote,
					Arguments: []v1alpha1.CompensationArgument{
						{Name: "id", Value: "arguments.id"}, {Name: "note", Value: "arguments.note"},
					},
				},
			}))
		s.create(ctx, newTurn("notes"))
		done := s.awaitState(ctx, "notes", v1alpha1.TurnReasonCompleted)
		first, second := done.Status.ToolCalls[0].CallID, done.Status.ToolCalls[1].CallID
		s.create(ctx, newTurn("undo", undoes(string(done.UID), second)))
		s.decide(ctx, s.awaitState(ctx, "undo", v1alpha1.TurnReasonAwaitingApproval), 0, v1alpha1.ApprovalApproved)
		t := s.awaitState(ctx, "undo", v1alpha1.TurnReasonUndoIncomplete)
		Expect(conditionsOf(t.Status.Conditions)).To(ContainElement("Succeeded=False UndoIncomplete"))
		Expect(message(t)).To(Equal(`1 of 2 calls of the turn "notes" are not undone (` + first + `): the result has the reasons`))
		Expect(t.Status.Result.Text).To(Equal("add_note (call " + second + "): undone by remove_note\n" +
			"add_note (call " + first + "): not undone: it was not selected\n"))
		ticket, err := desk.Get("1061")
		Expect(err).NotTo(HaveOccurred())
		Expect(ticket.Notes).NotTo(ContainElement("On Monday."))
	}, SpecTimeout(patience))

	It("reports the calls that cannot be undone", func(ctx SpecContext) {
		_, url := harnesstest.Tickets(GinkgoTB())
		s := newTestEnv(ctx, notingModel)
		s.run()
		s.equip(ctx, url, "add_note close_ticket get_ticket hand_over remove_note search_tickets ticket_context")
		s.create(ctx, newTurn("notes"))
		done := s.awaitState(ctx, "notes", v1alpha1.TurnReasonCompleted)
		s.create(ctx, newTurn("undo", undoes(string(done.UID))))
		t := s.awaitState(ctx, "undo", v1alpha1.TurnReasonUndoIncomplete)
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopUndoIncomplete))
		Expect(conditionsOf(t.Status.Conditions)).To(ContainElement("Succeeded=False UndoIncomplete"))
		Expect(message(t)).To(HavePrefix(`2 of 2 calls of the turn "notes" are not undone`))
		Expect(t.Status.Result.Text).To(ContainSubstring("the ToolServer declared no compensation for the tool"))
		Expect(t.Status.ToolCalls).To(BeEmpty())
	}, SpecTimeout(patience))
})

var _ = Describe("A ToolServer with a compensation", func() {
	It("is not ready if an expression of the compensation is invalid", func(ctx SpecContext) {
		_, url := harnesstest.Tickets(GinkgoTB())
		s := newTestEnv(ctx, notingModel)
		s.run()
		s.create(ctx, newToolServer("desk", url, declaring(v1alpha1.ToolDeclaration{
			Name: tickets.ToolNote, Compensation: &v1alpha1.Compensation{
				Tool: tickets.ToolRemoveNote, Arguments: []v1alpha1.CompensationArgument{{Name: "id", Value: "results.id"}},
			},
		})))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "desk", func(o *v1alpha1.ToolServer) string {
			if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); c != nil {
				return c.Reason + ": " + c.Message
			}
			return ""
		}, HavePrefix("InvalidCompensation: spec.tools[0].compensation.arguments[0].value:1:1: undeclared reference to 'results'"))
		var server v1alpha1.ToolServer
		Expect(apiClient.Get(ctx, s.key("desk"), &server)).To(Succeed())
		Expect(conditionsOf(server.Status.Conditions)).To(ConsistOf("Ready=False InvalidCompensation", "Stalled=True InvalidCompensation"))
	}, SpecTimeout(patience))
})
