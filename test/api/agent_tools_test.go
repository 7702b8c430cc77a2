package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// toolsPatch returns a patch that sets an Agent's tools to these entries, in YAML's flow style without the brackets.
func toolsPatch(entries string) string { return `spec: {tools: [` + entries + `]}` }

var _ = Describe("Agent's tools", func() {
	It("have no defaults", func(ctx SpecContext) {
		spec := accepted(ctx, agentBase, toolsPatch(`{serverRef: {name: tickets}}, {agentRef: {name: researcher}}`))
		Expect(asJSON(spec["tools"])).To(MatchJSON(`[{"serverRef": {"name": "tickets"}}, {"agentRef": {"name": "researcher"}}]`))
		Expect(spec).To(HaveKeyWithValue("reasoningText", "Discard"))
		Expect(spec).NotTo(Or(HaveKey("toolPolicy"), HaveKey("context"), HaveKey("reflectEveryTurns")))
	})
	It("have a toolPolicy with defaults", func(ctx SpecContext) {
		spec := accepted(ctx, agentBase, `spec: {toolPolicy: {effects: ReadOnly}}`)
		Expect(asJSON(spec["toolPolicy"])).To(MatchJSON(
			`{"argumentValidation": "Enforce", "selection": "Declared", "maxToolsPerTurn": 25, "execution": ` +
				`"Parallel", "effects": "ReadOnly"}`))
		spec = accepted(ctx, agentBase, `spec: {toolPolicy: {}}`)
		Expect(asJSON(spec["toolPolicy"])).To(ContainSubstring(`"effects":"Any"`))
	})
	It("have a context with defaults", func(ctx SpecContext) {
		spec := accepted(ctx, agentBase, `spec: {context: {compaction: "Off"}}`)
		Expect(asJSON(spec["context"])).To(MatchJSON(`{"compaction": "Off", "compactPercent": 90}`))
		spec = accepted(ctx, agentBase, `spec: {context: {warnPercent: 90}}`)
		Expect(asJSON(spec["context"])).To(MatchJSON(`{"compaction": "Auto", "warnPercent": 90, "compactPercent": 90}`))
	})

	DescribeTable("accept",
		func(ctx SpecContext, patch string) { accepted(ctx, agentBase, patch) },
		Entry("patterns", toolsPatch(`{serverRef: {name: tickets}, allow: ["search_*", "get_?", "*"], `+
			`requireApproval: [close_ticket], maxCalls: 1000}`)),
		Entry("an empty list of tools that require approval", toolsPatch(`{serverRef: {name: tickets}, requireApproval: []}`)),
		Entry("a sub-agent under another name",
			toolsPatch(`{agentRef: {name: research.team}, name: ask_Research-1, requireApproval: ["*"], maxCalls: 1}`)),
		Entry("the longest name", toolsPatch(`{agentRef: {name: a}, name: `+strings.Repeat("n", 64)+`}`)),
		Entry("the same server twice, with different bounds",
			toolsPatch(`{serverRef: {name: a}, allow: [x], maxCalls: 1}, {serverRef: {name: a}, allow: [z]}`)),
		Entry("a server of another namespace", toolsPatch(`{serverRef: {name: a, namespace: b}}`)),
		Entry("a sub-agent of another namespace", toolsPatch(`{agentRef: {name: a, namespace: b}, name: c}`)),
		Entry("the namespaces that may use the Agent", `spec: {allowedNamespaces: {from: Selector, selector: {matchLabels: {team: a}}}}`),
		Entry("the maximum number of entries", toolsPatch(numbered(32, `{serverRef: {name: s%d}}`))),
		Entry("the maximum number of patterns",
			toolsPatch(`{serverRef: {name: a}, allow: [`+numbered(64, "p%d")+`], requireApproval: [`+numbered(64, "p%d")+`]}`)),
		Entry("the widest policy", `spec: {toolPolicy: {argumentValidation: "Off", selection: Semantic, maxToolsPerTurn: 128}}`),
		Entry("a lower percentage of compaction with the warning that older versions have stored",
			`spec: {context: {warnPercent: 70, compactPercent: 50}}`),
		Entry("the lowest percentages of the context", `spec: {context: {warnPercent: 1, compactPercent: 1}}`),
		Entry("a compaction below the default of the warning", `spec: {context: {compactPercent: 50}}`),
		Entry("the highest percentages of the context", `spec: {context: {warnPercent: 100, compactPercent: 100}}`),
		Entry("reflection and reasoning", `spec: {reflectEveryTurns: 1000, reasoningText: Journal}`),
		Entry("reflection after every 0 Turns", `spec: {reflectEveryTurns: 0}`),
		Entry("no sub-agents", `spec: {limits: {maxDepth: 0}}`),
		Entry("no descendants", `spec: {limits: {maxDescendants: 0}}`),
		Entry("the most descendants", `spec: {limits: {maxDescendants: 1000}}`),
		Entry("the deepest sub-agents and the longest wait", `spec: {limits: {maxDepth: 8, approvalTimeoutSeconds: 2592000}}`),
	)

	DescribeTable("reject",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, agentBase, patch, field, message) },
		Entry("an entry with neither a server nor an agent", toolsPatch(`{allow: [a]}`), "spec.tools[0]",
			"exactly one of serverRef and agentRef must be given"),
		Entry("an entry with a server and an agent", toolsPatch(`{serverRef: {name: a}, agentRef: {name: b}}`), "spec.tools[0]",
			"exactly one of serverRef and agentRef must be given"),
		Entry("a server with an invalid name", toolsPatch(`{serverRef: {name: A_b}}`), "spec.tools[0].serverRef.name",
			"name must be a lower-case DNS name"),
		Entry("a server of a namespace with an invalid name", toolsPatch(`{serverRef: {name: a, namespace: b.c}}`),
			"spec.tools[0].serverRef.namespace", "namespace must be a lower-case DNS label"),
		Entry("a sub-agent of a namespace with an invalid name", toolsPatch(`{agentRef: {name: a, namespace: b.c}}`),
			"spec.tools[0].agentRef.namespace", "namespace must be a lower-case DNS label"),
		Entry("from: Selector without a selector", `spec: {allowedNamespaces: {from: Selector}}`, "spec.allowedNamespaces.selector",
			"selector must be given if from is Selector, and only then"),
		Entry("patterns of a sub-agent", toolsPatch(`{agentRef: {name: a}, allow: ["*"]}`), "spec.tools[0].allow",
			"allow must be absent if agentRef is given"),
		Entry("a name for the tools of a server", toolsPatch(`{serverRef: {name: a}, name: b}`), "spec.tools[0].name",
			"name must be absent if serverRef is given"),
		Entry("an empty name", toolsPatch(`{agentRef: {name: a}, name: ""}`), "spec.tools[0].name", "at least 1 chars long"),
		Entry("a name that begins with a digit", toolsPatch(`{agentRef: {name: a}, name: 1st}`), "spec.tools[0].name",
			"name must consist of letters, digits"),
		Entry("a name that begins with a dash", toolsPatch(`{agentRef: {name: a}, name: "-a"}`), "spec.tools[0].name",
			"begin with a letter or '_'"),
		Entry("a name with a dot", toolsPatch(`{agentRef: {name: a}, name: a.b}`), "spec.tools[0].name",
			"name must consist of letters, digits"),
		Entry("too long a name", toolsPatch(`{agentRef: {name: a}, name: `+strings.Repeat("n", 65)+`}`), "spec.tools[0].name", "64"),
		Entry("patterns that allow nothing", toolsPatch(`{serverRef: {name: a}, allow: []}`), "spec.tools[0].allow", "at least 1 items"),
		Entry("an empty pattern", toolsPatch(`{serverRef: {name: a}, allow: [""]}`), "spec.tools[0].allow[0]", "at least 1 chars long"),
		Entry("the same pattern twice", toolsPatch(`{serverRef: {name: a}, allow: [b, b]}`), "spec.tools[0].allow[1]", "Duplicate value"),
		Entry("too long a pattern", toolsPatch(`{serverRef: {name: a}, allow: [`+strings.Repeat("p", 129)+`]}`),
			"spec.tools[0].allow[0]", "128"),
		Entry("too many patterns", toolsPatch(`{serverRef: {name: a}, allow: [`+numbered(65, "p%d")+`]}`),
			"spec.tools[0].allow", "must have at most 64 items"),
		Entry("an empty pattern of approval", toolsPatch(`{serverRef: {name: a}, requireApproval: [""]}`),
			"spec.tools[0].requireApproval[0]", "at least 1 chars long"),
		Entry("too many patterns of approval", toolsPatch(`{serverRef: {name: a}, requireApproval: [`+numbered(65, "p%d")+`]}`),
			"spec.tools[0].requireApproval", "must have at most 64 items"),
		Entry("a maximum of 0 calls", toolsPatch(`{serverRef: {name: a}, maxCalls: 0}`), "spec.tools[0].maxCalls",
			"greater than or equal to 1"),
		Entry("too many calls", toolsPatch(`{serverRef: {name: a}, maxCalls: 1001}`), "spec.tools[0].maxCalls",
			"less than or equal to 1000"),
		Entry("too many entries", toolsPatch(numbered(33, `{serverRef: {name: s%d}}`)), "spec.tools", "must have at most 32 items"),
		Entry("an unknown validation", `spec: {toolPolicy: {argumentValidation: Warn}}`,
			"spec.toolPolicy.argumentValidation", `supported values: "Enforce", "Off"`),
		Entry("an unknown selection", `spec: {toolPolicy: {selection: Random}}`, "spec.toolPolicy.selection",
			`supported values: "Declared", "Semantic"`),
		Entry("an unknown execution", `spec: {toolPolicy: {execution: Both}}`, "spec.toolPolicy.execution",
			`supported values: "Parallel", "Sequential"`),
		Entry("unknown effects", `spec: {toolPolicy: {effects: None}}`, "spec.toolPolicy.effects", `supported values: "Any", "ReadOnly"`),
		Entry("no tools per Turn", `spec: {toolPolicy: {maxToolsPerTurn: 0}}`, "spec.toolPolicy.maxToolsPerTurn",
			"greater than or equal to 1"),
		Entry("too many tools per Turn", `spec: {toolPolicy: {maxToolsPerTurn: 129}}`, "spec.toolPolicy.maxToolsPerTurn",
			"less than or equal to 128"),
		Entry("an unknown compaction", `spec: {context: {compaction: Manual}}`, "spec.context.compaction",
			`supported values: "Auto", "Off"`),
		Entry("a warning above the percentage of compaction", `spec: {context: {warnPercent: 91}}`, "spec.context.warnPercent",
			"warnPercent must be at most compactPercent"),
		Entry("a warning at 0 percent", `spec: {context: {warnPercent: 0}}`, "spec.context.warnPercent", "greater than or equal to 1"),
		Entry("a compaction beyond the window", `spec: {context: {compactPercent: 101}}`, "spec.context.compactPercent",
			"less than or equal to 100"),
		Entry("a negative reflectEveryTurns", `spec: {reflectEveryTurns: -1}`, "spec.reflectEveryTurns", "greater than or equal to 0"),
		Entry("too high a reflectEveryTurns", `spec: {reflectEveryTurns: 1001}`, "spec.reflectEveryTurns", "less than or equal to 1000"),
		Entry("an unknown reasoningText", `spec: {reasoningText: Show}`, "spec.reasoningText", `supported values: "Discard", "Journal"`),
		Entry("a negative depth", `spec: {limits: {maxDepth: -1}}`, "spec.limits.maxDepth", "greater than or equal to 0"),
		Entry("a negative number of descendants", `spec: {limits: {maxDescendants: -1}}`, "spec.limits.maxDescendants",
			"greater than or equal to 0"),
		Entry("too many descendants", `spec: {limits: {maxDescendants: 1001}}`, "spec.limits.maxDescendants", "less than or equal to 1000"),
		Entry("too great a depth", `spec: {limits: {maxDepth: 9}}`, "spec.limits.maxDepth", "less than or equal to 8"),
		Entry("no time to approve", `spec: {limits: {approvalTimeoutSeconds: 0}}`, "spec.limits.approvalTimeoutSeconds",
			"greater than or equal to 1"),
		Entry("too much time to approve", `spec: {limits: {approvalTimeoutSeconds: 2592001}}`,
			"spec.limits.approvalTimeoutSeconds", "less than or equal to 2592000"),
	)
})

var _ = Describe("PromptProfile's pinned tools", func() {
	DescribeTable("accept",
		func(ctx SpecContext, patch string) { accepted(ctx, profileBase, patch) },
		Entry("the maximum number of entries", `spec: {pinnedTools: [`+numbered(32, "t%d")+`]}`),
		Entry("the longest name", `spec: {pinnedTools: [`+strings.Repeat("t", 64)+`]}`),
	)
	DescribeTable("reject",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, profileBase, patch, field, message) },
		Entry("an empty name", `spec: {pinnedTools: [""]}`, "spec.pinnedTools[0]", "at least 1 chars long"),
		Entry("the same name twice", `spec: {pinnedTools: [a, a]}`, "spec.pinnedTools[1]", "Duplicate value"),
		Entry("too long a name", `spec: {pinnedTools: [`+strings.Repeat("t", 65)+`]}`, "spec.pinnedTools[0]", "64"),
		Entry("too many", `spec: {pinnedTools: [`+numbered(33, "t%d")+`]}`, "spec.pinnedTools", "must have at most 32 items"),
	)
})

var _ = Describe("Turn's use of tools", func() {
	It("has no defaults in the object: absent fields stay absent", func(ctx SpecContext) {
		Expect(accepted(ctx, turnBase, `{}`)).NotTo(Or(HaveKey("webMode"), HaveKey("topK"), HaveKey("output")))
	})
	It("keeps every keyword of the schema of an answer", func(ctx SpecContext) {
		spec := accepted(ctx, turnBase, `spec: {output: {schema: {type: object, "$defs": {a: {const: 1}}, `+
			`properties: {x: {"$ref": "#/$defs/a"}}, "x-own": [null]}}}`)
		Expect(asJSON(spec["output"])).To(MatchJSON(
			`{"schema": {"type": "object", "$defs": {"a": {"const": 1}}, "properties": {"x": {"$ref": "#/$defs/a"}}, "x-own": [null]}}`))
	})
	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, turnBase, patch) },
		Entry("the web", `spec: {webMode: "On"}`),
		Entry("no web", `spec: {webMode: "Off"}`),
		Entry("the fewest results", `spec: {topK: 1}`),
		Entry("the most results", `spec: {topK: 100}`),
		Entry("an empty schema", `spec: {output: {schema: {}}}`),
		Entry("limits of the Turn", `spec: {limits: {maxDepth: 0, approvalTimeoutSeconds: 1}}`),
	)
	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, turnBase, patch, field, message) },
		Entry("an unknown webMode", `spec: {webMode: Auto}`, "spec.webMode", `supported values: "Off", "On"`),
		Entry("On without quotes, which YAML reads as a boolean", `spec: {webMode: On}`, "spec.webMode", "must be of type string"),
		Entry("no results", `spec: {topK: 0}`, "spec.topK", "greater than or equal to 1"),
		Entry("too many results", `spec: {topK: 101}`, "spec.topK", "less than or equal to 100"),
		Entry("an answer without a schema", `spec: {output: {}}`, "spec.output.schema", "Required value"),
		Entry("a schema that is a text", `spec: {output: {schema: "{}"}}`, "spec.output.schema", "must be of type object"),
		Entry("a schema that is a boolean", `spec: {output: {schema: true}}`, "spec.output.schema", "must be of type object"),
		Entry("an unknown field next to the schema", `spec: {output: {schema: {}, strict: true}}`, "spec.output.strict", "unknown field"),
	)
})
