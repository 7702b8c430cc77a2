package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// wholeProfile sets most of the fields of a profile that affect the prompt.
const wholeProfile = `
spec:
  mode: Task
  identity:
    assistantName: Ada
    systemPrompt: You are Ada.
    developerPrompt: Be exact.
    traits: {voice: Concise, formality: Friendly, proactivity: High, riskPosture: Cautious}
  sections: [agent, instructions, turn_instructions, environment]
  overrides: {behavior: Be kind., tools: Use what is listed.}
  stablePrefix: House rules.
  dynamicSuffix: Answer now.
  overlays: [{id: o1, source: product, text: Name the ticket., priority: High}]
  guardrails: [{id: g1, source: legal, rule: Promise nothing., priority: Low, kind: TruthfulnessConstraint}]
  shaping:
    mode: support
    overlays: [{id: o2, source: product, text: Be brief., priority: Low}]
    expression: {tone: warm, humor: Normal}
    responseStyle: {preferMarkdown: true, maxAnswerChars: 500}
  skills:
  - {key: triage, name: Triage, description: For new tickets., content: Sort by urgency.}
  - {key: refunds, contentFrom: {configMapKeyRef: {name: skills, key: refunds.md}}}
  contributions:
  - {name: hours, text: Open on weekdays., trust: Trusted, maxChars: 100}
`

var _ = Describe("the prompt of a PromptProfile", func() {
	It("is stored unchanged", func(ctx SpecContext) {
		Expect(accepted(ctx, profileBase, wholeProfile)).To(Equal(merged(profileBase, wholeProfile).Object["spec"]))
	})

	It("has defaults", func(ctx SpecContext) {
		spec := accepted(ctx, profileBase, `spec: {overlays: [{id: o, text: t}], guardrails: [{id: g, rule: r}],
  shaping: {overlays: [{id: o, text: t}]}, contributions: [{name: c, text: t}], skills: [{key: k, content: ""}]}`)
		Expect(asJSON(spec)).To(MatchJSON(`{
  "id": "agent.profile.default", "version": "1.4.0", "instructions": "Answer in at most three sentences.",
  "overlays": [{"id": "o", "text": "t", "priority": "Medium"}],
  "guardrails": [{"id": "g", "rule": "r", "priority": "Medium", "kind": "Other"}],
  "shaping": {"overlays": [{"id": "o", "text": "t", "priority": "Medium"}]},
  "contributions": [{"name": "c", "text": "t", "trust": "Untrusted", "maxChars": 20000}],
  "skills": [{"key": "k", "content": ""}]}`))
	})

	DescribeTable("distinguishes an empty list of sections from an absent list",
		func(ctx SpecContext, patch string, want []string) {
			By("storing it")
			raw := createFrom(ctx, strings.Replace(profileBase, "name: support", "generateName: sections-", 1))
			Expect(change(ctx, raw, patch)).To(Succeed())

			By("reading and writing it as a Go value")
			profile := &v1alpha1.PromptProfile{}
			Expect(apiClient.Get(ctx, client.ObjectKeyFromObject(raw), profile)).To(Succeed())
			Expect(profile.Spec.Sections).To(Equal(want))
			profile.Spec.Version = "1.5.0"
			Expect(apiClient.Update(ctx, profile.DeepCopy())).To(Succeed())
			Expect(apiClient.Get(ctx, client.ObjectKeyFromObject(raw), profile)).To(Succeed())
			Expect(profile.Spec.Sections).To(Equal(want))

			By("loading it from a manifest")
			object := merged(profileBase, patch)
			set, err := load(ctx, manifestOf(object))
			Expect(err).NotTo(HaveOccurred())
			Expect(fromSet(set, object).(*v1alpha1.PromptProfile).Spec.Sections).To(Equal(want))
		},
		Entry("an empty list", `spec: {sections: []}`, []string{}),
		Entry("a list with a section", `spec: {sections: [agent]}`, []string{"agent"}),
		Entry("no list", `{}`, []string(nil)),
	)

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, profileBase, patch) },
		Entry("all lists at their maximum", `spec: {
  sections: [`+numbered(16, "s%d")+`],
  overlays: [`+numbered(32, "{id: o%d, text: t}")+`],
  guardrails: [`+numbered(32, "{id: g%d, rule: r}")+`],
  shaping: {overlays: [`+numbered(32, "{id: o%d, text: t}")+`]},
  skills: [`+numbered(32, `{key: k%d, content: c}`)+`],
  contributions: [`+numbered(16, "{name: c%d, text: t}")+`]}`),
		Entry("the longest texts", `spec: {stablePrefix: `+strings.Repeat("p", 32768)+`, dynamicSuffix: `+strings.Repeat("s", 32768)+`,
  overrides: {tools: `+strings.Repeat("t", 32768)+`},
  skills: [{key: `+strings.Repeat("k", 63)+`, description: `+strings.Repeat("d", 1024)+`, content: `+strings.Repeat("c", 65536)+`}]}`),
		Entry("empty lists, as rendered by a chart",
			`spec: {overlays: [], guardrails: [], skills: [], contributions: []}`),
		Entry("empty texts around the sections", `spec: {stablePrefix: "", dynamicSuffix: ""}`),
		Entry("an empty text of the tools", `spec: {overrides: {tools: ""}}`),
		Entry("an unknown section, which the status reports", `spec: {sections: [agent, wether]}`),
		Entry("a skill key of one letter", `spec: {skills: [{key: a, content: c}]}`),
		Entry("a skill key with all kinds of characters", `spec: {skills: [{key: Triage_2-b, content: c}]}`),
		Entry("one trait", `spec: {identity: {traits: {voice: Technical}}}`),
		Entry("the same id for overlays of the profile and of its shaping",
			`spec: {overlays: [{id: a, text: t}], shaping: {overlays: [{id: a, text: u}]}}`),
	)

	DescribeTable("rejects a skill",
		func(ctx SpecContext, skill, field, message string) {
			rejected(ctx, profileBase, `spec: {skills: [`+skill+`]}`, "spec.skills[0]"+field, message)
		},
		Entry("without a key", `{content: c}`, ".key", "Required value"),
		Entry("with an empty key", `{key: "", content: c}`, ".key", "at least 1 chars long"),
		Entry("with spaces in its key", `{key: new tickets, content: c}`, ".key", "key must consist of letters, digits, '_' and '-'"),
		Entry("with a key that ends in a hyphen", `{key: a-, content: c}`, ".key", "starting and ending with a letter or digit"),
		Entry("with too long a key", `{key: `+strings.Repeat("k", 64)+`, content: c}`, ".key", "may not be more than 63"),
		Entry("without content", `{key: a}`, "", "exactly one of content and contentFrom must be given"),
		Entry("with two contents", `{key: a, content: "", contentFrom: {configMapKeyRef: {name: c, key: k}}}`, "",
			"exactly one of content and contentFrom must be given"),
		Entry("with contentFrom without a source", `{key: a, contentFrom: {}}`, ".contentFrom.configMapKeyRef", "Required value"),
		Entry("with content from a ConfigMap with an invalid name", `{key: a, contentFrom: {configMapKeyRef: {name: a b, key: k}}}`,
			".contentFrom.configMapKeyRef.name", "name must be a lower-case DNS name"),
		Entry("with content from an invalid key", `{key: a, contentFrom: {configMapKeyRef: {name: c, key: a b}}}`,
			".contentFrom.configMapKeyRef.key", "key must consist of letters, digits, '-', '_' and '.'"),
		Entry("with content from a Secret", `{key: a, contentFrom: {secretKeyRef: {name: c, key: k}}}`,
			".contentFrom.secretKeyRef", "unknown field"),
		Entry("with too long content", `{key: a, content: `+strings.Repeat("c", 65537)+`}`, ".content", "may not be more than 65536"),
		Entry("with too long a description", `{key: a, content: c, description: `+strings.Repeat("d", 1025)+`}`, ".description", "1024"),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) {
			rejected(ctx, profileBase, `spec: {`+patch+`}`, strings.TrimSuffix("spec."+field, "."), message)
		},
		Entry("an unknown mode", `mode: Chat`, "mode", `supported values: "Full", "Minimal", "Task", "None"`),
		Entry("sections that are not a list", `sections: agent`, "sections", "must be of type array"),
		Entry("too many sections", `sections: [`+numbered(17, "s%d")+`]`, "sections", "must have at most 16 items"),
		Entry("too long a name of a section", `sections: [`+strings.Repeat("s", 64)+`]`, "sections[0]", "63"),
		Entry("too long a prefix", `stablePrefix: `+strings.Repeat("p", 32769), "stablePrefix", "may not be more than 32768"),
		Entry("too long a suffix", `dynamicSuffix: `+strings.Repeat("p", 32769), "dynamicSuffix", "may not be more than 32768"),
		Entry("too long a text of the tools", `overrides: {tools: `+strings.Repeat("t", 32769)+`}`, "overrides.tools",
			"may not be more than 32768"),
		Entry("no traits", `identity: {traits: {}}`, "identity.traits", "at least 1 properties"),
		Entry("an unknown voice", `identity: {traits: {voice: Loud}}`, "identity.traits.voice",
			`supported values: "Concise", "Balanced", "Verbose"`),
		Entry("an unknown formality", `identity: {traits: {formality: High}}`,
			"identity.traits.formality", `supported values: "Formal", "Professional", "Academic", "Casual", "Friendly"`),
		Entry("an unknown proactivity", `identity: {traits: {proactivity: Eager}}`,
			"identity.traits.proactivity", `supported values: "Low", "Medium", "High"`),
		Entry("an unknown risk posture", `identity: {traits: {riskPosture: Bold}}`,
			"identity.traits.riskPosture", `supported values: "Cautious", "Moderate", "Assertive"`),
		Entry("only traits, which are not a prompt", `instructions: null, identity: {traits: {voice: Concise}}`, "", needsText),
		Entry("the same overlay twice", `overlays: [{id: a, text: t}, {id: a, text: u}]`, "overlays[1]", "Duplicate value"),
		Entry("an overlay with an empty text", `overlays: [{id: a, text: ""}]`, "overlays[0].text", "at least 1 chars long"),
		Entry("too many overlays", `overlays: [`+numbered(33, "{id: o%d, text: t}")+`]`, "overlays", "must have at most 32 items"),
		Entry("the same guardrail twice", `guardrails: [{id: a, rule: t}, {id: a, rule: u}]`, "guardrails[1]", "Duplicate value"),
		Entry("too many guardrails", `guardrails: [`+numbered(33, "{id: g%d, rule: r}")+`]`, "guardrails", "must have at most 32 items"),
		Entry("a guardrail of an unknown kind", `guardrails: [{id: a, rule: r, kind: Legal}]`, "guardrails[0].kind",
			`"IdentityPreservation", "Other"`),
		Entry("an empty shaping", `shaping: {}`, "shaping", "at least 1 properties"),
		Entry("the same skill twice", `skills: [{key: a, content: c}, {key: a, content: d}]`, "skills[1]", "Duplicate value"),
		Entry("too many skills", `skills: [`+numbered(33, "{key: k%d, content: c}")+`]`, "skills", "must have at most 32 items"),
		Entry("a contribution with two texts", `contributions: [{name: a, text: t, configMapKeyRef: {name: c, key: k}}]`,
			"contributions[0]", "exactly one of text and configMapKeyRef must be given"),
		Entry("the same contribution twice", `contributions: [{name: a, text: t}, {name: a, text: u}]`,
			"contributions[1]", "Duplicate value"),
		Entry("too many contributions", `contributions: [`+numbered(17, "{name: c%d, text: t}")+`]`, "contributions",
			"must have at most 16 items"),
	)
})
