package controller_test

import (
	"context"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

var _ = Describe("A Turn with the tools of an MCP server", func() {
	const capital = `{"type": "object", "required": ["capital"], "properties": {"capital": {"type": "string"}}, ` +
		`"additionalProperties": false}`

	DescribeTable("gives a structured answer", func(ctx SpecContext, rules string, capable bool, requests int, last types.GomegaMatcher) {
		s, host := newTestEnv(ctx, rules), newFakeToolServer()
		host.offer("search", readOnly, answering("Oslo is the capital of Norway."))
		s.run()
		s.equip(ctx, host.url, "search", reading("search"))
		if capable {
			change(ctx, s, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) {
				p.Spec.Dialect = v1alpha1.DialectOpenAI // a dialect whose models call tools although a schema is set
				p.Spec.Models[0].Capabilities = []v1alpha1.ModelCapability{v1alpha1.CapabilityStructuredOutput}
			})
			awaitChecked(ctx, s, &v1alpha1.ModelProvider{}, provider, conditionsOfProvider)
		}
		s.create(ctx, newTurn("ask", asking("Which?", structured(capital))))
		t := s.awaitState(ctx, "ask", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Data.Raw).To(MatchJSON(`{"capital": "Oslo"}`))
		Expect(t.Status.Result.Text).To(ContainSubstring(`"Oslo"`))
		Expect(outcomes(t)).To(Equal([]string{"search Succeeded"}))
		Expect(t.Status.Steps).To(HaveValue(
			Equal(v1alpha1.StepCounts{Count: int32(requests), ModelRequests: int32(requests), ToolCalls: 1})))
		Expect(s.lastMessage()).To(last)
	},
		Entry("that is valid at the first attempt", SpecTimeout(patience), `
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: search}]}
- reply: {text: "`+"```json\\n{\\\"capital\\\": \\\"Oslo\\\"}\\n```"+`"}
`, false, 2, ContainSubstring("Oslo is the capital of Norway.")),
		Entry("that the endpoint enforces", SpecTimeout(patience), `
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: search}]}
- when: {responseFormat: json_schema}
  reply: {text: '{"capital": "Oslo"}'}
`, true, 2, ContainSubstring("Oslo is the capital of Norway.")),
		Entry("that is valid at the second attempt", SpecTimeout(patience), `
rules:
- when: {contains: "Your answer was not accepted"}
  reply: {text: '{"capital": "Oslo"}'}
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: search}]}
- reply: {text: '{"city": "Oslo"}'}
`, false, 3, And(HavePrefix("Your answer was not accepted"), ContainSubstring("capital"), ContainSubstring("city"))),
	)

	It("continues with a summary when the conversation comes close to the context window", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `
rules:
- when: {systemContains: "You shorten conversations"}
  reply: {text: "Pages 1 and 2 are about ships."}
- when: {toolMessages: 4, anyContains: "Pages 1 and 2 are about ships."}
  reply: {text: "too many are left"}
- when: {anyContains: "Pages 1 and 2 are about ships."}
  reply: {text: "All pages are about ships."}
- reply: {toolCalls: [{name: read, arguments: '{"page": {{ add .ToolMessages 1 }}}'}]}
`), newFakeToolServer()
		host.offer("read", readOnly, func(_ context.Context, arguments string) string {
			return arguments + " " + strings.Repeat("ship ", 1000)
		})
		s.run()
		s.equip(ctx, host.url, "read", reading("read"))
		change(ctx, s, provider, &v1alpha1.ModelProvider{},
			func(p *v1alpha1.ModelProvider) { p.Spec.Models[0].ContextWindow = new(int64(6000)) })
		awaitChecked(ctx, s, &v1alpha1.ModelProvider{}, provider, conditionsOfProvider)
		s.create(ctx, newTurn("long"))
		t := s.awaitState(ctx, "long", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("All pages are about ships."))
		Expect(t.Status.Steps).To(HaveValue(Equal(v1alpha1.StepCounts{Count: 5, ModelRequests: 6, ToolCalls: 4, Compactions: 1})))
		last := s.prompts()[5]
		Expect(last).To(And(ContainSubstring(`{"page":3}`), ContainSubstring(`{"page":4}`)), "the newest outputs are not shortened")
		Expect(last).NotTo(Or(ContainSubstring(`{"page":1}`), ContainSubstring(`{"page":2}`)))
		Expect(strings.Count(last, "\n\nlong | ")).To(Equal(1), "the summary and the request are one message of the user")
		Eventually(s.events).WithArguments(ctx, "Turn", "long").Should(ConsistOf("Warning ContextWarning", "Normal Succeeded"))
	}, SpecTimeout(patience))

	It("keeps a huge output as an artifact, which the model reads in parts", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: dump}]}
- when: {toolMessages: 1}
  reply: {toolCalls: [{name: read_artifact, arguments: '{"name": "call-1-1", "offset": 500000, "limit": 10}'}]}
- reply: {text: "Found."}
`), newFakeToolServer()
		host.offer("dump", readOnly, answering("HEAD"+strings.Repeat("-", 499_996)+"THE MIDDLE"+strings.Repeat("-", 499_986)+"TAIL"))
		s.run()
		s.equip(ctx, host.url, "dump", reading("dump"))
		s.create(ctx, newTurn("huge"))
		t := s.awaitState(ctx, "huge", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"dump Succeeded", "read_artifact Succeeded"}))
		Expect(t.Status.ToolCalls[0].Artifact).To(Equal("call-1-1"))
		Expect(t.Status.ToolCalls[0].Bytes).To(BeEquivalentTo(1_000_000))
		Expect(t.Status.ToolCalls[1].Artifact).To(BeEmpty())
		messages := s.heard()[2]
		dumped, paged := messages[len(messages)-3].Content, messages[len(messages)-1].Content
		Expect(len(dumped)).To(And(BeNumerically("<=", 12_000), BeNumerically(">", 11_000)))
		Expect(dumped).To(And(ContainSubstring("HEAD"), ContainSubstring("TAIL"),
			ContainSubstring(`read_artifact("call-1-1", offset, limit) returns any part of it`)))
		Expect(dumped).NotTo(ContainSubstring("THE MIDDLE"))
		Expect(paged).To(ContainSubstring("characters 500000 to 500010 of 1000000; continue at offset 500010.\nTHE MIDDLE"))
	}, SpecTimeout(patience))

	It("keeps its tool list when the server's tools change", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, calling("search")), newFakeToolServer()
		host.offer("search", readOnly, answering("Found."))
		host.offer("get", readOnly, answering("Got."))
		s.run(rareProbes)
		s.equip(ctx, host.url, "get search", reading("get"))
		release := s.hold()
		s.create(ctx, newTurn("early", asking("call early")))
		s.awaitHeld(ctx, 1)
		host.RemoveTools("search")
		host.offer("find", readOnly, answering("Found."))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "desk", toolsOf, Equal("find Destructive, get ReadOnly"))
		release()
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"search Failed"}), "a call of a removed tool fails")
		Expect(s.offers("call early")).To(Equal([]string{"get search read_artifact", "get search read_artifact"}))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[find get]"))
		s.create(ctx, newTurn("late", asking("call late")))
		t = s.awaitState(ctx, "late", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"search Refused"}))
		Expect(s.offers("call late")[0]).To(Equal("find get read_artifact"))
	}, SpecTimeout(patience))

	It("reports an unknown outcome when the server stops during a call, and calls the server again when it is back",
		func(ctx SpecContext) {
			s, host := newTestEnv(ctx, calling("pay")), newFakeToolServer()
			arrived := make(chan struct{}, 1)
			var calls atomic.Int64
			host.offer("pay", destructive, func(ctx context.Context, _ string) string {
				if calls.Add(1) == 1 {
					arrived <- struct{}{}
					host.hang(ctx)
				}
				return "Paid."
			})
			proxy, address := newCuttableToolProxy(host.url)
			s.run()
			s.equip(ctx, address, "pay")
			s.create(ctx, newTurn("first", asking("call once")))
			Eventually(arrived).WithContext(ctx).Should(Receive())
			proxy.cut()
			t := s.awaitState(ctx, "first", v1alpha1.TurnReasonCompleted)
			Expect(outcomes(t)).To(Equal([]string{"pay Unknown"}))
			Expect(t.Status.Steps.UnknownOutcomes).To(BeEquivalentTo(1))
			Expect(s.lastMessage()).To(And(HavePrefix("error (outcome_unknown): the outcome of this call is unknown: "),
				ContainSubstring("The call may have taken effect")))
			awaitText(ctx, s, &v1alpha1.ToolServer{}, "desk", serverReadiness, HavePrefix("EndpointUnreachable: "))
			proxy.mend()
			awaitText(ctx, s, &v1alpha1.ToolServer{}, "desk", serverReadiness, HavePrefix("Ready: "))
			s.create(ctx, newTurn("again", asking("call again")))
			t = s.awaitState(ctx, "again", v1alpha1.TurnReasonCompleted)
			Expect(outcomes(t)).To(Equal([]string{"pay Succeeded"}))
			Expect(s.lastMessage()).To(ContainSubstring("Paid."))
			Expect(calls.Load()).To(BeEquivalentTo(2), "no call is made twice")
		}, SpecTimeout(2*patience))

	It("searches the web only if its webMode is On", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, calling("search")), newFakeToolServer()
		host.offer("search", readOnly, answering("It is sunny."))
		s.run()
		s.equip(ctx, host.url, "search", declaring(
			v1alpha1.ToolDeclaration{Name: "search", Effect: v1alpha1.ToolEffectReadOnly, Role: v1alpha1.ToolRoleWebSearch}))
		s.create(ctx, newTurn("off", asking("call off")))
		t := s.awaitState(ctx, "off", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"search Refused"}))
		Expect(s.lastMessage()).To(And(HavePrefix("error (denied): "), ContainSubstring("web")))
		Expect(t.Status.Decision.Strategy).To(Equal(v1alpha1.StrategyDirectAnswer))
		Expect(t.Status.Steps.ToolCalls).To(BeZero())

		s.create(ctx, newTurn("on", asking("call on", func(t *v1alpha1.Turn) { t.Spec.WebMode = v1alpha1.WebModeOn })))
		t = s.awaitState(ctx, "on", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"search Succeeded"}))
		Expect(s.lastMessage()).To(ContainSubstring("It is sunny."))
		Expect(t.Status.Decision.Strategy).To(Equal(v1alpha1.StrategyWebAugmented))
		Expect(t.Status.Decision.ToolsUsed).To(Equal([]string{"search"}))
	}, SpecTimeout(patience))

	It("sees the facts of a context pack in its first request", func(ctx SpecContext) {
		_, url := harnesstest.Tickets(GinkgoTB())
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		s.equip(ctx, url, "add_note close_ticket get_ticket hand_over remove_note search_tickets ticket_context",
			declaring(v1alpha1.ToolDeclaration{
				Name: tickets.ToolContext, Effect: v1alpha1.ToolEffectReadOnly,
				Role: v1alpha1.ToolRoleContextPack,
			}))
		s.create(ctx, newTurn("vpn", asking("Why does the VPN drop?", func(t *v1alpha1.Turn) { t.Spec.TopK = new(int32(1)) })))
		t := s.awaitState(ctx, "vpn", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"ticket_context Succeeded"}))
		Expect(t.Status.ToolCalls[0].Step).To(BeZero())
		Expect(t.Status.Decision.Strategy).To(Equal(v1alpha1.StrategyRetrievalAugmented))
		Expect(t.Status.Result.Citations.Local).To(Equal([]string{"tickets/1061"}))
		var all strings.Builder
		for _, m := range s.heard()[0] {
			all.WriteString(m.Content)
		}
		Expect(all.String()).To(ContainSubstring("Ticket 1061, VPN drops every hour, is open."))
		Expect(s.offers("VPN")).To(Equal([]string{"add_note close_ticket get_ticket hand_over remove_note search_tickets read_artifact"}),
			"the model is not offered the context pack")
	}, SpecTimeout(patience))

	It("repeats a call that timed out if its effect and its retryOnTimeout allow it", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: again}, {name: never}, {name: harmful}]}
- reply: {text: "Done."}
`), newFakeToolServer()
		var calls atomic.Int64
		host.offer("again", readOnly, func(ctx context.Context, _ string) string {
			if calls.Add(1) == 1 {
				host.hang(ctx)
			}
			return "Found."
		})
		stuck := func(ctx context.Context, _ string) string {
			host.hang(ctx)
			return ""
		}
		host.offer("never", readOnly, stuck)
		host.offer("harmful", destructive, stuck)
		s.run()
		s.equip(ctx, host.url, "again harmful never", declaring(
			v1alpha1.ToolDeclaration{Name: "again", Effect: v1alpha1.ToolEffectReadOnly, CallTimeoutSeconds: new(int32(3))},
			v1alpha1.ToolDeclaration{
				Name: "never", Effect: v1alpha1.ToolEffectReadOnly,
				CallTimeoutSeconds: new(int32(3)), RetryOnTimeout: v1alpha1.RetryOnTimeoutNever,
			},
			v1alpha1.ToolDeclaration{Name: "harmful", CallTimeoutSeconds: new(int32(3)), RetryOnTimeout: v1alpha1.RetryOnTimeoutOnce},
		))
		s.create(ctx, newTurn("slow"))
		t := s.awaitState(ctx, "slow", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"again Succeeded", "never Failed", "harmful Unknown"}))
		Expect(t.Status.Steps).To(HaveValue(
			Equal(v1alpha1.StepCounts{Count: 2, ModelRequests: 2, ToolCalls: 3, ToolRetries: 1, UnknownOutcomes: 1})))
		Expect(calls.Load()).To(BeEquivalentTo(2))
		Expect(s.prompts()[1]).To(And(ContainSubstring("Found."), ContainSubstring("tool: error (timeout): ")))
	}, SpecTimeout(patience))
})
