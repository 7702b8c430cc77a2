package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// wholeShaping sets every field of the shaping of a Turn, and the fields guardrails, promptMode, depth and model.
const wholeShaping = `
spec:
  shaping:
    mode: review
    overlays: [{id: o1, source: product, text: Name the ticket first., priority: High}]
    expression: {tone: dry, directness: High, warmth: Low, humor: "Off", initiative: Medium, explanationDensity: High}
    responseStyle: {preferMarkdown: false, maxAnswerChars: 1200}
  guardrails: [{id: g1, source: workspace, rule: Never name a customer., priority: Low, kind: SensitivityConstraint}]
  promptMode: Task
  depth: 2
  model: demo:demo-large
`

var _ = Describe("the shaping of a Turn", func() {
	It("is stored unchanged, together with a context", func(ctx SpecContext) {
		all := merged(turnBase, wholeContext)
		spec := accepted(ctx, asJSON(all.Object), wholeShaping)
		want := merged(turnBase, wholeShaping).Object["spec"].(map[string]any)
		for _, name := range []string{"shaping", "guardrails", "promptMode", "depth", "model"} {
			Expect(spec).To(HaveKeyWithValue(name, want[name]))
		}
		Expect(spec).To(HaveKey("context"))
	})

	It("has defaults", func(ctx SpecContext) {
		spec := accepted(ctx, turnBase, `spec: {shaping: {overlays: [{id: o, text: t}]}, guardrails: [{id: g, rule: r}]}`)
		Expect(asJSON(spec["shaping"])).To(MatchJSON(`{"overlays": [{"id": "o", "text": "t", "priority": "Medium"}]}`))
		Expect(asJSON(spec["guardrails"])).To(MatchJSON(`[{"id": "g", "rule": "r", "priority": "Medium", "kind": "Other"}]`))
		Expect(spec).NotTo(Or(HaveKey("promptMode"), HaveKey("depth"), HaveKey("model")), "these come from the profile and the agent")
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, turnBase, patch) },
		Entry("the maximum number of overlays and guardrails", `spec: {shaping: {overlays: [`+numbered(32, "{id: o%d, text: t}")+`]},
  guardrails: [`+numbered(32, "{id: g%d, rule: r}")+`]}`),
		Entry("the longest texts", `spec: {shaping: {mode: `+strings.Repeat("m", 128)+`, expression: {tone: `+strings.Repeat("t", 128)+`},
  overlays: [{id: `+strings.Repeat("i", 64)+`, source: `+strings.Repeat("s", 256)+`, text: `+strings.Repeat("t", 8192)+`}]},
  guardrails: [{id: g, rule: `+strings.Repeat("r", 8192)+`}], model: `+strings.Repeat("m", 512)+`}`),
		Entry("a blank overlay, which the prompt leaves out", `spec: {shaping: {overlays: [{id: o, text: " "}]}}`),
		Entry("the same id for an overlay and a guardrail",
			`spec: {shaping: {overlays: [{id: a, text: t}]}, guardrails: [{id: a, rule: r}]}`),
		Entry("a depth of 0", `spec: {depth: 0}`),
		Entry("the greatest depth", `spec: {depth: 8}`),
		Entry("a model whose name has colons", `spec: {model: "demo:llama:8b"}`),
		Entry("the prompt mode None", `spec: {promptMode: None}`),
		Entry("an answer of one character", `spec: {shaping: {responseStyle: {maxAnswerChars: 1}}}`),
		Entry("the longest answer", `spec: {shaping: {responseStyle: {maxAnswerChars: 1000000}}}`),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) {
			rejected(ctx, turnBase, `spec: {`+patch+`}`, "spec."+field, message)
		},
		Entry("an empty shaping", `shaping: {}`, "shaping", "at least 1 properties"),
		Entry("an empty mode", `shaping: {mode: ""}`, "shaping.mode", "at least 1 chars long"),
		Entry("too long an id", `shaping: {overlays: [{id: `+strings.Repeat("i", 65)+`, text: t}]}`,
			"shaping.overlays[0].id", "may not be more than 64"),
		Entry("too long a mode", `shaping: {mode: `+strings.Repeat("m", 129)+`}`, "shaping.mode", "may not be more than 128"),
		Entry("an empty list of overlays", `shaping: {overlays: []}`, "shaping.overlays", "at least 1 items"),
		Entry("too many overlays", `shaping: {overlays: [`+numbered(33, "{id: o%d, text: t}")+`]}`, "shaping.overlays",
			"must have at most 32 items"),
		Entry("the same overlay twice", `shaping: {overlays: [{id: a, text: t}, {id: a, text: u}]}`,
			"shaping.overlays[1]", "Duplicate value"),
		Entry("an overlay without an id", `shaping: {overlays: [{text: t}]}`, "shaping.overlays[0].id", "Required value"),
		Entry("an overlay without a text", `shaping: {overlays: [{id: a}]}`, "shaping.overlays[0].text", "Required value"),
		Entry("an overlay with an empty text", `shaping: {overlays: [{id: a, text: ""}]}`, "shaping.overlays[0].text",
			"at least 1 chars long"),
		Entry("NUL in an overlay", `shaping: {overlays: [{id: a, text: "\0"}]}`, "shaping.overlays[0].text",
			"text must not contain the character U+0000"),
		Entry("an overlay of an unknown priority", `shaping: {overlays: [{id: a, text: t, priority: Urgent}]}`,
			"shaping.overlays[0].priority", `supported values: "Low", "Medium", "High"`),
		Entry("an overlay with a kind, which only guardrails have", `shaping: {overlays: [{id: a, text: t, kind: Other}]}`,
			"shaping.overlays[0].kind", "unknown field"),
		Entry("an empty expression", `shaping: {expression: {}}`, "shaping.expression", "at least 1 properties"),
		Entry("an unknown directness", `shaping: {expression: {directness: Normal}}`,
			"shaping.expression.directness", `supported values: "Low", "Medium", "High"`),
		Entry("an unknown humor", `shaping: {expression: {humor: High}}`, "shaping.expression.humor",
			`supported values: "Off", "Light", "Normal"`),
		Entry("Off without quotes, which YAML reads as a boolean", `shaping: {expression: {humor: Off}}`, "shaping.expression.humor",
			"must be of type string"),
		Entry("an empty tone", `shaping: {expression: {tone: ""}}`, "shaping.expression.tone", "at least 1 chars long"),
		Entry("an empty style", `shaping: {responseStyle: {}}`, "shaping.responseStyle", "at least 1 properties"),
		Entry("an answer of 0 characters", `shaping: {responseStyle: {maxAnswerChars: 0}}`,
			"shaping.responseStyle.maxAnswerChars", "greater than or equal to 1"),
		Entry("too great a maxAnswerChars", `shaping: {responseStyle: {maxAnswerChars: 1000001}}`,
			"shaping.responseStyle.maxAnswerChars", "less than or equal to 1000000"),
		Entry("an empty list of guardrails", `guardrails: []`, "guardrails", "at least 1 items"),
		Entry("too many guardrails", `guardrails: [`+numbered(33, "{id: g%d, rule: r}")+`]`, "guardrails", "must have at most 32 items"),
		Entry("the same guardrail twice", `guardrails: [{id: a, rule: r}, {id: a, rule: s}]`, "guardrails[1]", "Duplicate value"),
		Entry("a guardrail without a rule", `guardrails: [{id: a}]`, "guardrails[0].rule", "Required value"),
		Entry("NUL in a guardrail", `guardrails: [{id: a, rule: "\0"}]`, "guardrails[0].rule",
			"rule must not contain the character U+0000"),
		Entry("a guardrail of an unknown kind", `guardrails: [{id: a, rule: r, kind: Legal}]`,
			"guardrails[0].kind", `supported values: "ToneConstraint", "SensitivityConstraint", "TruthfulnessConstraint"`),
		Entry("a guardrail of an unknown priority", `guardrails: [{id: a, rule: r, priority: Must}]`,
			"guardrails[0].priority", `supported values: "Low", "Medium", "High"`),
		Entry("an unknown prompt mode", `promptMode: Chat`, "promptMode", `supported values: "Full", "Minimal", "Task", "None"`),
		Entry("a negative depth", `depth: -1`, "depth", "greater than or equal to 0"),
		Entry("too great a depth", `depth: 9`, "depth", "less than or equal to 8"),
		Entry("an empty model", `model: ""`, "model", "at least 1 chars long"),
		Entry("too long a model", `model: `+strings.Repeat("m", 513), "model", "may not be more than 512"),
	)
})
