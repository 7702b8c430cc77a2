package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const profileBase = `
apiVersion: capstan.dev/v1alpha1
kind: PromptProfile
metadata: {name: support, namespace: default}
spec:
  id: agent.profile.default
  version: 1.4.0
  instructions: Answer in at most three sentences.
`

const needsText = "at least one of identity.systemPrompt, identity.developerPrompt and instructions must be given and not blank"

var _ = Describe("PromptProfile", func() {
	It("has defaults", func(ctx SpecContext) {
		spec := accepted(ctx, profileBase, `spec: {variables: [{name: userName}]}`)
		Expect(asJSON(spec["variables"])).To(ContainSubstring(`"trust":"Untrusted"`))
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, profileBase, patch) },
		Entry("only a system prompt", `spec: {instructions: null, identity: {systemPrompt: You are Ada.}}`),
		Entry("only a developer prompt", `spec: {instructions: null, identity: {developerPrompt: Be brief.}}`),
		Entry("texts for models",
			`spec: {forModels: [{models: ["qwen*"], overrides: {behavior: ""}, contributions: [{name: a, text: t}]}]}`),
		Entry("instructions from a ConfigMap", `spec: {instructions: null, instructionsFrom: {configMapKeyRef: {name: a, key: b}}}`),
		Entry("a system prompt from a ConfigMap",
			`spec: {instructions: null, identity: {systemPromptFrom: {configMapKeyRef: {name: a, key: b}}}}`),
		Entry("a blank system prompt with instructions", `spec: {identity: {systemPrompt: " "}}`),
		Entry("a pre-release", `spec: {version: 1.0.0-rc.1+build.5}`),
		Entry("a pre-release of digits and letters", `spec: {version: 1.0.0-0a.x-y}`),
		Entry("an id of one letter", `spec: {id: a}`),
		Entry("an empty default", `spec: {variables: [{name: a, default: ""}]}`),
		Entry("a required variable", `spec: {variables: [{name: a, required: true, trust: Trusted}]}`),
		Entry("a default for a variable with required: false", `spec: {variables: [{name: a, required: false, default: x}]}`),
		Entry("an empty behavior", `spec: {overrides: {behavior: ""}}`),
		Entry("an output policy with an expression", `spec: {outputPolicy: [{name: short, expression: size(output.text) < 9}]}`),
		Entry("an output policy with retries",
			`spec: {outputPolicy: [{name: polite, prompt: Be polite., message: Polite!, onViolation: Retry, maxRetries: 5}]}`),
		Entry("judges of all types", `spec: {judges: [{name: a, type: Faithfulness, threshold: "0"},`+
			` {name: b, type: Relevance, threshold: "1.00"},`+
			` {name: c, type: Custom, prompt: Be polite., threshold: "0.75", modelRef: {providerRef: {name: p}, model: m}}]}`),
		Entry("text of all scripts", `spec: {instructions: "Антворте 日本語 \U0001F680 \u202E"}`),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, profileBase, patch, field, message) },
		Entry("no id", `spec: {id: null}`, "spec.id", "Required value"),
		Entry("an id with a space", `spec: {id: "a b"}`, "spec.id", "must consist of letters"),
		Entry("an id that ends in a slash", `spec: {id: a/}`, "spec.id", "must consist of letters"),
		Entry("no version", `spec: {version: null}`, "spec.version", "Required value"),
		Entry("a version of two numbers", `spec: {version: "1.4"}`, "spec.version", "must be a semantic version"),
		Entry("a version that is a number", `spec: {version: 1.4}`, "spec.version", "must be of type string"),
		Entry("a version with a v", `spec: {version: v1.4.0}`, "spec.version", "must be a semantic version"),
		Entry("a version with a leading zero", `spec: {version: 1.04.0}`, "spec.version", "must be a semantic version"),
		Entry("a pre-release with an empty part", `spec: {version: 1.0.0-a..b}`, "spec.version", "must be a semantic version"),
		Entry("a numeric pre-release with a leading zero", `spec: {version: 1.0.0-01}`, "spec.version", "must be a semantic version"),
		Entry("no prompt", `spec: {instructions: null}`, "spec", needsText),
		Entry("texts for no model", `spec: {forModels: [{models: [], overrides: {behavior: a}}]}`, "spec.forModels[0].models",
			"should have at least 1 items"),
		Entry("no texts for a model", `spec: {forModels: [{models: [a]}]}`, "spec.forModels[0]",
			"at least one of overrides and contributions must be given"),
		Entry("texts for too many models", `spec: {forModels: [`+numbered(9, `{models: [m%d], overrides: {tools: a}}`)+`]}`,
			"spec.forModels", "must have at most 8 items"),
		Entry("instructions twice", `spec: {instructionsFrom: {configMapKeyRef: {name: a, key: b}}}`, "spec.instructionsFrom",
			"instructionsFrom must be absent if instructions are given"),
		Entry("a system prompt twice", `spec: {identity: {systemPrompt: a, systemPromptFrom: {configMapKeyRef: {name: a, key: b}}}}`,
			"spec.identity.systemPromptFrom", "systemPromptFrom must be absent if systemPrompt is given"),
		Entry("blank instructions", `spec: {instructions: " \t\n"}`, "spec", needsText),
		Entry("instructions of Unicode spaces", `spec: {instructions: "\u3000\u00a0\u2003\u200b"}`, "spec", needsText),
		Entry("an identity without a prompt", `spec: {instructions: null, identity: {assistantName: Ada}}`, "spec", needsText),
		Entry("a blank identity", `spec: {instructions: null, identity: {systemPrompt: " ", developerPrompt: "\n"}}`, "spec", needsText),
		Entry("an output policy with neither expression nor prompt", `spec: {outputPolicy: [{name: a}]}`, "spec.outputPolicy[0]",
			"exactly one of expression and prompt must be given"),
		Entry("an output policy with expression and prompt", `spec: {outputPolicy: [{name: a, expression: "true", prompt: x}]}`,
			"spec.outputPolicy[0]",
			"exactly one of expression and prompt must be given"),
		Entry("retries without onViolation: Retry", `spec: {outputPolicy: [{name: a, prompt: x, maxRetries: 2}]}`, "spec.outputPolicy[0]",
			"maxRetries must only be given if onViolation is Retry"),
		Entry("too many retries", `spec: {outputPolicy: [{name: a, prompt: x, onViolation: Retry, maxRetries: 6}]}`,
			"spec.outputPolicy[0].maxRetries", "less than or equal to 5"),
		Entry("an output policy with a name of two words", `spec: {outputPolicy: [{name: a b, prompt: x}]}`, "spec.outputPolicy[0].name",
			"must consist of letters"),
		Entry("two output policies of the same name", `spec: {outputPolicy: [{name: a, prompt: x}, {name: a, prompt: y}]}`,
			"spec.outputPolicy[1]", "Duplicate value"),
		Entry("an unknown action", `spec: {outputPolicy: [{name: a, prompt: x, onViolation: Ignore}]}`, "spec.outputPolicy[0].onViolation",
			"Unsupported value"),
		Entry("a Custom judge without a prompt", `spec: {judges: [{name: a, type: Custom}]}`, "spec.judges[0]",
			"prompt must be given if type is Custom, and only then"),
		Entry("a prompt for a judge of another type than Custom", `spec: {judges: [{name: a, type: Relevance, prompt: x}]}`,
			"spec.judges[0]",
			"prompt must be given if type is Custom, and only then"),
		Entry("an unknown judge", `spec: {judges: [{name: a, type: Beauty}]}`, "spec.judges[0].type", "Unsupported value"),
		Entry("two judges of the same name", `spec: {judges: [{name: a, type: Relevance}, {name: a, type: Faithfulness}]}`,
			"spec.judges[1]", "Duplicate value"),
		Entry("a threshold above 1", `spec: {judges: [{name: a, type: Relevance, threshold: "1.01"}]}`, "spec.judges[0].threshold",
			"must be a decimal from 0 to 1"),
		Entry("a threshold in percent", `spec: {judges: [{name: a, type: Relevance, threshold: "70%"}]}`, "spec.judges[0].threshold",
			"must be a decimal from 0 to 1"),
		Entry("too many judges", `spec: {judges: [`+numbered(5, "{name: j%d, type: Relevance}")+`]}`, "spec.judges",
			"must have at most 4 items"),
		Entry("a judge with a model without a provider", `spec: {judges: [{name: a, type: Relevance, modelRef: {model: m}}]}`,
			"spec.judges[0].modelRef.providerRef", "Required value"),
		Entry("an empty identity", `spec: {identity: {}}`, "spec.identity", "at least 1 properties"),
		Entry("empty overrides", `spec: {overrides: {}}`, "spec.overrides", "at least 1 properties"),
		Entry("an unknown override", `spec: {overrides: {identity: a}}`, "spec.overrides.identity", "unknown field"),
		Entry("the same tag twice", `spec: {tags: [a, a]}`, "spec.tags[1]", "Duplicate value"),
		Entry("an empty tag", `spec: {tags: [""]}`, "spec.tags[0]", "at least 1 chars long"),
		Entry("too many tags", `spec: {tags: [`+numbered(17, "t%d")+`]}`, "spec.tags", "must have at most 16 items"),
		Entry("a variable that is built in", `spec: {variables: [{name: Agent}]}`,
			"spec.variables[0].name", "name must not be Agent, Turn or Session"),
		Entry("a variable with an invalid name", `spec: {variables: [{name: user-name}]}`, "spec.variables[0].name",
			"must be a letter followed by"),
		Entry("the same variable twice", `spec: {variables: [{name: a}, {name: a}]}`, "spec.variables[1]", "Duplicate value"),
		Entry("a default of a required variable", `spec: {variables: [{name: a, required: true, default: x}]}`,
			"spec.variables[0]", "default must not be given for a required variable"),
		Entry("an unknown trust", `spec: {variables: [{name: a, trust: Full}]}`,
			"spec.variables[0].trust", `supported values: "Trusted", "Untrusted"`),
		Entry("too many variables", `spec: {variables: [`+numbered(33, "{name: v%d}")+`]}`, "spec.variables", "must have at most 32 items"),
		Entry("too long a prompt", `spec: {identity: {systemPrompt: `+strings.Repeat("p", 65537)+`}}`,
			"spec.identity.systemPrompt", "65536"),
	)
})
