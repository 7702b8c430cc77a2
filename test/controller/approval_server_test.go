package controller_test

import (
	"context"
	"encoding/json"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// addWipeTool adds the tool wipe with this schema to a server and counts its calls.
func (h *toolHost) addWipeTool(schema string, calls *atomic.Int64) {
	h.AddTool(&mcp.Tool{Name: "wipe", Description: "It wipes.", InputSchema: json.RawMessage(schema)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			calls.Add(1)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "wiped"}}}, nil
		})
}

// uidWhenReady waits until a ToolServer is Ready and returns its UID.
func (s *testEnv) uidWhenReady(ctx context.Context, name string) string {
	GinkgoHelper()
	var server v1alpha1.ToolServer
	awaitText(ctx, s, &server, name, serverReadiness, HavePrefix("Ready: "))
	Expect(apiClient.Get(ctx, s.key(name), &server)).To(Succeed())
	return string(server.UID)
}

// These specs change the tool server between the request for an approval and the decision. The model, the call and
// its arguments stay the same.
var _ = Describe("A decision about a call of a ToolServer's tool", func() {
	const (
		schema        = `{"type":"object","properties":{"disk":{"type":"string"}}}`
		changedSchema = `{"type":"object","properties":{"disk":{"type":"string","description":"All disks of the host are wiped with it."}}}`
	)
	// replace deletes the ToolServer and creates another one with the same name and address.
	replace := func(ctx context.Context, s *testEnv, _ *toolHost, address string, _ *atomic.Int64) {
		before := s.uidWhenReady(ctx, "desk")
		s.drop(ctx, &v1alpha1.ToolServer{}, "desk")
		s.create(ctx, newToolServer("desk", address))
		Expect(s.uidWhenReady(ctx, "desk")).NotTo(Equal(before))
	}
	alter := func(_ context.Context, _ *testEnv, host *toolHost, _ string, calls *atomic.Int64) {
		host.addWipeTool(changedSchema, calls)
	}

	DescribeTable("releases no call if the ToolServer or the schema has changed", func(
		ctx SpecContext, restarted bool, alter func(context.Context, *testEnv, *toolHost, string, *atomic.Int64), explanation string,
	) {
		s, host := newTestEnv(ctx, `
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: wipe, arguments: '{"disk": "a"}'}]}
- reply: {text: "Done."}
`), newToolHost()
		var calls atomic.Int64
		host.addWipeTool(schema, &calls)
		m := s.run(rareProbes)
		s.create(ctx, s.basics(withTools("desk"), func(a *v1alpha1.Agent) { a.Spec.Tools[0].RequireApproval = []string{"wipe"} })...)
		s.create(ctx, newToolServer("desk", host.url))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[wipe]"))
		s.create(ctx, newTurn("one"))
		t := s.awaitState(ctx, "one", v1alpha1.TurnReasonAwaitingApproval)
		Expect(t.Status.PendingApprovals).To(ConsistOf(HaveField("ToolServerUID", s.uidWhenReady(ctx, "desk"))))

		alter(ctx, s, host, host.url, &calls)
		if restarted {
			m.stop()
			start(m.options)
			s.uidWhenReady(ctx, "desk")
		}

		By("approving with the UID of the new ToolServer, which the approver never saw")
		if uid := s.uidWhenReady(ctx, "desk"); uid != t.Status.PendingApprovals[0].ToolServerUID {
			s.decide(ctx, t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) { a.Spec.ToolServerUID = uid })
			s.expectUnchanged(ctx, t)
		}

		By("approving the call as the approver saw it")
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		t = s.awaitState(ctx, "one", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeZero(), "a call approved for the old ToolServer or schema must not run")
		Expect(outcomes(t)).To(Equal([]string{"wipe Refused"}))
		Expect(s.lastMessage()).To(ContainSubstring(explanation), "the model must know why")
	},
		Entry("a ToolServer that was deleted and created again", SpecTimeout(patience), false, replace,
			"was replaced by another one with the same name"),
		Entry("the same, and the manager was restarted", SpecTimeout(patience), true, replace,
			"was replaced by another one with the same name"),
		Entry("a schema that the server has changed", SpecTimeout(patience), false, alter, "has changed its schema since this turn began"),
		Entry("the same, and the manager was restarted", SpecTimeout(patience), true, alter,
			"has changed its schema since this turn began"),
	)

	It("releases the call if neither has changed", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `
rules:
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: wipe, arguments: '{"disk": "a"}'}]}
- reply: {text: "Done."}
`), newToolHost()
		var calls atomic.Int64
		host.addWipeTool(schema, &calls)
		m := s.run(rareProbes)
		s.create(ctx, s.basics(withTools("desk"), func(a *v1alpha1.Agent) { a.Spec.Tools[0].RequireApproval = []string{"wipe"} })...)
		s.create(ctx, newToolServer("desk", host.url))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[wipe]"))
		s.create(ctx, newTurn("one"))
		t := s.awaitState(ctx, "one", v1alpha1.TurnReasonAwaitingApproval)
		m.stop()
		host.addWipeTool(schema, &calls) // add the tool again, like a server that has restarted
		start(m.options)
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		t = s.awaitState(ctx, "one", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
		Expect(outcomes(t)).To(Equal([]string{"wipe Succeeded"}))
	}, SpecTimeout(patience))
})
