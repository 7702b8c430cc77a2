package api_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is the maximum time to wait for the API server.
const patience = 90 * time.Second

// readyStatus returns the status of an object that is Ready. hash is the YAML line that sets the hash in the status, or
// empty for a kind without a hash.
func readyStatus(hash string) string {
	return `
status:
  ` + hash + `
  conditions:
  - {type: Ready, status: "True", reason: Ready, message: All is well, lastTransitionTime: "2026-01-01T00:00:00Z"}
`
}

const toolServerStatus = `
status:
  serverName: tickets
  toolCount: 2
  tools: [{name: close_ticket, effect: Destructive, schemaHash: aa}, ` +
	`{name: search_tickets, effect: ReadOnly, role: LocalSearch, schemaHash: bb}]
  conditions:
  - {type: Ready, status: "True", reason: Ready, message: The server answers, lastTransitionTime: "2026-01-01T00:00:00Z"}
`

const budgetStatus = `
status:
  resetTime: "2026-01-02T00:00:00Z"
  spent: {tokens: 612, cost: "0.0123", turns: 1}
  conditions:
  - {type: Ready, status: "True", reason: Ready, message: All is well, lastTransitionTime: "2026-01-01T00:00:00Z"}
  - {type: Exceeded, status: "False", reason: WithinLimits, message: No limit is reached, lastTransitionTime: "2026-01-01T00:00:00Z"}
`

const sessionStatus = `
status:
  turns: 3
  lastTurnName: open-loops
  lastTurnTime: "2026-01-01T00:00:00.000000Z"
  usage: {inputTokens: 1800, outputTokens: 36, totalTokens: 1836, cost: {amount: "0.0369", currency: USD}}
  contextTokens: 900
  conditions:
  - {type: Ready, status: "True", reason: Open, message: the session takes turns, lastTransitionTime: "2026-01-01T00:00:00Z"}
  - {type: HistoryComplete, status: "False", reason: HistoryLost, message: 2 turns are missing, lastTransitionTime: "2026-01-01T00:00:00Z"}
`

const turnStatus = `
status:
  stopReason: Completed
  steps: {count: 1, modelRequests: 1, modelRetries: 0, resumes: 0}
  usage: {inputTokens: 600, outputTokens: 12, totalTokens: 612, cost: {amount: "0.0123", currency: USD}}
  result: {text: Two loops are open., bytes: 19, preview: Two loops are open.}
  decision: {key: support.chat.turn, strategy: DirectAnswer, promptRenderHash: aa, contextHash: bb}
  preparation:
    promptProfile: {name: support, id: a, version: 1.4.0}
    provider: demo
    model: demo-small
    promptRenderHash: aa
    promptHash: cc
    contextHash: bb
    mode: Full
    sections: [agent, instructions]
    stableChars: 1
    dynamicChars: 1
    toolCount: 0
    messageCount: 2
    expression: {tone: dry, directness: High, warmth: Medium, humor: "Off", initiative: Low, explanationDensity: Medium}
    provenance:
      usedMemoryIDs: [m1]
      droppedMemoryIDs: [m2]
      usedEnrichmentIDs: [e1]
      droppedEnrichmentIDs: [e2]
      usedGuardrailIDs: [g1]
      usedOverlayIDs: [o1]
  conditions:
  - {type: Succeeded, status: "True", reason: Completed, message: The model answered, lastTransitionTime: "2026-01-01T00:00:00Z"}
`

var _ = Describe("kubectl", Ordered, func() {
	run := func(args ...string) string {
		GinkgoHelper()
		out, errOut, err := controlPlane.RunKubectl(GinkgoT().Context(), args...)
		Expect(err).NotTo(HaveOccurred())
		Expect(errOut).To(BeEmpty(), "kubectl %s must not warn", strings.Join(args, " "))
		return out
	}

	BeforeAll(func(ctx SpecContext) {
		for base, status := range map[string]string{
			agentBase:    readyStatus("promptRenderHash: a1b2"),
			profileBase:  readyStatus("renderHash: a1b2"),
			providerBase: readyStatus(""),
			sessionBase:  sessionStatus,
			serverBase:   toolServerStatus,
			turnBase:     turnStatus,
			budgetBase:   budgetStatus,
		} {
			createWithStatus(ctx, base, status)
		}
		createFrom(ctx, approvalBase)
	})

	DescribeTable("prints the columns",
		func(resource string, want, wide []string) {
			Expect(table(run("get", resource))).To(Equal([][]string{columns(want, 0), columns(want, 1)}))
			Expect(table(run("get", resource, "-o", "wide"))).To(Equal([][]string{columns(wide, 0), columns(wide, 1)}))
		},
		Entry("of a Turn", "tn",
			[]string{"NAME=open-loops", "AGENT=support", "STATE=Completed", "STEPS=1", "TOKENS=612", "COST=0.0123", "AGE=*"},
			[]string{
				"NAME=open-loops", "AGENT=support", "STATE=Completed", "STEPS=1", "TOKENS=612", "COST=0.0123", "AGE=*",
				"REQUESTER=ada", "MODEL=demo-small", "STRATEGY=DirectAnswer", "STOP=Completed",
				"ANSWER=Two loops are open.", "MESSAGE=The model answered",
			}),
		Entry("of an Agent", "ag",
			[]string{"NAME=support", "PROFILE=support", "MODEL=demo-small", "STATE=Ready", "AGE=*"},
			[]string{"NAME=support", "PROFILE=support", "MODEL=demo-small", "STATE=Ready", "HASH=a1b2", "MESSAGE=All is well", "AGE=*"}),
		Entry("of a PromptProfile", "pp",
			[]string{"NAME=support", "ID=agent.profile.default", "VERSION=1.4.0", "STATE=Ready", "AGE=*"},
			[]string{
				"NAME=support", "ID=agent.profile.default", "VERSION=1.4.0", "STATE=Ready", "HASH=a1b2", "MESSAGE=All is well", "AGE=*",
			}),
		Entry("of a Session", "sn",
			[]string{
				"NAME=sess-abc", "STATE=Open", "TURNS=3", "TOKENS=1836", "COST=0.0369", "HISTORY=HistoryLost",
				"LAST=open-loops", "AGE=*",
			},
			[]string{
				"NAME=sess-abc", "STATE=Open", "TURNS=3", "TOKENS=1836", "COST=0.0369", "HISTORY=HistoryLost",
				"LAST=open-loops", "SUBJECT=Order 1042", "MESSAGE=the session takes turns", "AGE=*",
			}),
		Entry("of a ToolServer", "ts",
			[]string{"NAME=tickets", "TYPE=MCP", "TOOLS=2", "STATE=Ready", "AGE=*"},
			[]string{
				"NAME=tickets", "TYPE=MCP", "TOOLS=2", "STATE=Ready", "URL=http://tickets.tools:8080/mcp",
				"MESSAGE=The server answers", "AGE=*",
			}),
		Entry("of a ToolApproval", "ta",
			[]string{"NAME=close", "TURN=open-loops", "CALL=call_1", "DECISION=Denied", "BY=ada", "AGE=*"},
			[]string{"NAME=close", "TURN=open-loops", "CALL=call_1", "DECISION=Denied", "BY=ada", "REASON=Not yet.", "AGE=*"}),
		Entry("of a ModelProvider", "mp",
			[]string{"NAME=demo", "TYPE=OpenAI", "STATE=Ready", "AGE=*"},
			[]string{"NAME=demo", "TYPE=OpenAI", "STATE=Ready", "URL=https://llm.internal/v1", "MESSAGE=All is well", "AGE=*"}),
		Entry("of a Budget", "bg",
			[]string{
				"NAME=support", "PERIOD=Day", "TOKENS=612", "COST=0.0123", "TURNS=1", "EXCEEDED=False",
				"RESET=2026-01-02T00:00:00Z", "AGE=*",
			},
			[]string{
				"NAME=support", "PERIOD=Day", "TOKENS=612", "COST=0.0123", "TURNS=1", "EXCEEDED=False",
				"RESET=2026-01-02T00:00:00Z", "STATE=Ready", "MESSAGE=No limit is reached", "AGE=*",
			}),
	)

	It("lists all kinds by their category", func() {
		out := run("get", "capstan", "-o", "name")
		for _, name := range []string{
			"agent.capstan.dev/support", "promptprofile.capstan.dev/support", "modelprovider.capstan.dev/demo",
			"session.capstan.dev/sess-abc", "budget.capstan.dev/support",
			"turn.capstan.dev/open-loops", "toolserver.capstan.dev/tickets", "toolapproval.capstan.dev/close",
		} {
			Expect(out).To(ContainSubstring(name))
		}
	})

	It("explains a Turn", func() {
		// The API server publishes the schemas of new CRDs a moment after it begins to serve them.
		Eventually(func() error {
			_, _, err := controlPlane.RunKubectl(GinkgoT().Context(), "explain", "turn.spec")
			return err
		}).WithTimeout(patience).Should(Succeed())
		Expect(run("explain", "turn.spec")).To(And(
			ContainSubstring("agentRef\t<Object> -required-"),
			ContainSubstring("message is the user's request, 1 to 32768 characters"),
			ContainSubstring("desiredState\t<string>"),
			ContainSubstring("enum: Active, Suspended, Cancelled")))
		Expect(run("explain", "ts.spec.tools.effect")).To(And(ContainSubstring("Idempotent\n"),
			ContainSubstring("effect is the effect of a call. ReadOnly: it changes nothing. Idempotent:")))
		Expect(run("explain", "ag.spec.tools")).To(
			And(ContainSubstring("requireApproval\t<[]string>"), ContainSubstring("serverRef\t<Object>")))
		Expect(run("explain", "ta.spec")).To(ContainSubstring("decidedBy\t<string> -required-"))
		Expect(run("explain", "tn.spec.context.facts.source")).To(ContainSubstring("source is the source of the fact"))
	})
})

// createWithStatus stores an object with a status, and deletes it after the tests.
func createWithStatus(ctx SpecContext, base, status string) {
	GinkgoHelper()
	object := merged(base, `{}`)
	if object.GetKind() == "Turn" {
		object = merged(base, `spec: {requestedBy: {username: ada}}`)
	}
	Expect(apiClient.Create(ctx, object)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, object)).To(Succeed()) })
	written := merged(asJSON(object.Object), status)
	Expect(apiClient.Status().Update(ctx, written, client.FieldValidation("Strict"))).To(Succeed())
	found, _, err := unstructured.NestedSlice(written.Object, "status", "conditions")
	Expect(err).NotTo(HaveOccurred())
	Expect(found).NotTo(BeEmpty(), "the status must be stored")
}

// table splits the output of kubectl get into cells, which are two or more spaces apart. It replaces an age with a
// star.
func table(out string) [][]string {
	var rows [][]string
	for line := range strings.Lines(out) {
		var cells []string
		for cell := range strings.SplitSeq(strings.TrimSpace(line), "  ") {
			if cell = strings.TrimSpace(cell); cell != "" {
				cells = append(cells, cell)
			}
		}
		rows = append(rows, cells)
	}
	if len(rows) > 1 {
		for i, name := range rows[0] {
			if name == "AGE" && i < len(rows[1]) {
				rows[1][i] = "*"
			}
		}
	}
	return rows
}

// columns returns the headings (part 0) or the cells (part 1) of HEADING=cell pairs.
func columns(pairs []string, part int) []string {
	cells := make([]string, len(pairs))
	for i, pair := range pairs {
		cells[i] = strings.SplitN(pair, "=", 2)[part]
	}
	return cells
}
