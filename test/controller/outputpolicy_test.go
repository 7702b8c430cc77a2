package controller_test

import (
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// deliveryRules make the model name a price. After this answer is rejected, the model answers without a price. When the
// model checks an answer for the policy "kind", it finds each answer with a price unkind.
const deliveryRules = `rules:
- {when: {matches: "^Your answer was not accepted"}, reply: {text: "Ask at the counter."}}
- when: {systemContains: "You check one answer", contains: "40 EUR"}
  reply: {text: '{"verdicts": [{"rule": "kind", "violated": true, "reason": "40 EUR is too much."}]}'}
- when: {systemContains: "You check one answer"}
  reply: {text: '{"verdicts": [{"rule": "kind", "violated": false, "reason": "It is kind."}]}'}
- {reply: {text: "It costs 40 EUR."}}
`

var _ = Describe("An output policy", func() {
	prices := v1alpha1.OutputPolicy{
		Name: "no-prices", Expression: "!output.text.contains('EUR')", Message: "Name no prices.",
	}
	kind := v1alpha1.OutputPolicy{Name: "kind", Prompt: "Be kind."}
	stubborn := `rules: [{reply: {text: "It costs 40 EUR."}}]`

	DescribeTable("decides what is delivered", func(
		ctx SpecContext, policy v1alpha1.OutputPolicy, onViolation v1alpha1.ViolationAction,
		model, reason, text, violations string, requests int,
	) {
		s := newTestEnv(ctx, model)
		policy.OnViolation = onViolation
		s.create(ctx, newSecret(secretName, apiKey), s.newProvider(provider), newAgent(agent), newSession(),
			newProfile(profile, func(p *v1alpha1.PromptProfile) { p.Spec.OutputPolicy = []v1alpha1.OutputPolicy{policy} }))
		s.run()
		s.create(ctx, newTurn("first", inSession))
		t := s.awaitState(ctx, "first", reason)
		got, err := json.Marshal(t.Status.PolicyViolations)
		Expect(err).NotTo(HaveOccurred())
		Expect(got).To(MatchJSON(violations))
		if text == "" {
			Expect(t.Status.Result).To(BeNil())
			Expect(message(t)).To(ContainSubstring("Name no prices."))
		} else {
			Expect(t.Status.Result).To(HaveField("Text", HaveValue(Equal(text))))
		}
		whole, err := json.Marshal(t)
		Expect(err).NotTo(HaveOccurred())
		if text != "It costs 40 EUR." {
			Expect(string(whole)).NotTo(ContainSubstring("40 EUR"), "no part of the object may contain the rejected answer")
		}
		Expect(finalizedReason(t)).To(Equal("True Finalized"))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(requests))
		Expect(t.Status.Usage.TotalTokens).NotTo(BeZero(), "the checks are paid for")
	},
		Entry("with Fail", prices, v1alpha1.ViolationFail, deliveryRules, v1alpha1.TurnReasonPolicyViolated, "",
			`[{"policy": "no-prices", "onViolation": "Fail"}]`, 1, SpecTimeout(patience)),
		Entry("with Report", prices, v1alpha1.ViolationReport, deliveryRules, v1alpha1.TurnReasonCompleted, "It costs 40 EUR.",
			`[{"policy": "no-prices", "onViolation": "Report"}]`, 1, SpecTimeout(patience)),
		Entry("with Retry", prices, v1alpha1.ViolationRetry, deliveryRules, v1alpha1.TurnReasonCompleted, "Ask at the counter.",
			`null`, 2, SpecTimeout(patience)),
		Entry("with Retry and a model that repeats its answer", prices, v1alpha1.ViolationRetry, stubborn,
			v1alpha1.TurnReasonPolicyViolated, "", `[{"policy": "no-prices", "onViolation": "Retry"}]`, 3, SpecTimeout(patience)),
		Entry("with Report and a rule in words", kind, v1alpha1.ViolationReport, deliveryRules, v1alpha1.TurnReasonCompleted,
			"It costs 40 EUR.", `[{"policy": "kind", "onViolation": "Report"}]`, 2, SpecTimeout(patience)),
		Entry("with Retry and a rule in words", kind, v1alpha1.ViolationRetry, deliveryRules, v1alpha1.TurnReasonCompleted,
			"Ask at the counter.", `null`, 4, SpecTimeout(patience)),
	)
})
