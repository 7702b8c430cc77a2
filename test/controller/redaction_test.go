package controller_test

import (
	"context"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// repeatingModel looks up a person, asks the sub-agent helper, and answers. It writes the address of the person into
// each reply and each call.
const repeatingModel = `
rules:
- when: {contains: "subtask"}
  reply: {text: "Write to zoe\u200b@shop.example."}
- when: {contains: person, toolMessages: 0}
  reply: {text: "I look for zoe@shop.example.", toolCalls: [{name: search, arguments: '{"for": "zoe\u0040shop.example"}'}]}
- when: {contains: person, toolMessages: 1}
  reply: {toolCalls: [{name: helper, arguments: '{"task": "subtask of zoe@shop.example", "context": ""}'}]}
- when: {contains: person}
  reply: {text: "It is zoe@shop.example."}
`

// redacting sets the redaction rules of an Agent.
func redacting(a *v1alpha1.Agent) {
	a.Spec.Redaction = &v1alpha1.AgentRedaction{
		Patterns:  []v1alpha1.RedactionPattern{{Name: "email", Pattern: `[a-z.]+@[a-z]+\.example`}},
		JSONPaths: []string{"$..phone"},
	}
}

var _ = Describe("An Agent with redaction rules", func() {
	It("keeps no text that a rule matches, whatever repeats it", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, repeatingModel), newFakeToolServer()
		var mu sync.Mutex
		var received []string
		host.offer("search", readOnly, func(_ context.Context, arguments string) string {
			mu.Lock()
			defer mu.Unlock()
			received = append(received, arguments)
			return `{"people": [{"to": "zoe@shop.example", "phone": 5550123456}]} ` + strings.Repeat("Nothing more. ", 2000)
		})
		m := s.run()
		s.create(ctx, s.basics(withTools("desk"), redacting, func(a *v1alpha1.Agent) {
			a.Spec.Tools = append(a.Spec.Tools, v1alpha1.AgentTool{AgentRef: &v1alpha1.SharedReference{Name: helper}})
		})...)
		s.create(ctx, newAgent(helper, redacting), newSession())
		s.create(ctx, newToolServer("desk", host.url, reading("search")))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[search helper]"))
		s.create(ctx, newTurn("person", asking("the person", inSession)))
		t := s.awaitState(ctx, "person", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("It is [redacted:email]."))
		Expect(t.Status.ToolCalls[0].Artifact).NotTo(BeEmpty(), "the output must also be an artifact")
		Expect(received).To(Equal([]string{`{"for":"[redacted:email]"}`}), "a tool receives the same redacted text as the journal")
		Expect(t.Status.Redactions).To(Equal([]v1alpha1.RedactionCount{{Rule: "$..phone", Matches: 1}, {Rule: "email", Matches: 5}}))
		Expect(s.awaitChild(ctx, "person").Status.Redactions).To(Equal([]v1alpha1.RedactionCount{{Rule: "email", Matches: 1}}))
		for _, r := range s.fake.Requests() {
			Expect(string(r.Body)).NotTo(Or(ContainSubstring("shop.example"), ContainSubstring("5550123456")),
				"the model must receive no text that a rule matches")
		}
		for name, text := range s.leftovers(ctx, m) {
			Expect(text).NotTo(Or(ContainSubstring("shop.example"), ContainSubstring("5550123456")), "in %s", name)
		}
	}, SpecTimeout(patience))

	It("is not Ready while a rule cannot be used, and a changed rule applies only to later texts", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel+`
- reply: {text: "It is zoe@shop.example."}
`)
		m := s.run()
		s.create(ctx, s.basics(func(a *v1alpha1.Agent) {
			a.Spec.Redaction = &v1alpha1.AgentRedaction{Patterns: []v1alpha1.RedactionPattern{{Name: "all", Pattern: `.*`}}}
		})...)
		s.create(ctx, newTurn("waits"))
		awaitText(ctx, s, &v1alpha1.Turn{}, "waits", message,
			ContainSubstring("Agent spec.redaction.patterns[0].pattern: must not match an empty text: write + in place of *"))
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, s.key(agent), &a)).To(Succeed())
		Expect(conditionsOf(a.Status.Conditions)).To(ContainElements("Ready=False InvalidRedaction", "Stalled=True InvalidRedaction"))
		change(ctx, s, agent, &v1alpha1.Agent{}, redacting)
		t := s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("It is [redacted:email]."))

		release := s.hold()
		s.create(ctx, newTurn("changes", asking("Who is ann@shop.example?", timeout(600))))
		s.awaitHeld(ctx, 1) // the prompt is recorded
		change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Redaction.Patterns[0].Replacement = "[x]" })
		m.stop() // the next run has the new rules
		next := start(m.options)
		s.awaitHeld(ctx, 2)
		release()
		t = s.awaitState(ctx, "changes", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("It is [x]."))
		Expect(t.Status.Steps.Resumes).To(BeEquivalentTo(1))
		prompts := s.prompts()
		Expect(prompts[len(prompts)-1]).To(And(Equal(prompts[len(prompts)-2]), ContainSubstring("Who is [redacted:email]?")),
			"a later run sends the recorded messages")
		Expect(t.Status.Redactions).To(Equal([]v1alpha1.RedactionCount{{Rule: "email", Matches: 2}}))
		Expect(s.journal(ctx, next, string(t.UID))).NotTo(ContainSubstring("shop.example"))
	}, SpecTimeout(2*patience))
})
