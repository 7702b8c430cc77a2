package examples_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

const (
	// patience bounds the wait for a state of a Turn, on a busy machine.
	patience = 120 * time.Second
	polling  = 50 * time.Millisecond
)

// helpdesk is a run of examples/tools in a namespace of its own.
type helpdesk struct {
	namespace string
	desk      *tickets.Desk
}

// newHelpdesk starts the model of the demo, the ticket tools and a manager. It applies examples/tools with the
// addresses of the model and the tools.
func newHelpdesk(ctx context.Context) *helpdesk {
	GinkgoHelper()
	h := &helpdesk{namespace: newNamespace(ctx)}
	_, modelURL := harnesstest.Model(GinkgoTB(), harnesstest.DemoRules(GinkgoTB(), root))
	desk, toolsURL := harnesstest.Tickets(GinkgoTB())
	h.desk = desk
	o := harnesstest.Options(GinkgoTB(), h.namespace)
	o.MaxConcurrentTurns = 1
	harnesstest.RunManager(GinkgoTB(), apiConfig, o, GinkgoLogr)

	for _, file := range filesOf("tools") {
		all, err := objects(file.text)
		Expect(err).NotTo(HaveOccurred())
		for _, o := range all {
			o.SetNamespace(h.namespace)
			switch o.GetKind() {
			case "ModelProvider":
				set(o, modelURL, "spec", "baseURL")
			case "ToolServer":
				set(o, toolsURL, "spec", "mcp", "url")
			}
			Expect(apiClient.Create(ctx, o)).To(Succeed(), file.name)
		}
	}
	return h
}

func set(o *unstructured.Unstructured, value string, path ...string) {
	GinkgoHelper()
	Expect(unstructured.SetNestedField(o.Object, value, path...)).To(Succeed())
}

// waitForState waits until the Turn of the example has a state, and returns the Turn.
func (h *helpdesk) waitForState(ctx context.Context, reason string) *v1alpha1.Turn {
	GinkgoHelper()
	var t v1alpha1.Turn
	Eventually(func(g Gomega) {
		g.Expect(apiClient.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: "printer-works"}, &t)).To(Succeed())
		if t.IsFinished() && t.StateReason() != reason {
			StopTrying("the Turn has ended").Attach("conditions", t.Status.Conditions).Now()
		}
		g.Expect(t.StateReason()).To(Equal(reason))
	}, patience, polling).Should(Succeed())
	return &t
}

// decide decides about the pending call of a Turn, as the user grace.
func (h *helpdesk) decide(ctx context.Context, t *v1alpha1.Turn, decision v1alpha1.ApprovalDecision, reason string) {
	GinkgoHelper()
	Expect(t.Status.PendingApprovals).To(HaveLen(1))
	p := t.Status.PendingApprovals[0]
	Expect(as("grace").Create(ctx, &v1alpha1.ToolApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: "decision"},
		Spec: v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: t.Name}, TurnUID: string(t.UID), RequestID: p.RequestID, Step: p.Step, CallID: p.CallID,
			ToolName: p.Name, ToolServerUID: p.ToolServerUID, SchemaHash: p.SchemaHash, ArgumentsHash: p.ArgumentsHash,
			Decision: decision, Reason: reason, DecidedBy: "grace",
		},
	})).To(Succeed())
}

// ticket returns the ticket of the example.
func (h *helpdesk) ticket() tickets.Ticket {
	GinkgoHelper()
	t, err := h.desk.Get("1042")
	Expect(err).NotTo(HaveOccurred())
	return t
}

// calls returns the names and outcomes of a Turn's calls.
func calls(t *v1alpha1.Turn) []string {
	var all []string
	for _, c := range t.Status.ToolCalls {
		all = append(all, c.Name+" "+string(c.Outcome))
	}
	return all
}

// similarTicket is the part of the answer about the ticket that the researcher found.
const similarTicket = "The researcher found one like it. Ticket 0977, Printer on floor 3 prints stripes: The drum was " +
	"worn. Replaced it, and printed the test page twice."

// callsBeforeClosing are the calls before the call that closes the ticket.
var callsBeforeClosing = []string{
	"ticket_context Succeeded", "search_tickets Succeeded", "get_ticket Succeeded",
	"get_ticket Succeeded", "researcher Succeeded",
}

var _ = Describe("examples/tools", func() {
	It("searches, reads, delegates, waits for approval, closes the ticket once, and answers", func(ctx SpecContext) {
		h := newHelpdesk(ctx)

		waiting := h.waitForState(ctx, v1alpha1.TurnReasonAwaitingApproval)
		Expect(h.ticket().State).To(Equal("open"), "no ticket is closed before the approval")
		Expect(waiting.Status.PendingApprovals[0]).To(And(HaveField("Name", "close_ticket"), HaveField("Step", BeEquivalentTo(4))))
		Expect(waiting.Status.ParkedTime).NotTo(BeNil())
		Expect(calls(waiting)).To(Equal(append(callsBeforeClosing[:5:5], "close_ticket Pending")))

		h.decide(ctx, waiting, v1alpha1.ApprovalApproved, "")
		done := h.waitForState(ctx, v1alpha1.TurnReasonCompleted)
		Expect(done.Status.Result.Text).To(Equal("I closed ticket 1042, Printer on floor 3 jams. " + similarTicket))
		Expect(h.ticket()).To(And(HaveField("State", "closed"), HaveField("Closings", 1)))
		Expect(h.ticket().Notes).To(HaveExactElements(
			"Waiting for a spare part: feed roller.", "The new roller is fitted, and the test page looks clean.",
			"Closed: The new roller is fitted, and the test page looks clean.",
		))

		By("recording the calls, the decision and the usage in the status")
		st := done.Status
		Expect(calls(done)).To(Equal(append(callsBeforeClosing[:5:5], "close_ticket Succeeded")))
		Expect(st.ToolCalls[5].DecidedBy).To(Equal("grace"))
		Expect(st.PendingApprovals).To(BeEmpty())
		Expect(st.StopReason).To(Equal(v1alpha1.StopCompleted))
		Expect(st.Steps).To(And(HaveField("Count", BeEquivalentTo(5)), HaveField("UnknownOutcomes", BeZero())))
		Expect(st.Decision.Strategy).To(Equal(v1alpha1.StrategyRetrievalAugmented))
		Expect(st.Decision.ToolsUsed).To(Equal([]string{"close_ticket", "get_ticket", "researcher", "search_tickets", "ticket_context"}))
		Expect(st.Result.Citations.Local).To(ContainElement("tickets/1042"))

		By("creating a Turn for the sub-agent")
		var child v1alpha1.Turn
		Expect(apiClient.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: st.ToolCalls[4].Turn}, &child)).To(Succeed())
		Expect(child.OwnerReferences).To(ConsistOf(HaveField("UID", done.UID)))
		Expect(child.Spec).To(And(HaveField("AgentRef.Name", "researcher"), HaveField("Depth", HaveValue(BeEquivalentTo(1)))))
		Expect(child.Status.Preparation.Mode).To(BeEquivalentTo("Minimal"))
		Expect(calls(&child)).To(Equal([]string{"search_tickets Succeeded", "get_ticket Succeeded"}))
		Expect(st.SubAgentUsage.TotalTokens).To(Equal(child.Status.Usage.TotalTokens))
		Expect(st.SubAgentUsage.Cost).To(Equal(child.Status.Usage.Cost))
	}, SpecTimeout(2*patience))

	It("leaves the ticket open and reports it if the call is denied", func(ctx SpecContext) {
		h := newHelpdesk(ctx)
		h.decide(ctx, h.waitForState(ctx, v1alpha1.TurnReasonAwaitingApproval), v1alpha1.ApprovalDenied, "Ask Grace first.")
		done := h.waitForState(ctx, v1alpha1.TurnReasonCompleted)
		Expect(done.Status.Result.Text).To(HavePrefix("I left ticket 1042, Printer on floor 3 jams, as it is"))
		Expect(calls(done)).To(Equal(append(callsBeforeClosing[:5:5], "close_ticket Refused")))
		Expect(done.Status.ToolCalls[5].DecidedBy).To(Equal("grace"))
		Expect(h.ticket()).To(And(HaveField("State", "open"), HaveField("Closings", 0)))
	}, SpecTimeout(2*patience))

	It("shows the tools of the server, and which of them the Agent has", func(ctx SpecContext) {
		h := newHelpdesk(ctx)
		h.waitForState(ctx, v1alpha1.TurnReasonAwaitingApproval)
		var s v1alpha1.ToolServer
		Expect(apiClient.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: "tickets"}, &s)).To(Succeed())
		Expect(s.Status).To(And(HaveField("ServerName", "tickets"), HaveField("ToolCount", BeEquivalentTo(7))))
		effects := map[string]v1alpha1.ToolEffect{}
		for _, t := range s.Status.Tools {
			effects[t.Name] = t.Effect
		}
		Expect(effects).To(Equal(map[string]v1alpha1.ToolEffect{
			"search_tickets": "ReadOnly", "get_ticket": "ReadOnly", "ticket_context": "ReadOnly",
			"add_note": "Idempotent", "remove_note": "Destructive", "hand_over": "Idempotent", "close_ticket": "Destructive",
		}))
		Eventually(func(g Gomega) {
			var a v1alpha1.Agent
			g.Expect(apiClient.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: "helpdesk"}, &a)).To(Succeed())
			g.Expect(a.Status.Tools).To(ContainElements(
				v1alpha1.ExposedTool{Name: "close_ticket", Server: "tickets", Effect: "Destructive", Role: "Other", RequiresApproval: true},
				And(HaveField("Name", "researcher"), HaveField("Agent", "researcher")),
			))
			g.Expect(a.Status.Tools).NotTo(ContainElement(HaveField("Name", "hand_over")), "the Agent does not allow hand_over")
		}, patience, polling).Should(Succeed())
	}, SpecTimeout(2*patience))
})
