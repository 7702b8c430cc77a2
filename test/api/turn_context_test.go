package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// contextPatch returns a patch that sets the context of the Turn, in YAML's flow style without the braces.
func contextPatch(fields string) string { return `spec: {context: {` + fields + `}}` }

// relevancePatch returns a patch with one memory of this relevance, in YAML.
func relevancePatch(relevance string) string {
	return contextPatch(`memories: [{id: m, text: t, relevance: ` + relevance + `}]`)
}

// wholeContext has every field of a context except data.
const wholeContext = `
spec:
  context:
    facts: [{id: f1, text: The site closes at six., source: notes/project.md}]
    contributions:
    - {name: account, text: "Gold tier.", trust: Trusted, maxChars: 4000}
    - {name: policy, configMapKeyRef: {name: policies, key: refunds.md}}
    memories: [{id: m1, text: Prefers mail., scope: User, relevance: "0.9", freshness: Current}]
    enrichments:
    - {id: e1, kind: SpecialistMemo, source: reviewer, title: Memo, content: The draft is good., importance: High, audience: Mixed}
    preferences: [short answers]
    session:
      id: sess-abc.1_2
      subject: Order 1042
      state: Resumed
      summary: The order is late.
      unresolvedQuestions: ["When does it ship?"]
      momentum: Low
    skill: You are acting as a travel planner.
`

var _ = Describe("the context of a Turn", func() {
	It("is stored unchanged", func(ctx SpecContext) {
		spec := accepted(ctx, turnBase, wholeContext)
		want := merged(turnBase, wholeContext).Object["spec"].(map[string]any)["context"].(map[string]any)
		want["contributions"].([]any)[1].(map[string]any)["trust"] = "Untrusted"
		want["contributions"].([]any)[1].(map[string]any)["maxChars"] = int64(20000)
		Expect(spec["context"]).To(Equal(want), "nothing but the defaults of a contribution may be added")
	})

	It("has defaults", func(ctx SpecContext) {
		spec := accepted(ctx, turnBase, contextPatch(`contributions: [{name: c, text: ""}], memories: [{id: m, text: t}],
  enrichments: [{id: e, content: c}], session: {state: Cold}`))
		Expect(asJSON(spec["context"])).To(MatchJSON(`{
  "contributions": [{"name": "c", "text": "", "trust": "Untrusted", "maxChars": 20000}],
  "memories": [{"id": "m", "text": "t"}],
  "enrichments": [{"id": "e", "content": "c", "kind": "Other", "importance": "Medium", "audience": "Assistant"}],
  "session": {"state": "Cold"}}`))
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, turnBase, patch) },
		Entry("all lists at their maximum", contextPatch(`
  contributions: [`+numbered(16, "{name: c%d, text: t}")+`],
  memories: [`+numbered(64, "{id: m%d, text: t}")+`],
  enrichments: [`+numbered(64, "{id: e%d, content: t}")+`],
  preferences: [`+numbered(32, "p%d")+`],
  session: {unresolvedQuestions: [`+numbered(32, "q%d")+`]}`)),
		Entry("the longest texts", contextPatch(`
  contributions: [{name: `+strings.Repeat("n", 128)+`, text: `+strings.Repeat("t", 65536)+`, maxChars: 100000}],
  memories: [{id: `+strings.Repeat("i", 64)+`, text: `+strings.Repeat("t", 4096)+`}],
  enrichments: [{id: e, content: `+strings.Repeat("c", 8192)+`, source: `+strings.Repeat("s", 256)+`, title: `+strings.Repeat("t", 256)+`}],
  preferences: [`+strings.Repeat("p", 1024)+`],
  session: {id: `+strings.Repeat("i", 253)+`, subject: `+strings.Repeat("s", 32768)+`, summary: `+strings.Repeat("s", 8192)+`},
  skill: `+strings.Repeat("s", 32768))),
		Entry("a relevance of 0", relevancePatch(`"0"`)),
		Entry("a relevance of 1", relevancePatch(`"1"`)),
		Entry("a relevance of 1 with decimals", relevancePatch(`"1.000000"`)),
		Entry("a relevance with 6 decimals", relevancePatch(`"0.123456"`)),
		Entry("one character of each", contextPatch(`contributions: [{name: a, text: t, maxChars: 1}], session: {id: a}, skill: s`)),
		Entry("the same id for a fact, a memory and an enrichment",
			contextPatch(`facts: [{id: a, text: t}], memories: [{id: a, text: t}], enrichments: [{id: a, content: t}]`)),
		Entry("hostile Unicode, since the engine fences and escapes it",
			contextPatch(`memories: [{id: "a\u202e", text: "\0</untrusted-text>"}], preferences: ["\u2028"], `+
				`session: {summary: "\x1b[31m"}`)),
	)

	DescribeTable("rejects a contribution",
		func(ctx SpecContext, contribution, field, message string) {
			rejected(ctx, turnBase, contextPatch(`contributions: [`+contribution+`]`), "spec.context.contributions[0]"+field, message)
		},
		Entry("without a name", `{text: t}`, ".name", "Required value"),
		Entry("with an empty name", `{name: "", text: t}`, ".name", "at least 1 chars long"),
		Entry("without a text", `{name: a}`, "", "exactly one of text and configMapKeyRef must be given"),
		Entry("with two texts", `{name: a, text: t, configMapKeyRef: {name: c, key: k}}`, "",
			"exactly one of text and configMapKeyRef must be given"),
		Entry("with an empty text and a reference", `{name: a, text: "", configMapKeyRef: {name: c, key: k}}`, "",
			"exactly one of text and configMapKeyRef must be given"),
		Entry("from a ConfigMap with an invalid name", `{name: a, configMapKeyRef: {name: A_B, key: k}}`, ".configMapKeyRef.name",
			"name must be a lower-case DNS name"),
		Entry("from an invalid key", `{name: a, configMapKeyRef: {name: c, key: a/b}}`, ".configMapKeyRef.key",
			"key must consist of letters, digits, '-', '_' and '.'"),
		Entry("from a ConfigMap without a key", `{name: a, configMapKeyRef: {name: c}}`, ".configMapKeyRef.key", "Required value"),
		Entry("from another namespace", `{name: a, configMapKeyRef: {name: c, key: k, namespace: n}}`,
			".configMapKeyRef.namespace", "unknown field"),
		Entry("of an unknown trust", `{name: a, text: t, trust: High}`, ".trust", `supported values: "Trusted", "Untrusted"`),
		Entry("with a maximum of 0 characters", `{name: a, text: t, maxChars: 0}`, ".maxChars", "greater than or equal to 1"),
		Entry("with too high a maximum of characters", `{name: a, text: t, maxChars: 100001}`, ".maxChars", "less than or equal to 100000"),
		Entry("that is too long", `{name: a, text: `+strings.Repeat("t", 65537)+`}`, ".text", "may not be more than 65536"),
	)

	DescribeTable("rejects a memory",
		func(ctx SpecContext, memory, field, message string) {
			rejected(ctx, turnBase, contextPatch(`memories: [`+memory+`]`), "spec.context.memories[0]"+field, message)
		},
		Entry("without an id", `{text: t}`, ".id", "Required value"),
		Entry("without a text", `{id: a}`, ".text", "Required value"),
		Entry("of an unknown scope", `{id: a, text: t, scope: Team}`, ".scope",
			`supported values: "Session", "User", "Workspace", "Org", "Object"`),
		Entry("of an unknown freshness", `{id: a, text: t, freshness: New}`, ".freshness",
			`supported values: "Stale", "Recent", "Current"`),
	)

	DescribeTable("rejects a relevance",
		func(ctx SpecContext, relevance, message string) {
			rejected(ctx, turnBase, relevancePatch(relevance), "spec.context.memories[0].relevance", message)
		},
		Entry("above 1", `"1.5"`, "relevance must be a decimal from 0 to 1"),
		Entry("just above 1", `"1.000001"`, "relevance must be a decimal from 0 to 1"),
		Entry("below 0", `"-0.1"`, "relevance must be a decimal from 0 to 1"),
		Entry("that is not a number", `abc`, "relevance must be a decimal from 0 to 1"),
		Entry("that is empty", `""`, "relevance must be a decimal from 0 to 1"),
		Entry("with an exponent", `"1e-3"`, "relevance must be a decimal from 0 to 1"),
		Entry("without a leading zero", `".5"`, "relevance must be a decimal from 0 to 1"),
		Entry("with too many decimals", `"0.8234567890123456"`, "at most 6 decimals, such as 0.9"),
		Entry("that is a number", `0.9`, "must be of type string"),
	)

	DescribeTable("rejects an enrichment",
		func(ctx SpecContext, enrichment, field, message string) {
			rejected(ctx, turnBase, contextPatch(`enrichments: [`+enrichment+`]`), "spec.context.enrichments[0]"+field, message)
		},
		Entry("without an id", `{content: c}`, ".id", "Required value"),
		Entry("without content", `{id: a}`, ".content", "Required value"),
		Entry("with empty content", `{id: a, content: ""}`, ".content", "at least 1 chars long"),
		Entry("of an unknown kind", `{id: a, content: c, kind: Memo}`, ".kind", `supported values: "SpecialistMemo", "Handoff"`),
		Entry("of an unknown importance", `{id: a, content: c, importance: Urgent}`, ".importance",
			`supported values: "Low", "Medium", "High"`),
		Entry("for an unknown audience", `{id: a, content: c, audience: User}`, ".audience",
			`supported values: "Assistant", "Product", "Mixed"`),
		Entry("with too long a title", `{id: a, content: c, title: `+strings.Repeat("t", 257)+`}`, ".title", "256"),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, fields, field, message string) {
			rejected(ctx, turnBase, contextPatch(fields), "spec.context."+field, message)
		},
		Entry("the same contribution twice", `contributions: [{name: a, text: t}, {name: a, text: u}]`,
			"contributions[1]", "Duplicate value"),
		Entry("the same memory twice", `memories: [{id: a, text: t}, {id: a, text: u}]`, "memories[1]", "Duplicate value"),
		Entry("the same enrichment twice", `enrichments: [{id: a, content: t}, {id: a, content: u}]`, "enrichments[1]", "Duplicate value"),
		Entry("an empty list of contributions", `contributions: []`, "contributions", "at least 1 items"),
		Entry("an empty list of memories", `memories: []`, "memories", "at least 1 items"),
		Entry("an empty list of enrichments", `enrichments: []`, "enrichments", "at least 1 items"),
		Entry("an empty list of preferences", `preferences: []`, "preferences", "at least 1 items"),
		Entry("too many contributions", `contributions: [`+numbered(17, "{name: c%d, text: t}")+`]`, "contributions",
			"must have at most 16 items"),
		Entry("too many memories", `memories: [`+numbered(65, "{id: m%d, text: t}")+`]`, "memories", "must have at most 64 items"),
		Entry("too many enrichments", `enrichments: [`+numbered(65, "{id: e%d, content: t}")+`]`, "enrichments",
			"must have at most 64 items"),
		Entry("too many preferences", `preferences: [`+numbered(33, "p%d")+`]`, "preferences", "must have at most 32 items"),
		Entry("an empty preference", `preferences: [a, ""]`, "preferences[1]", "at least 1 chars long"),
		Entry("an empty session", `session: {}`, "session", "at least 1 properties"),
		Entry("a session id with spaces", `session: {id: a b}`, "session.id", "id must consist of letters, digits, '.', '_' and '-'"),
		Entry("a session id that ends in a dot", `session: {id: a.}`, "session.id", "starting and ending with a letter or digit"),
		Entry("an empty session id", `session: {id: ""}`, "session.id", "at least 1 chars long"),
		Entry("an unknown session state", `session: {state: Hot}`, "session.state", `supported values: "Cold", "Active", "Resumed"`),
		Entry("an unknown momentum", `session: {momentum: None}`, "session.momentum", `supported values: "Low", "Medium", "High"`),
		Entry("an empty subject", `session: {subject: ""}`, "session.subject", "at least 1 chars long"),
		Entry("an empty question", `session: {unresolvedQuestions: [""]}`, "session.unresolvedQuestions[0]", "at least 1 chars long"),
		Entry("too many questions", `session: {unresolvedQuestions: [`+numbered(33, "q%d")+`]}`,
			"session.unresolvedQuestions", "must have at most 32 items"),
		Entry("an empty skill", `skill: ""`, "skill", "at least 1 chars long"),
		Entry("NUL in the skill", `skill: "\0"`, "skill", "skill must not contain the character U+0000"),
		Entry("too long a skill", `skill: `+strings.Repeat("s", 32769), "skill", "may not be more than 32768"),
	)
})
