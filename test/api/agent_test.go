package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const agentBase = `
apiVersion: capstan.dev/v1alpha1
kind: Agent
metadata: {name: support, namespace: default}
spec:
  promptProfileRef: {name: support}
  models: [{providerRef: {name: demo}, model: demo-small}]
`

var _ = Describe("Agent", func() {
	It("has defaults", func(ctx SpecContext) {
		spec := accepted(ctx, agentBase, `{}`)
		Expect(spec).To(HaveKeyWithValue("timeZone", "UTC"))
		Expect(spec).To(HaveKeyWithValue("decisionKey", "support.chat.turn"))
		Expect(spec).To(HaveKeyWithValue("thinking", "Off"))
		Expect(spec).To(HaveKeyWithValue("contributionTrust", "Untrusted"))
		Expect(spec).NotTo(Or(HaveKey("maxParallelTurns"), HaveKey("memory"), HaveKey("skills"), HaveKey("evaluation")))
	})
	It("has defaults in optional parts", func(ctx SpecContext) {
		spec := accepted(ctx, agentBase, `spec: {memory: {}, evaluation: {}, contributions: [{name: a, text: t}]}`)
		Expect(asJSON(spec["evaluation"])).To(MatchJSON(`{"samplePercent": 100, "maxPerHour": 60}`))
		Expect(asJSON(spec["memory"])).To(MatchJSON(`{"maxItems": 10}`))
		Expect(asJSON(spec["contributions"])).To(MatchJSON(`[{"name": "a", "text": "t", "trust": "Untrusted", "maxChars": 20000}]`))
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, agentBase, patch) },
		Entry("a time zone with an offset", `spec: {timeZone: Etc/GMT+1}`),
		Entry("a provider of another namespace", `spec: {models: [{providerRef: {namespace: `+strings.Repeat("n", 63)+`, name: `+
			strings.Repeat("a", 189)+`}, model: m}]}`),
		Entry("the longest chain", `spec: {models: [`+strings.Repeat(`{providerRef: {name: a}, model: m},`, 8)+`]}`),
		Entry("temperatures at their bounds", `spec: {models: [
  {providerRef: {name: a}, model: m, parameters: {temperature: "0"}},
  {providerRef: {name: a}, model: m, parameters: {temperature: "2.0"}},
  {providerRef: {name: a}, model: m, parameters: {temperature: "1.999999", maxOutputTokens: 1000000}},
  {providerRef: {name: a}, model: m, parameters: {seed: 0, serviceTier: on_demand, stopSequences: [a, b, c, "\n"],
    extraFields: [{name: top_p, value: "0.5"}]}},
  {providerRef: {name: a}, model: m, parameters: {seed: 2147483647}}]}`),
		Entry("the longest reference", `spec: {promptProfileRef: {name: `+strings.Repeat("a", 253)+`}}`),
		Entry("skills", `spec: {skills: {loaded: [triage, a_B-1], available: [refunds]}}`),
		Entry("as many skills as it may have", `spec: {skills: {loaded: [`+numbered(32, "l%d")+`], available: [`+numbered(32, "a%d")+`]}}`),
		Entry("the highest thinking", `spec: {thinking: High}`),
		Entry("thinking set to Off", `spec: {thinking: "Off"}`),
		Entry("no memories", `spec: {memory: {maxItems: 0}}`),
		Entry("redaction rules", `spec: {redaction: {patterns: [{name: a-1, pattern: '[a-z]+@b', replacement: '[x]: ~'}], jsonPaths: [`+
			numbered(32, "$.a%d")+`]}}`),
		Entry("trusted contributions", `spec: {contributionTrust: Trusted, contributions: [
  {name: rules, text: Open on weekdays., trust: Trusted}, {name: policy, configMapKeyRef: {name: policies, key: refunds.md}}]}`),
		Entry("as many contributions as it may have", `spec: {contributions: [`+numbered(16, "{name: c%d, text: t}")+`]}`),
		Entry("learning at its bounds", `spec: {memory: {maxItems: 0, learning: {scopes: [Session, User], maxPerTurn: 10,
			minConfidencePercent: 0, maxMemories: 500, expiryDays: 365, maxPerHour: 100000, maxTokensPerDay: 1000000000000,
			models: [{providerRef: {name: a, namespace: b}, model: m}]}}}`),
		Entry("an evaluation at its bounds", `spec: {evaluation: {samplePercent: 0, maxPerHour: 100000, maxTokensPerDay: 1000000000000,
  models: [`+strings.Repeat(`{providerRef: {name: a}, model: m},`, 8)+`]}}`),
		Entry("limits at their bounds", `spec: {limits: {timeoutSeconds: 86400, startingDeadlineSeconds: `+
			`604800}, maxParallelTurns: 10000}`),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, agentBase, patch, field, message) },
		Entry("no redaction rules", `spec: {redaction: {}}`, "spec.redaction", "at least 1 properties"),
		Entry("two redaction patterns with the same name", `spec: {redaction: {patterns: [{name: a, pattern: b}, {name: a, pattern: c}]}}`,
			"spec.redaction.patterns[1]", "Duplicate value"),
		Entry("a redaction pattern with an invalid name", `spec: {redaction: {patterns: [{name: a b, pattern: c}]}}`,
			"spec.redaction.patterns[0].name", "name must consist of lower-case letters"),
		Entry("too long a redaction pattern", `spec: {redaction: {patterns: [{name: a, pattern: `+strings.Repeat("a", 257)+`}]}}`,
			"spec.redaction.patterns[0].pattern", "Too long"),
		Entry("a replacement that breaks JSON", `spec: {redaction: {patterns: [{name: a, pattern: b, replacement: 'x"y'}]}}`,
			"spec.redaction.patterns[0].replacement", "replacement must consist of printable ASCII"),
		Entry("a replacement with a backslash", `spec: {redaction: {patterns: [{name: a, pattern: b, replacement: 'x\y'}]}}`,
			"spec.redaction.patterns[0].replacement", "replacement must consist of printable ASCII"),
		Entry("a JSON path without a root", `spec: {redaction: {jsonPaths: [a.b]}}`,
			"spec.redaction.jsonPaths[0]", "jsonPaths must begin with $"),
		Entry("no spec", `spec: null`, "spec", "Required value"),
		Entry("no profile", `spec: {promptProfileRef: null}`, "spec.promptProfileRef", "Required value"),
		Entry("no models", `spec: {models: null}`, "spec.models", "Required value"),
		Entry("an empty chain", `spec: {models: []}`, "spec.models", "at least 1 items"),
		Entry("too long a chain", `spec: {models: [`+strings.Repeat(`{providerRef: {name: a}, model: m},`, 9)+`]}`,
			"spec.models", "must have at most 8 items"),
		Entry("an unknown field", `spec: {modles: []}`, "spec.modles", "unknown field"),
		Entry("a PromptProfile with an invalid name", `spec: {promptProfileRef: {name: Support_1}}`,
			"spec.promptProfileRef.name", "name must be a lower-case DNS name"),
		Entry("a provider in a namespace with an invalid name", `spec: {models: [{providerRef: {name: a, namespace: a.b}, model: m}]}`,
			"spec.models[0].providerRef.namespace", "namespace must be a lower-case DNS label"),
		Entry("a provider with too long a key", `spec: {models: [{providerRef: {namespace: `+strings.Repeat("n", 63)+`, name: `+
			strings.Repeat("a", 190)+`}, model: m}]}`, "spec.models[0].providerRef", "must have at most 252 characters together"),
		Entry("a provider with an invalid name", `spec: {models: [{providerRef: {name: a/b}, model: m}]}`,
			"spec.models[0].providerRef.name", "name must be a lower-case DNS name"),
		Entry("a model without a name", `spec: {models: [{providerRef: {name: a}, model: ""}]}`,
			"spec.models[0].model", "at least 1 chars long"),
		Entry("a temperature above 2", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {temperature: "2.1"}}]}`,
			"spec.models[0].parameters.temperature", "must be a decimal from 0 to 2"),
		Entry("a temperature that is a number", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {temperature: 0.2}}]}`,
			"spec.models[0].parameters.temperature", "must be of type string"),
		Entry("empty parameters", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {}}]}`,
			"spec.models[0].parameters", "at least 1 properties"),
		Entry("a negative seed", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {seed: -1}}]}`,
			"spec.models[0].parameters.seed", "greater than or equal to 0"),
		Entry("a service tier with a space", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {serviceTier: "on demand"}}]}`,
			"spec.models[0].parameters.serviceTier", "must consist of lower-case letters"),
		Entry("five stop sequences", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {stopSequences: [a, b, c, d, e]}}]}`,
			"spec.models[0].parameters.stopSequences", "at most 4 items"),
		Entry("an empty stop sequence", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {stopSequences: [""]}}]}`,
			"spec.models[0].parameters.stopSequences[0]", "at least 1 chars"),
		Entry("an extra field that Capstan sends", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {
  extraFields: [{name: Messages, value: "[]"}]}}]}`,
			"spec.models[0].parameters.extraFields[0].name", "must not be a field that Capstan sends"),
		Entry("0 output tokens", `spec: {models: [{providerRef: {name: a}, model: m, parameters: {maxOutputTokens: 0}}]}`,
			"spec.models[0].parameters.maxOutputTokens", "greater than or equal to 1"),
		Entry("a time zone that is a path", `spec: {timeZone: ../../etc/passwd}`, "spec.timeZone", "must be an IANA name"),
		Entry("an empty time zone", `spec: {timeZone: ""}`, "spec.timeZone", "at least 1 chars long"),
		Entry("a decision key with a space", `spec: {decisionKey: "a b"}`, "spec.decisionKey", "must consist of letters"),
		Entry("a sample above 100 percent", `spec: {evaluation: {samplePercent: 101}}`, "spec.evaluation.samplePercent",
			"less than or equal to 100"),
		Entry("0 evaluations per hour", `spec: {evaluation: {maxPerHour: 0}}`, "spec.evaluation.maxPerHour", "greater than or equal to 1"),
		Entry("too few tokens for evaluations", `spec: {evaluation: {maxTokensPerDay: 999}}`, "spec.evaluation.maxTokensPerDay",
			"greater than or equal to 1000"),
		Entry("learning without scopes", `spec: {memory: {learning: {}}}`, "spec.memory.learning.scopes", "Required value"),
		Entry("learning with an empty list of scopes", `spec: {memory: {learning: {scopes: []}}}`, "spec.memory.learning.scopes",
			"at least 1 items"),
		Entry("learning for all users", `spec: {memory: {learning: {scopes: [Agent]}}}`,
			"spec.memory.learning.scopes[0]", "Unsupported value"),
		Entry("learning a scope twice", `spec: {memory: {learning: {scopes: [User, User]}}}`,
			"spec.memory.learning.scopes[1]", "Duplicate value"),
		Entry("too many learned memories", `spec: {memory: {learning: {scopes: [User], maxMemories: 501}}}`,
			"spec.memory.learning.maxMemories", "less than or equal to 500"),
		Entry("memories that expire after more than a year", `spec: {memory: {learning: {scopes: [User], expiryDays: 366}}}`,
			"spec.memory.learning.expiryDays",
			"less than or equal to 365"),
		Entry("an empty list of judge models", `spec: {evaluation: {models: []}}`, "spec.evaluation.models", "at least 1 items"),
		Entry("no parallel Turns", `spec: {maxParallelTurns: 0}`, "spec.maxParallelTurns", "greater than or equal to 1"),
		Entry("too long a description", `spec: {description: `+strings.Repeat("d", 1025)+`}`, "spec.description", "1024"),
		Entry("instructions twice", `spec: {instructions: a, instructionsFrom: {configMapKeyRef: {name: a, key: b}}}`,
			"spec.instructionsFrom", "instructionsFrom must be absent if instructions are given"),
		Entry("too long instructions", `spec: {instructions: `+strings.Repeat("i", 65537)+`}`, "spec.instructions", "65536"),
		Entry("empty skills", `spec: {skills: {}}`, "spec.skills", "at least 1 properties"),
		Entry("the same skill twice", `spec: {skills: {loaded: [a, a]}}`, "spec.skills.loaded[1]", "Duplicate value"),
		Entry("a skill without a key", `spec: {skills: {available: [""]}}`, "spec.skills.available[0]", "at least 1 chars long"),
		Entry("too long a key", `spec: {skills: {available: [`+strings.Repeat("k", 64)+`]}}`, "spec.skills.available[0]", "63"),
		Entry("too many skills", `spec: {skills: {loaded: [`+numbered(33, "s%d")+`]}}`, "spec.skills.loaded", "must have at most 32 items"),
		Entry("an unknown level of thinking", `spec: {thinking: Hard}`, "spec.thinking",
			`supported values: "Off", "Low", "Medium", "High"`),
		Entry("Off without quotes, which YAML reads as a boolean", `spec: {thinking: Off}`, "spec.thinking", "must be of type string"),
		Entry("a negative number of memories", `spec: {memory: {maxItems: -1}}`, "spec.memory.maxItems", "greater than or equal to 0"),
		Entry("too many memories", `spec: {memory: {maxItems: 11}}`, "spec.memory.maxItems", "less than or equal to 10"),
		Entry("an unknown trust", `spec: {contributionTrust: All}`, "spec.contributionTrust", `supported values: "Trusted", "Untrusted"`),
		Entry("a contribution without a text", `spec: {contributions: [{name: a}]}`,
			"spec.contributions[0]", "exactly one of text and configMapKeyRef must be given"),
		Entry("the same contribution twice", `spec: {contributions: [{name: a, text: t}, {name: a, text: u}]}`,
			"spec.contributions[1]", "Duplicate value"),
		Entry("too many contributions", `spec: {contributions: [`+numbered(17, "{name: c%d, text: t}")+`]}`,
			"spec.contributions", "must have at most 16 items"),
		Entry("empty limits", `spec: {limits: {}}`, "spec.limits", "at least 1 properties"),
		Entry("a time limit of 0", `spec: {limits: {timeoutSeconds: 0}}`, "spec.limits.timeoutSeconds", "greater than or equal to 1"),
		Entry("a time limit above a day", `spec: {limits: {timeoutSeconds: 86401}}`, "spec.limits.timeoutSeconds",
			"less than or equal to 86400"),
		Entry("too long a wait", `spec: {limits: {startingDeadlineSeconds: 604801}}`,
			"spec.limits.startingDeadlineSeconds", "less than or equal to 604800"),
		Entry("an invalid name", `metadata: {name: Support}`, "metadata.name", "lowercase RFC 1123"),
		Entry("a spec with two errors", `spec: {timeZone: "", models: []}`, "spec.models", "at least 1 items"),
	)
})
