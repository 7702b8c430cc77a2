package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const sessionBase = `
apiVersion: capstan.dev/v1alpha1
kind: Session
metadata: {name: sess-abc, namespace: default}
spec: {subject: Order 1042}
`

// budgetPatch returns a patch that sets the budget of a Session, in YAML's flow style without the braces.
func budgetPatch(fields string) string { return `spec: {budget: {` + fields + `}}` }

var _ = Describe("Session", func() {
	It("has only the default to continue after a loss of its history", func(ctx SpecContext) {
		spec := accepted(ctx, sessionBase, `{}`)
		Expect(spec).To(HaveLen(2))
		Expect(spec).To(HaveKeyWithValue("onHistoryLoss", "Continue"))
	})
	It("can be created with only a name", func(ctx SpecContext) {
		s := &v1alpha1.Session{}
		s.Namespace, s.GenerateName = "default", "made-"
		Expect(apiClient.Create(ctx, s)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, s)).To(Succeed()) })
		Expect(s.Status.ObservedGeneration).To(BeEquivalentTo(-1), "no controller has observed it")
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, sessionBase, patch) },
		Entry("no spec", `spec: null`),
		Entry("the longest subject", `spec: {subject: `+strings.Repeat("s", 32768)+`}`),
		Entry("the largest budget", budgetPatch(
			`maxTurns: 1000000, maxTokens: 1000000000000, maxCost: "`+strings.Repeat("9", 12)+`.`+strings.Repeat("9", 10)+`"`)),
		Entry("the smallest budget", budgetPatch(`maxTurns: 1, maxTokens: 1, maxCost: "0.0000000001"`)),
		Entry("an integer cost", budgetPatch(`maxCost: "5"`)),
		Entry("a cost with leading and trailing zeros", budgetPatch(`maxCost: "00.50"`)),
		Entry("the shortest time", `spec: {ttlSecondsAfterLastTurn: 1}`),
		Entry("the longest time", `spec: {ttlSecondsAfterLastTurn: 31536000}`),
		Entry("a Session that continues after a loss of its history", `spec: {onHistoryLoss: Continue}`),
		Entry("a Session that waits after a loss of its history", `spec: {onHistoryLoss: Wait}`),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, sessionBase, patch, field, message) },
		Entry("an empty subject", `spec: {subject: ""}`, "spec.subject", "at least 1 chars long"),
		Entry("too long a subject", `spec: {subject: `+strings.Repeat("s", 32769)+`}`, "spec.subject", "32768"),
		Entry("NUL in the subject", `spec: {subject: "\0"}`, "spec.subject", "subject must not contain the character U+0000"),
		Entry("an empty budget", budgetPatch(``), "spec.budget", "at least 1 properties"),
		Entry("no turns", budgetPatch(`maxTurns: 0`), "spec.budget.maxTurns", "greater than or equal to 1"),
		Entry("too many turns", budgetPatch(`maxTurns: 1000001`), "spec.budget.maxTurns", "less than or equal to 1000000"),
		Entry("no tokens", budgetPatch(`maxTokens: 0`), "spec.budget.maxTokens", "greater than or equal to 1"),
		Entry("too many tokens", budgetPatch(`maxTokens: 1000000000001`), "spec.budget.maxTokens", "less than or equal to 1000000000000"),
		Entry("a cost of 0", budgetPatch(`maxCost: "0.00"`), "spec.budget.maxCost", "maxCost must be a decimal above 0"),
		Entry("a negative cost", budgetPatch(`maxCost: "-1"`), "spec.budget.maxCost", "maxCost must be a decimal above 0"),
		Entry("a cost with an exponent", budgetPatch(`maxCost: "1e3"`), "spec.budget.maxCost", "maxCost must be a decimal above 0"),
		Entry("a cost with a currency", budgetPatch(`maxCost: "5 USD"`), "spec.budget.maxCost", "maxCost must be a decimal above 0"),
		Entry("a cost with 11 decimals", budgetPatch(`maxCost: "0.00000000001"`), "spec.budget.maxCost",
			"at most 12 digits before and 10 after the point"),
		Entry("a cost that is a number", budgetPatch(`maxCost: 0.5`), "spec.budget.maxCost", "must be of type string"),
		Entry("a time of 0", `spec: {ttlSecondsAfterLastTurn: 0}`, "spec.ttlSecondsAfterLastTurn", "greater than or equal to 1"),
		Entry("too long a time", `spec: {ttlSecondsAfterLastTurn: 31536001}`, "spec.ttlSecondsAfterLastTurn",
			"less than or equal to 31536000"),
		Entry("an unknown policy for a loss of its history", `spec: {onHistoryLoss: Rerun}`, "spec.onHistoryLoss",
			`supported values: "Continue", "Wait"`),
		Entry("no policy for a loss of its history", `spec: {onHistoryLoss: ""}`, "spec.onHistoryLoss",
			`supported values: "Continue", "Wait"`),
		Entry("an unknown field", `spec: {subjct: x}`, "spec.subjct", "unknown field"),
	)

	It("may change in all fields", func(ctx SpecContext) {
		s := createFrom(ctx, sessionBase)
		Expect(change(ctx, s, `spec: {subject: Order 1043, budget: {maxTurns: 5}, ttlSecondsAfterLastTurn: 60, onHistoryLoss: Wait}`)).To(
			Succeed())
		Expect(change(ctx, s, `spec: {subject: null, budget: {maxTurns: 6}, ttlSecondsAfterLastTurn: null, onHistoryLoss: Continue}`)).To(
			Succeed())
		Expect(change(ctx, s, `spec: {budget: null}`)).To(Succeed())
	})
})

var _ = Describe("a Turn of a Session", func() {
	const inSession = `sessionRef: {name: sess-abc}`

	DescribeTable("is accepted with",
		func(ctx SpecContext, patch string) { accepted(ctx, turnBase, patch) },
		Entry("nothing else", `spec: {`+inSession+`}`),
		Entry("a context of the conversation",
			`spec: {`+inSession+`, context: {session: {state: Resumed, summary: s, unresolvedQuestions: [q], momentum: Low}}}`),
		Entry("another context", `spec: {`+inSession+`, context: {facts: [{id: a, text: t}]}}`),
	)

	DescribeTable("is rejected with",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, turnBase, patch, field, message) },
		Entry("a history", `spec: {`+inSession+`, history: [{role: User, content: Hello}]}`,
			"spec.history", "history must be absent if sessionRef is given: the Session has the history"),
		Entry("an id of the conversation", `spec: {`+inSession+`, context: {session: {id: a}}}`,
			"spec.context.session", "context.session must not have an id or a subject if sessionRef is given"),
		Entry("a subject of the conversation", `spec: {`+inSession+`, context: {session: {subject: a}}}`,
			"spec.context.session", "context.session must not have an id or a subject if sessionRef is given"),
		Entry("an invalid name", `spec: {sessionRef: {name: "a b"}}`, "spec.sessionRef.name", "name must be a lower-case DNS name"),
		Entry("no name", `spec: {sessionRef: {}}`, "spec.sessionRef.name", "Required value"),
	)

	It("is listed by its Session and completion time", func(ctx SpecContext) {
		unfinished := func() []string {
			GinkgoHelper()
			var turns v1alpha1.TurnList
			Expect(apiClient.List(ctx, &turns, client.InNamespace("default"), client.MatchingFields{
				"spec.sessionRef.name": "sess-abc", "status.completionTime": "",
			})).To(Succeed())
			var names []string
			for _, t := range turns.Items {
				names = append(names, t.Name)
			}
			return names
		}
		createFrom(ctx, bareTurn)
		first, second := createFrom(ctx, sessionTurn), createFrom(ctx, sessionTurn)
		Expect(unfinished()).To(ConsistOf(first.GetName(), second.GetName()))
		Expect(apiClient.Status().Patch(ctx, first.DeepCopy(), client.RawPatch(types.MergePatchType,
			[]byte(`{"status": {"completionTime": "2026-01-01T00:00:00.000000Z"}}`)))).To(Succeed())
		Expect(unfinished()).To(ConsistOf(second.GetName()))
	})
})

var _ = Describe("limits", func() {
	for _, tc := range []struct{ kind, base string }{{"a Turn", turnBase}, {"an Agent", agentBase}} {
		kind, base := tc.kind, tc.base
		limitsPatch := func(fields string) string { return `spec: {limits: {` + fields + `}}` }

		DescribeTable("of "+kind+" are accepted with",
			func(ctx SpecContext, fields string) { accepted(ctx, base, limitsPatch(fields)) },
			Entry("the lowest values", `maxSteps: 1, maxToolCalls: 0, maxTokens: 1, maxCost: "0.0000000001"`),
			Entry("the highest values", `maxSteps: 100, maxToolCalls: 1000, maxTokens: 1000000000, maxCost: "999999999999.9999999999"`),
		)
		DescribeTable("of "+kind+" are rejected with",
			func(ctx SpecContext, fields, field, message string) {
				rejected(ctx, base, limitsPatch(fields), "spec.limits."+field, message)
			},
			Entry("no step", `maxSteps: 0`, "maxSteps", "greater than or equal to 1"),
			Entry("too many steps", `maxSteps: 101`, "maxSteps", "less than or equal to 100"),
			Entry("a negative number of calls", `maxToolCalls: -1`, "maxToolCalls", "greater than or equal to 0"),
			Entry("too many calls", `maxToolCalls: 1001`, "maxToolCalls", "less than or equal to 1000"),
			Entry("no token", `maxTokens: 0`, "maxTokens", "greater than or equal to 1"),
			Entry("too many tokens", `maxTokens: 1000000001`, "maxTokens", "less than or equal to 1000000000"),
			Entry("a cost of 0", `maxCost: "0"`, "maxCost", "maxCost must be a decimal above 0"),
			Entry("a cost with a sign", `maxCost: "+1"`, "maxCost", "maxCost must be a decimal above 0"),
			Entry("a cost without a digit before the point", `maxCost: ".5"`, "maxCost", "maxCost must be a decimal above 0"),
			Entry("a cost of too many digits", `maxCost: "1000000000000"`, "maxCost", "at most 12 digits before"),
		)
	}
})
