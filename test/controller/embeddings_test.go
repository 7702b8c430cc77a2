package controller_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// meaningModel extracts one memory from each of three messages, and makes vectors in which a printer and a LaserJet are
// the same.
const meaningModel = `
embeddings: {synonyms: [[printer, LaserJet]]}
rules:
- when: {systemContains: ` + aboutUser + `, contains: "tell 1"}
  reply: {text: '{"memories": [{"content": "Has a LaserJet 4000.", "scope": "User", "confidence": 90}]}'}
- when: {systemContains: ` + aboutUser + `, contains: "tell 2"}
  reply: {text: '{"memories": [{"content": "Likes bicycles.", "scope": "User", "confidence": 90}]}'}
- when: {systemContains: ` + aboutUser + `, contains: "tell 3"}
  reply: {text: '{"memories": [{"content": "Lives in Oslo.", "scope": "User", "confidence": 90}]}'}
- when: {systemContains: ` + aboutUser + `}
  reply: {text: '{"memories": []}'}
`

// embeds makes an Agent use embeddings, and put only one memory into a prompt.
func embeds(provider string) func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) {
		a.Spec.Embeddings = &v1alpha1.AgentEmbeddings{ProviderRef: v1alpha1.SharedReference{Name: provider}, Model: "small-embeddings"}
		if a.Spec.Memory != nil {
			a.Spec.Memory.MaxItems = new(int32(1))
		}
	}
}

// embedded returns "reason: message" of the condition EmbeddingsResolved.
func embedded(a *v1alpha1.Agent) string {
	if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionEmbeddingsResolved); c != nil {
		return c.Reason + ": " + c.Message
	}
	return ""
}

var _ = Describe("An Agent with embeddings", func() {
	It("finds a memory by its meaning, answers without the endpoint, and pays for what it used", func(ctx SpecContext) {
		s := newTestEnv(ctx, meaningModel)
		m := s.run(trustRequesters, evaluationSlots(2))
		s.create(ctx, s.basics(learns(v1alpha1.LearnedScopeUser))...)
		s.create(ctx, newBudget("month", func(b *v1alpha1.Budget) {
			b.Spec.Limits = v1alpha1.BudgetLimits{Tokens: new(int64(1_000_000))}
		}))
		var want []string
		for i, text := range []string{"Has a LaserJet 4000.", "Likes bicycles.", "Lives in Oslo."} {
			name := fmt.Sprintf("tell-%d", i+1)
			s.create(ctx, newTurn(name, requestedBy("ada"), asking(fmt.Sprintf("tell %d", i+1))))
			s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
			want = append(want, "User ada: "+text)
			Eventually(m.learned(ctx)).WithContext(ctx).Should(ConsistOf(want))
			if i == 0 { // this memory gets its vector with the next one
				change(ctx, s, agent, &v1alpha1.Agent{}, embeds(provider))
				awaitText(ctx, s, &v1alpha1.Agent{}, agent, embedded, HavePrefix("Resolved: "))
			}
		}
		ask := func(name, about string) *v1alpha1.Turn {
			GinkgoHelper()
			s.create(ctx, newTurn(name, requestedBy("ada"), asking(about)))
			return s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
		}
		// The memory is the oldest one, and shares no word with the message.
		t := ask("by-meaning", "printer trouble")
		Expect(s.promptOf("printer trouble")).To(And(ContainSubstring("- [User] Has a LaserJet 4000."), Not(ContainSubstring("Oslo"))))
		Expect(t.Status.Preparation.Provenance.UsedMemoryIDs).To(HaveLen(1))

		Eventually(func(g Gomega) {
			var b v1alpha1.Budget
			g.Expect(apiClient.Get(ctx, s.key("month"), &b)).To(Succeed())
			billed := s.fake.Stats()
			g.Expect(billed.ByModel).To(HaveKeyWithValue("small-embeddings", BeEquivalentTo(2+2)), "one request for each Turn "+
				"that led to a memory since the Agent has embeddings, and one for each message while not all memories fit into its prompt")
			g.Expect(b.Status.Spent).NotTo(BeNil())
			g.Expect(b.Status.Spent.Tokens).To(Equal(billed.BilledInputTokens+billed.BilledOutputTokens),
				"the tokens that the endpoint has billed")
		}).WithContext(ctx).Should(Succeed())

		for name, fault := range map[string]string{"refuses": "status: 500", "hangs": "hang: BeforeHeaders"} {
			Expect(s.fake.SetConfig(config(meaningModel + "- {when: {embeddings: true}, fault: {" + fault + "}}"))).To(Succeed())
			ask(name, "printer that "+name)
			Expect(s.promptOf("printer that "+name)).To(ContainSubstring("- [User] Lives in Oslo."),
				"without vectors, the words and the age of the memories decide")
		}
		Expect(m.logs.String()).To(ContainSubstring("words alone decide which memories and tools fit"))
	}, SpecTimeout(3*patience))

	It("reports that its provider has no embeddings, and is Ready nevertheless", func(ctx SpecContext) {
		s := newTestEnv(ctx, "")
		s.run()
		s.create(ctx, s.newProvider("claude", func(p *v1alpha1.ModelProvider) { p.Spec.Type = v1alpha1.ProviderTypeAnthropic }))
		s.create(ctx, s.basics(embeds("claude"))...)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, embedded,
			And(HavePrefix("NoEmbeddings: "), ContainSubstring("name one of type OpenAI")))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
		change(ctx, s, agent, &v1alpha1.Agent{}, embeds("missing"))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, embedded, Equal(`ProviderNotFound: ModelProvider "missing" does not exist`))
		change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Embeddings = nil })
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, embedded, BeEmpty())
	}, SpecTimeout(patience))
})
