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

// ofLabels returns a patch that sets the selector of labels, in YAML's flow style without the braces.
func ofLabels(fields string) string {
	return `spec: {selector: {agents: {labelSelector: {` + fields + `}}}}`
}

// many returns n items of a YAML list or map, with %d replaced by 0, 1 and so on.
func many(n int, item string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = strings.ReplaceAll(item, "%d", strings.Repeat("i", i+1))
	}
	return strings.Join(items, ", ")
}

var _ = Describe("Budget", func() {
	It("counts in US dollars and days of UTC, and ends Turns, by default", func(ctx SpecContext) {
		Expect(acceptedAndIgnored(ctx, budgetBase, `{}`)).To(Equal(map[string]any{
			"period": "Day", "timeZone": "UTC", "currency": "USD", "onExceeded": "Reject", "warnPercent": int64(80),
			"limits": map[string]any{"tokens": int64(1000)},
		}))
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { acceptedAndIgnored(ctx, budgetBase, patch) },
		Entry("all limits at 0, which stops all Turns", `spec: {limits: {tokens: 0, cost: "0", turns: 0}}`),
		Entry("the largest limits",
			`spec: {limits: {tokens: 1000000000000, turns: 1000000000, cost: "`+strings.Repeat("9", 12)+`.`+strings.Repeat("9", 10)+`"}}`),
		Entry("64 Agents", `spec: {selector: {agents: {names: [`+many(64, "a%d")+`]}}}`),
		Entry("16 labels and 16 requirements", ofLabels(`matchLabels: {`+many(16, "l%d: v")+`}, matchExpressions: [`+
			many(16, "{key: k%d, operator: Exists}")+`]`)),
		Entry("a requirement of 64 values", ofLabels(`matchExpressions: [{key: k, operator: NotIn, values: [`+many(63, "%d")+`, ""]}]`)),
		Entry("64 requesters and an Agent", `spec: {selector: {requesters: [`+many(63, "u%d")+`, "system:serviceaccount:a:`+
			strings.Repeat("b", 488)+`"], agents: {names: [a]}}}`),
		Entry("another time zone, period and currency", `spec: {period: Month, timeZone: America/Argentina/Buenos_Aires, currency: EUR}`),
		Entry("a zone with a sign", `spec: {timeZone: Etc/GMT+5}`),
		Entry("Turns that wait", `spec: {onExceeded: Queue}`),
	)

	DescribeTable("refuses",
		func(ctx SpecContext, patch, field, message string) { refused(ctx, budgetBase, patch, field, message) },
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
		Entry("a currency with a sign", `spec: {currency: "$"}`, "spec.currency", "currency must be an ISO 4217 code, such as USD"),
		Entry("a time zone with spaces", `spec: {timeZone: "Europe Berlin"}`, "spec.timeZone", "timeZone must be an IANA name"),
		Entry("an empty selector", `spec: {selector: {}}`, "spec.selector", "at least 1 properties"),
		Entry("an empty selector of Agents", `spec: {selector: {agents: {}}}`, "spec.selector.agents", "at least 1 properties"),
		Entry("no names", `spec: {selector: {agents: {names: []}}}`, "spec.selector.agents.names", "at least 1 items"),
		Entry("65 names", `spec: {selector: {agents: {names: [`+many(65, "a%d")+`]}}}`, "spec.selector.agents.names", "at most 64 items"),
		Entry("an empty selector of labels", ofLabels(``), "spec.selector.agents.labelSelector", "at least 1 properties"),
		Entry("17 labels", ofLabels(`matchLabels: {`+many(17, "l%d: v")+`}`), "spec.selector.agents.labelSelector.matchLabels",
			"must have at most 16 items"),
		Entry("too long a value", ofLabels(`matchLabels: {team: `+strings.Repeat("v", 64)+`}`),
			"spec.selector.agents.labelSelector.matchLabels.team", "63"),
		Entry("too long a name of a label", ofLabels(`matchLabels: {`+strings.Repeat("k", 318)+`: v}`),
			"spec.selector.agents.labelSelector.matchLabels", "the name of a label must have 1 to 317 characters"),
		Entry("a name that no label has", ofLabels(`matchLabels: {"not a name": v}`), "spec.selector.agents.labelSelector.matchLabels",
			"the name of a label must be valid"),
		Entry("a value that no label has", ofLabels(`matchLabels: {team: "not a value"}`),
			"spec.selector.agents.labelSelector.matchLabels[team]", "the value of a label must consist of"),
		Entry("a requirement for a name that no label has", ofLabels(`matchExpressions: [{key: "a/b/c", operator: Exists}]`),
			"spec.selector.agents.labelSelector.matchExpressions[0].key", "key must be the name of a label"),
		Entry("17 requirements", ofLabels(`matchExpressions: [`+many(17, "{key: k%d, operator: Exists}")+`]`),
			"spec.selector.agents.labelSelector.matchExpressions", "at most 16 items"),
		Entry("In without values", ofLabels(`matchExpressions: [{key: k, operator: In}]`),
			"spec.selector.agents.labelSelector.matchExpressions[0]", "values must be set for the operators In and NotIn"),
		Entry("Exists with values", ofLabels(`matchExpressions: [{key: k, operator: Exists, values: [v]}]`),
			"spec.selector.agents.labelSelector.matchExpressions[0]", "absent for Exists and DoesNotExist"),
		Entry("an unknown operator", ofLabels(`matchExpressions: [{key: k, operator: Gt, values: ["1"]}]`),
			"spec.selector.agents.labelSelector.matchExpressions[0].operator", "supported values"),
		Entry("no requesters", `spec: {selector: {requesters: []}}`, "spec.selector.requesters", "at least 1 items"),
		Entry("65 requesters", `spec: {selector: {requesters: [`+many(65, "u%d")+`]}}`, "spec.selector.requesters", "at most 64 items"),
		Entry("a requester twice", `spec: {selector: {requesters: [ada, ada]}}`, "spec.selector.requesters[1]", "Duplicate value"),
		Entry("a requester without a name", `spec: {selector: {requesters: [""]}}`, "spec.selector.requesters[0]", "at least 1 chars"),
		Entry("a requester with a long name", `spec: {selector: {requesters: [`+strings.Repeat("u", 513)+`]}}`,
			"spec.selector.requesters[0]", "512"),
		Entry("warnings at 0 %", `spec: {warnPercent: 0}`, "spec.warnPercent", "greater than or equal to 1"),
		Entry("warnings at 101 %", `spec: {warnPercent: 101}`, "spec.warnPercent", "less than or equal to 100"),
		Entry("an unknown consequence", `spec: {onExceeded: Kill}`, "spec.onExceeded", `supported values: "Queue", "Reject"`),
		Entry("an unknown field", `spec: {limit: {}}`, "spec.limit", "unknown field"),
	)

	It("may change in all its fields but the currency", func(ctx SpecContext) {
		b := createFrom(ctx, budgetBase)
		Expect(change(ctx, b, `spec: {period: Month, timeZone: Europe/Berlin, limits: {tokens: 5, turns: 2}, onExceeded: Queue, `+
			`warnPercent: 50, selector: {agents: {names: [a]}}}`)).To(Succeed())
		Expect(change(ctx, b, `spec: {selector: null}`)).To(Succeed())
		Expect(change(ctx, b, `spec: {currency: EUR}`)).To(MatchError(ContainSubstring("currency must not change: create another budget")))
	})
})
