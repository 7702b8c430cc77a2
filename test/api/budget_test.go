package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const budgetBase = `
apiVersion: capstan.dev/v1alpha1
kind: Budget
metadata: {name: support, namespace: default}
spec: {period: Day, limits: {tokens: 1000}}
`

// labelSelectorPatch returns a patch that sets the selector of labels, in YAML's flow style without the braces.
func labelSelectorPatch(fields string) string {
	return `spec: {selector: {agents: {labelSelector: {` + fields + `}}}}`
}

// distinct returns n different items of a YAML list or map: item, with %d replaced by i, ii, iii and so on.
func distinct(n int, item string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = strings.ReplaceAll(item, "%d", strings.Repeat("i", i+1))
	}
	return strings.Join(items, ", ")
}

var _ = Describe("Budget", func() {
	const agentNames = "names must be NAME or NAMESPACE/NAME"

	It("has defaults", func(ctx SpecContext) {
		Expect(acceptedButNotLoaded(ctx, budgetBase, `{}`)).To(Equal(map[string]any{
			"period": "Day", "timeZone": "UTC", "currency": "USD", "onExceeded": "Reject", "warnPercent": int64(80),
			"limits": map[string]any{"tokens": int64(1000)},
		}))
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { acceptedButNotLoaded(ctx, budgetBase, patch) },
		Entry("all limits at 0, which stops all Turns", `spec: {limits: {tokens: 0, cost: "0", turns: 0}}`),
		Entry("the largest limits",
			`spec: {limits: {tokens: 1000000000000, turns: 1000000000, cost: "`+strings.Repeat("9", 12)+`.`+strings.Repeat("9", 10)+`"}}`),
		Entry("an Agent of another namespace", `spec: {selector: {agents: {names: [team-a/sup.port-2, support]}}}`),
		Entry("64 Agents of long names", `spec: {selector: {agents: {names: [`+distinct(64, strings.Repeat("n", 63)+"/"+
			strings.Repeat("a", 125)+"%d")+`]}}}`),
		Entry("64 Agents", `spec: {selector: {agents: {names: [`+distinct(64, "a%d")+`]}}}`),
		Entry("16 labels and 16 requirements", labelSelectorPatch(`matchLabels: {`+distinct(16, "l%d: v")+`}, matchExpressions: [`+
			distinct(16, "{key: k%d, operator: Exists}")+`]`)),
		Entry("a requirement of 64 values", labelSelectorPatch(`matchExpressions: [{key: k, operator: NotIn, values: [`+distinct(63,
			"%d")+`, ""]}]`)),
		Entry("64 requesters and an Agent", `spec: {selector: {requesters: [`+distinct(63, "u%d")+`, "system:serviceaccount:a:`+
			strings.Repeat("b", 488)+`"], agents: {names: [a]}}}`),
		Entry("another time zone, period and currency", `spec: {period: Month, timeZone: America/Argentina/Buenos_Aires, currency: EUR}`),
		Entry("a time zone with an offset", `spec: {timeZone: Etc/GMT+5}`),
		Entry("a Budget that queues Turns", `spec: {onExceeded: Queue}`),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, budgetBase, patch, field, message) },
		Entry("no period", `spec: {period: null}`, "spec.period", "Required"),
		Entry("an unknown period", `spec: {period: Week}`, "spec.period", `supported values: "Hour", "Day", "Month"`),
		Entry("no limits", `spec: {limits: null}`, "spec.limits", "Required"),
		Entry("empty limits", `spec: {limits: {tokens: null}}`, "spec.limits", "at least 1 properties"),
		Entry("negative tokens", `spec: {limits: {tokens: -1}}`, "spec.limits.tokens", "greater than or equal to 0"),
		Entry("too many tokens", `spec: {limits: {tokens: 1000000000001}}`, "spec.limits.tokens", "less than or equal to 1000000000000"),
		Entry("negative turns", `spec: {limits: {turns: -1}}`, "spec.limits.turns", "greater than or equal to 0"),
		Entry("a negative cost", `spec: {limits: {cost: "-1"}}`, "spec.limits.cost", "cost must be a decimal"),
		Entry("a cost with an exponent", `spec: {limits: {cost: "1e3"}}`, "spec.limits.cost", "cost must be a decimal"),
		Entry("a cost that is no number", `spec: {limits: {cost: NaN}}`, "spec.limits.cost", "cost must be a decimal"),
		Entry("a cost that is a number", `spec: {limits: {cost: 0.5}}`, "spec.limits.cost", "must be of type string"),
		Entry("a currency symbol", `spec: {currency: "$"}`, "spec.currency", "currency must be an ISO 4217 code, such as USD"),
		Entry("a time zone with spaces", `spec: {timeZone: "Europe Berlin"}`, "spec.timeZone", "timeZone must be an IANA name"),
		Entry("an empty selector", `spec: {selector: {}}`, "spec.selector", "at least 1 properties"),
		Entry("an empty selector of Agents", `spec: {selector: {agents: {}}}`, "spec.selector.agents", "at least 1 properties"),
		Entry("no names", `spec: {selector: {agents: {names: []}}}`, "spec.selector.agents.names", "at least 1 items"),
		Entry("65 names", `spec: {selector: {agents: {names: [`+distinct(65, "a%d")+`]}}}`, "spec.selector.agents.names",
			"at most 64 items"),
		Entry("a name in upper case", `spec: {selector: {agents: {names: [a, Support]}}}`, "spec.selector.agents.names[1]", agentNames),
		Entry("a name with a space", `spec: {selector: {agents: {names: ["support "]}}}`, "spec.selector.agents.names[0]", agentNames),
		Entry("a namespace without a name", `spec: {selector: {agents: {names: [team-a/]}}}`, "spec.selector.agents.names[0]",
			agentNames),
		Entry("a name after an empty namespace", `spec: {selector: {agents: {names: [/support]}}}`, "spec.selector.agents.names[0]",
			agentNames),
		Entry("a path of three names", `spec: {selector: {agents: {names: [a/b/c]}}}`, "spec.selector.agents.names[0]", agentNames),
		Entry("a pattern of names", `spec: {selector: {agents: {names: ["sup*"]}}}`, "spec.selector.agents.names[0]", agentNames),
		Entry("an empty selector of labels", labelSelectorPatch(``), "spec.selector.agents.labelSelector", "at least 1 properties"),
		Entry("17 labels", labelSelectorPatch(`matchLabels: {`+distinct(17, "l%d: v")+`}`),
			"spec.selector.agents.labelSelector.matchLabels",
			"must have at most 16 items"),
		Entry("too long a value", labelSelectorPatch(`matchLabels: {team: `+strings.Repeat("v", 64)+`}`),
			"spec.selector.agents.labelSelector.matchLabels.team", "63"),
		Entry("too long a name of a label", labelSelectorPatch(`matchLabels: {`+strings.Repeat("k", 318)+`: v}`),
			"spec.selector.agents.labelSelector.matchLabels", "the name of a label must have 1 to 317 characters"),
		Entry("an invalid name of a label", labelSelectorPatch(`matchLabels: {"not a name": v}`),
			"spec.selector.agents.labelSelector.matchLabels",
			"the name of a label must be valid"),
		Entry("an invalid value of a label", labelSelectorPatch(`matchLabels: {team: "not a value"}`),
			"spec.selector.agents.labelSelector.matchLabels[team]", "the value of a label must consist of"),
		Entry("a requirement for an invalid name of a label", labelSelectorPatch(`matchExpressions: [{key: "a/b/c", operator: Exists}]`),
			"spec.selector.agents.labelSelector.matchExpressions[0].key", "key must be the name of a label"),
		Entry("17 requirements", labelSelectorPatch(`matchExpressions: [`+distinct(17, "{key: k%d, operator: Exists}")+`]`),
			"spec.selector.agents.labelSelector.matchExpressions", "at most 16 items"),
		Entry("In without values", labelSelectorPatch(`matchExpressions: [{key: k, operator: In}]`),
			"spec.selector.agents.labelSelector.matchExpressions[0]", "values must be set for the operators In and NotIn"),
		Entry("Exists with values", labelSelectorPatch(`matchExpressions: [{key: k, operator: Exists, values: [v]}]`),
			"spec.selector.agents.labelSelector.matchExpressions[0]", "absent for Exists and DoesNotExist"),
		Entry("an unknown operator", labelSelectorPatch(`matchExpressions: [{key: k, operator: Gt, values: ["1"]}]`),
			"spec.selector.agents.labelSelector.matchExpressions[0].operator", "supported values"),
		Entry("no requesters", `spec: {selector: {requesters: []}}`, "spec.selector.requesters", "at least 1 items"),
		Entry("65 requesters", `spec: {selector: {requesters: [`+distinct(65, "u%d")+`]}}`, "spec.selector.requesters", "at most 64 items"),
		Entry("a requester twice", `spec: {selector: {requesters: [ada, ada]}}`, "spec.selector.requesters[1]", "Duplicate value"),
		Entry("a requester without a name", `spec: {selector: {requesters: [""]}}`, "spec.selector.requesters[0]", "at least 1 chars"),
		Entry("a requester with a long name", `spec: {selector: {requesters: [`+strings.Repeat("u", 513)+`]}}`,
			"spec.selector.requesters[0]", "512"),
		Entry("warnings at 0 %", `spec: {warnPercent: 0}`, "spec.warnPercent", "greater than or equal to 1"),
		Entry("warnings at 101 %", `spec: {warnPercent: 101}`, "spec.warnPercent", "less than or equal to 100"),
		Entry("an unknown onExceeded", `spec: {onExceeded: Kill}`, "spec.onExceeded", `supported values: "Queue", "Reject"`),
		Entry("an unknown field", `spec: {limit: {}}`, "spec.limit", "unknown field"),
	)

	It("may change in all fields except the currency", func(ctx SpecContext) {
		b := createFrom(ctx, budgetBase)
		Expect(change(ctx, b, `spec: {period: Month, timeZone: Europe/Berlin, limits: {tokens: 5, turns: 2}, onExceeded: Queue, `+
			`warnPercent: 50, selector: {agents: {names: [a]}}}`)).To(Succeed())
		Expect(change(ctx, b, `spec: {selector: null}`)).To(Succeed())
		Expect(change(ctx, b, `spec: {currency: EUR}`)).To(MatchError(ContainSubstring("currency must not change: create another budget")))
	})
})
