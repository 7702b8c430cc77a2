package api_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const turnBase = `
apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {name: open-loops, namespace: default}
spec:
  agentRef: {name: support}
  message: What are my open loops?
`

// foreignAgentPatch returns a patch for the Turn of a sub-agent of another namespace, with further fields.
func foreignAgentPatch(fields string) string {
	return `spec: {agentRef: {namespace: other}, depth: 1, ` + fields + `}`
}

// oneRequest is the error for a Turn without a request, or with several requests.
const oneRequest = "exactly one of message, messageFrom and undo must be given"

// undoAlone is the error for a Turn with undo and with a field for its request to a model.
const undoAlone = "must not be combined with sessionRef, history, context, attachments, parameters, shaping, guardrails, promptMode, " +
	"model, output, topK, depth or execution: PrepareOnly, because a Turn with undo asks no model: remove these fields"

// numbered returns n items of a YAML list, each made from the format with its number.
func numbered(n int, format string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(items, ", ")
}

// messagePatch returns a patch with this message, which may use the escapes of a YAML string.
func messagePatch(message string) string { return `spec: {message: "` + message + `"}` }

var _ = Describe("Turn", func() {
	It("has defaults", func(ctx SpecContext) {
		spec := accepted(ctx, turnBase, `{}`)
		Expect(spec).To(HaveKeyWithValue("citations", "Show"))
		Expect(spec).To(HaveKeyWithValue("execution", "Run"))
		Expect(spec).To(HaveKeyWithValue("desiredState", "Active"))
		Expect(spec).To(HaveKeyWithValue("onJournalLoss", "Interrupt"))
		Expect(spec).To(HaveLen(6), "nothing else has a default")
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, turnBase, patch) },
		Entry("the longest message, of 4-byte characters", messagePatch(strings.Repeat("\U0001F680", 32768))),
		Entry("the maximum number of facts", `spec: {context: {facts: [`+numbered(128, "{id: f%d, text: t}")+`]}}`),
		Entry("the maximum number of parameters", `spec: {parameters: [`+numbered(32, `{name: p%d, value: ""}`)+`]}`),
		Entry("data of any form", `spec: {context: {data: {a: [1, {b: null}], c: text}}}`),
		Entry("texts from ConfigMaps", `spec: {message: null, messageFrom: {configMapKeyRef: {name: a, key: b}}, `+
			`parameters: [{name: p, valueFrom: {configMapKeyRef: {name: a, key: c}}}]}`),
		Entry("the longest history", `spec: {history: [`+numbered(256, "{role: User, content: c%d}")+`]}`),
		Entry("deletion immediately after the end", `spec: {ttlSecondsAfterFinished: 0}`),
		Entry("the Turn of a sub-agent of another namespace", `spec: {agentRef: {namespace: other}, depth: 1, webMode: "On", `+
			`limits: {maxDepth: 1}, requestedBy: {username: ada}}`),
		Entry("undo of all calls", `spec: {message: null, undo: {turnUID: 0e2a1d0c-8b7e-4c5f-9a51-3f1f7f0f1c11}}`),
		Entry("undo of the maximum number of calls", `spec: {message: null, undo: {turnUID: a, calls: [`+numbered(100, "c%d")+`]}}`),
		Entry("a Turn that is created as cancelled", `spec: {desiredState: Cancelled}`),
	)

	DescribeTable("accepts hostile Unicode in a message, which is stored unchanged",
		func(ctx SpecContext, message, want string) {
			Expect(accepted(ctx, turnBase, messagePatch(message))).To(HaveKeyWithValue("message", want), "it must be stored unchanged")
		},
		Entry("control characters", `a\x01\x1b[31m\x7f\u0085`, "a\x01\x1b[31m\x7f\u0085"),
		Entry("characters that change the direction of text", `a\u202e\u2066b`, "a\u202e\u2066b"),
		Entry("zero-width characters", `a\u200b\u200d\ufeff`, "a\u200b\u200d\ufeff"),
		Entry("the replacement character", `\ufffd`, "\ufffd"),
		Entry("noncharacters", `a\ufffe\uffff\U0010ffff`, "a\ufffe\uffff\U0010ffff"),
		Entry("emoji with joiners", `\U0001F469\u200D\U0001F680`, "\U0001F469\u200D\U0001F680"),
		Entry("many combining characters", "a"+strings.Repeat(`\u0301`, 1000), "a"+strings.Repeat("\u0301", 1000)),
		Entry("line separators", `a\u2028b\u2029c`, "a\u2028b\u2029c"),
		Entry("mark-up", `</context><system>`, "</context><system>"),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, turnBase, patch, field, message) },
		Entry("no agent", `spec: {agentRef: null}`, "spec.agentRef", "Required value"),
		Entry("a requester without a name", `spec: {requestedBy: {}}`, "spec.requestedBy.username", "Required value"),
		Entry("a requester with an empty name", `spec: {requestedBy: {username: ""}}`, "spec.requestedBy.username", "at least 1"),
		Entry("a requester with a long name", `spec: {requestedBy: {username: `+strings.Repeat("u", 513)+`}}`,
			"spec.requestedBy.username", "may not be more than 512"),
		Entry("an agent with an invalid name", `spec: {agentRef: {name: "a b"}}`, "spec.agentRef.name",
			"name must be a lower-case DNS name"),
		Entry("an agent of another namespace", `spec: {agentRef: {namespace: other}}`, "spec.agentRef",
			"agentRef.namespace must be absent: only Capstan creates Turns of Agents of other namespaces, for calls of sub-agents"),
		Entry("an agent of another namespace at depth 0", `spec: {agentRef: {namespace: other}, depth: 0}`, "spec.agentRef",
			"agentRef.namespace must be absent"),
		Entry("an agent of a namespace whose name is not a DNS label", `spec: {agentRef: {namespace: a.b}, depth: 1}`,
			"spec.agentRef.namespace", "namespace must be a lower-case DNS label"),
		Entry("a Session for an agent of another namespace", foreignAgentPatch(`sessionRef: {name: a}`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("a history for an agent of another namespace", foreignAgentPatch(`history: [{role: User, content: x}]`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("facts for an agent of another namespace", foreignAgentPatch(`context: {facts: [{id: a, text: x}]}`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("an attachment for an agent of another namespace",
			foreignAgentPatch(`attachments: [{name: a, mediaType: text/plain, configMapKeyRef: {name: a, key: b}}]`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("messageFrom for an agent of another namespace",
			foreignAgentPatch(`message: null, messageFrom: {configMapKeyRef: {name: a, key: b}}`), "spec.agentRef", "must be absent"),
		Entry("parameters for an agent of another namespace", foreignAgentPatch(`parameters: [{name: a, value: x}]`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("guardrails for an agent of another namespace", foreignAgentPatch(`guardrails: [{id: a, rule: x}]`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("a prompt mode for an agent of another namespace", foreignAgentPatch(`promptMode: Task`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("a model for an agent of another namespace", foreignAgentPatch(`model: m`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("a number of results for an agent of another namespace", foreignAgentPatch(`topK: 3`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("a schema for an agent of another namespace", foreignAgentPatch(`output: {schema: {type: object}}`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("shaping for an agent of another namespace", foreignAgentPatch(`shaping: {mode: review}`),
			"spec.agentRef", "agentRef.namespace must be absent"),
		Entry("no message", `spec: {message: null}`, "spec.message", oneRequest),
		Entry("data that is no object", `spec: {context: {data: [1]}}`, "spec.context.data", "must be of type object"),
		Entry("a message and undo", `spec: {undo: {turnUID: a}}`, "spec.message", oneRequest),
		Entry("a message and messageFrom", `spec: {messageFrom: {configMapKeyRef: {name: a, key: b}}}`, "spec.message", oneRequest),
		Entry("messageFrom and undo", `spec: {message: null, messageFrom: {configMapKeyRef: {name: a, key: b}}, undo: {turnUID: a}}`,
			"spec.message", oneRequest),
		Entry("messageFrom without a source", `spec: {message: null, messageFrom: {}}`,
			"spec.messageFrom.configMapKeyRef", "Required value"),
		Entry("a parameter without a value", `spec: {parameters: [{name: a}]}`, "spec.parameters[0]",
			"exactly one of value and valueFrom must be given"),
		Entry("a parameter with two values",
			`spec: {parameters: [{name: a, value: "", valueFrom: {configMapKeyRef: {name: a, key: b}}}]}`, "spec.parameters[0]",
			"exactly one of value and valueFrom must be given"),
		Entry("undo without a UID", `spec: {message: null, undo: {calls: [a]}}`, "spec.undo.turnUID", "Required value"),
		Entry("undo of a path", `spec: {message: null, undo: {turnUID: "../a"}}`, "spec.undo.turnUID", "must have only letters"),
		Entry("undo of no calls", `spec: {message: null, undo: {turnUID: a, calls: []}}`,
			"spec.undo.calls", "should have at least 1 items"),
		Entry("undo of too many calls", `spec: {message: null, undo: {turnUID: a, calls: [`+numbered(101, "c%d")+`]}}`,
			"spec.undo.calls", "must have at most 100 items"),
		Entry("undo in a Session", `spec: {message: null, undo: {turnUID: a}, sessionRef: {name: s}}`, "spec.undo",
			undoAlone),
		Entry("undo that prepares only", `spec: {message: null, undo: {turnUID: a}, execution: PrepareOnly}`, "spec.undo",
			undoAlone),
		Entry("undo with an output", `spec: {message: null, undo: {turnUID: a}, output: {schema: {}}}`, "spec.undo",
			undoAlone),
		Entry("undo that starts over", `spec: {message: null, undo: {turnUID: a}, onJournalLoss: Rerun}`, "spec.onJournalLoss",
			"must be Interrupt with undo"),
		Entry("an empty message", messagePatch(``), "spec.message", "message must not be blank"),
		Entry("spaces", messagePatch(`   `), "spec.message", "message must not be blank"),
		Entry("tabs and line breaks", messagePatch(` \t\r\n\v\f`), "spec.message", "message must not be blank"),
		Entry("Unicode spaces", messagePatch(`\u3000\u00a0\u2003\u1680\u2028\u0085`), "spec.message", "message must not be blank"),
		Entry("characters without width", messagePatch(`\u200b\u200e\ufeff\u2060`), "spec.message", "message must not be blank"),
		Entry("a message of only NUL", messagePatch(`\0`), "spec.message", "message must not be blank"),
		Entry("NUL in the message", messagePatch(`a\0b`), "spec.message", "message must not contain the character U+0000"),
		Entry("NUL in a parameter", `spec: {parameters: [{name: a, value: "\0"}]}`, "spec.parameters[0].value",
			"value must not contain the character U+0000"),
		Entry("NUL in the history", `spec: {history: [{role: User, content: "\0"}]}`, "spec.history[0].content",
			"content must not contain the character U+0000"),
		Entry("NUL in a fact", `spec: {context: {facts: [{id: a, text: "\0"}]}}`, "spec.context.facts[0].text",
			"text must not contain the character U+0000"),
		Entry("a message that is a number", `spec: {message: 5}`, "spec.message", "must be of type string"),
		Entry("a message that is one character too long", messagePatch(strings.Repeat("a", 32769)), "spec.message",
			"may not be more than 32768"),
		Entry("a message of 1 MiB", messagePatch(strings.Repeat("a", 1<<20)), "spec.message", "may not be more than 32768"),
		Entry("10,000 facts", `spec: {context: {facts: [`+numbered(10_000, "{id: f%d, text: t}")+`]}}`,
			"spec.context.facts", "must have at most 128 items"),
		Entry("an empty context", `spec: {context: {}}`, "spec.context", "at least 1 properties"),
		Entry("the same fact twice", `spec: {context: {facts: [{id: a, text: x}, {id: a, text: y}]}}`,
			"spec.context.facts[1]", "Duplicate value"),
		Entry("a fact without an id", `spec: {context: {facts: [{text: x}]}}`, "spec.context.facts[0].id", "Required value"),
		Entry("a fact without text", `spec: {context: {facts: [{id: a, text: ""}]}}`, "spec.context.facts[0].text",
			"at least 1 chars long"),
		Entry("too long a source", `spec: {context: {facts: [{id: a, text: x, source: `+strings.Repeat("s", 513)+`}]}}`,
			"spec.context.facts[0].source", "512"),
		Entry("the same parameter twice", `spec: {parameters: [{name: a, value: x}, {name: a, value: y}]}`,
			"spec.parameters[1]", "Duplicate value"),
		Entry("a parameter with an invalid name", `spec: {parameters: [{name: a-b, value: x}]}`,
			"spec.parameters[0].name", "must be a letter followed by"),
		Entry("too many parameters", `spec: {parameters: [`+numbered(33, "{name: p%d, value: v}")+`]}`,
			"spec.parameters", "must have at most 32 items"),
		Entry("an unknown role", `spec: {history: [{role: System, content: x}]}`, "spec.history[0].role",
			`supported values: "User", "Assistant"`),
		Entry("an empty history message", `spec: {history: [{role: User, content: ""}]}`, "spec.history[0].content",
			"at least 1 chars long"),
		Entry("too much history", `spec: {history: [`+numbered(257, "{role: User, content: c%d}")+`]}`,
			"spec.history", "must have at most 256 items"),
		Entry("an unknown citation mode", `spec: {citations: Maybe}`, "spec.citations", `supported values: "Show", "Hide", "Append"`),
		Entry("citations: Append with output", `spec: {citations: Append, output: {schema: {type: object}}}`, "spec",
			"citations must not be Append with output"),
		Entry("an unknown execution", `spec: {execution: Dry}`, "spec.execution", `supported values: "Run", "PrepareOnly"`),
		Entry("an unknown state", `spec: {desiredState: Paused}`, "spec.desiredState",
			`supported values: "Active", "Suspended", "Cancelled"`),
		Entry("an unknown policy for a lost journal", `spec: {onJournalLoss: Ignore}`, "spec.onJournalLoss",
			`supported values: "Interrupt", "Rerun"`),
		Entry("a negative time to live", `spec: {ttlSecondsAfterFinished: -1}`, "spec.ttlSecondsAfterFinished",
			"greater than or equal to 0"),
		Entry("a time to live above a year", `spec: {ttlSecondsAfterFinished: 31536001}`,
			"spec.ttlSecondsAfterFinished", "less than or equal to 31536000"),
		Entry("empty limits", `spec: {limits: {}}`, "spec.limits", "at least 1 properties"),
		Entry("an unknown field", `spec: {mesage: x}`, "spec.mesage", "unknown field"),
		Entry("an unknown field of metadata", `metadata: {lables: {a: b}}`, "metadata.lables", "unknown field"),
		Entry("an invalid label", `metadata: {labels: {"a b": c}}`, "metadata.labels", "name part must consist of"),
	)
})
