package controller_test

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// chain gives an Agent these models, each as PROVIDER/MODEL.
func chain(models ...string) func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) {
		a.Spec.Models = nil
		for _, m := range models {
			providerName, name, _ := strings.Cut(m, "/")
			a.Spec.Models = append(a.Spec.Models, v1alpha1.ModelReference{
				ProviderRef: v1alpha1.SharedReference{Name: providerName}, Model: name,
			})
		}
	}
}

// modelsFinding returns the condition ModelsResolved of an Agent as "STATUS REASON: MESSAGE", or an empty string if the
// Agent does not have the condition.
func modelsFinding(a *v1alpha1.Agent) string {
	c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionModelsResolved)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason + ": " + c.Message
}

// fallbackNotes returns the messages of the Events FallbackUsed of a Turn.
func (s *testEnv) fallbackNotes(ctx context.Context, name string) []string {
	GinkgoHelper()
	var list eventsv1.EventList
	Expect(apiClient.List(ctx, &list, client.InNamespace(s.namespace))).To(Succeed())
	var all []string
	for _, e := range list.Items {
		if e.Regarding.Name == name && e.Reason == v1alpha1.EventFallbackUsed {
			all = append(all, e.Note)
		}
	}
	return all
}

var _ = Describe("A chain of models", func() {
	It("falls back to the second, and an Event reports it", func(ctx SpecContext) {
		s := newTestEnv(ctx, `{models: [spare], rules: [{when: {model: spare}, reply: {text: "the spare answers"}}]}`)
		s.run()
		s.create(ctx, s.basics(chain(provider+"/"+modelName, provider+"/spare"))...)
		s.create(ctx, newTurn("asks"))
		t := s.awaitState(ctx, "asks", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("the spare answers"))
		Expect(t.Status.Preparation.Model).To(Equal("spare"))
		Expect(t.Status.Steps.ModelRequests).To(BeEquivalentTo(2))
		Expect(t.Status.Usage.Cost).To(BeNil(), "a model without a price has no cost")
		Eventually(s.events).WithArguments(ctx, "Turn", "asks").Should(ConsistOf("Warning FallbackUsed", "Normal Succeeded"))
	}, SpecTimeout(patience))

	It("that fails as a whole reports the error of each model", func(ctx SpecContext) {
		s := newTestEnv(ctx, `models: [none-of-these]`)
		s.run()
		s.create(ctx, s.basics(chain(provider+"/"+modelName, provider+"/spare"))...)
		s.create(ctx, newTurn("asks"))
		t := s.awaitState(ctx, "asks", v1alpha1.TurnReasonModelFailed)
		Expect(message(t)).To(And(HavePrefix("none of the 2 models that were tried answered"),
			ContainSubstring("demo/demo-small: "), ContainSubstring("demo/spare: ")))
	}, SpecTimeout(patience))

	It("can be used while one of its models can be used, and names the others", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		keyless := s.newProvider("keyless", func(p *v1alpha1.ModelProvider) { p.Spec.CredentialsRef.Name = "absent" })
		s.create(ctx, append(s.basics(chain("gone/"+modelName, "keyless/"+modelName, provider+"/"+modelName)), keyless)...)
		others := `ModelProvider "gone" does not exist; ModelProvider "keyless" is not ready: Secret "absent" does not exist in ` +
			`namespace "` + s.namespace + `": create it with key "apiKey"`
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, modelsFinding,
			Equal("True PartiallyResolved: turns use only a part of the chain: "+others))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))

		s.create(ctx, newTurn("asks"))
		t := s.awaitState(ctx, "asks", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation).To(And(HaveField("Provider", provider), HaveField("Model", modelName)))
		Expect(t.Status.Steps).To(HaveValue(Equal(v1alpha1.StepCounts{Count: 1, ModelRequests: 1})), "nothing was sent to the others")
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
		Eventually(s.fallbackNotes).WithArguments(ctx, "asks").Should(
			ConsistOf("demo/demo-small answered in place of gone/demo-small (Unusable)"))

		demo := &v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: provider}}
		Expect(apiClient.Delete(ctx, demo)).To(Succeed())
		all := others + `; ModelProvider "demo" does not exist`
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, Equal("ProviderNotFound: "+all))
		// The watch of Turns may be ahead of that of Agents. So a Turn may begin before the manager knows of the
		// deletion.
		waits, tries := "", 0
		Eventually(func(g Gomega) {
			tries++
			waits = fmt.Sprintf("waits-%d", tries)
			s.create(ctx, newTurn(waits))
			Eventually(func() string { return s.turn(ctx, waits).StateReason() }).WithContext(ctx).
				Should(BeElementOf(v1alpha1.TurnReasonWaitingForAgent, v1alpha1.TurnReasonModelFailed))
			g.Expect(s.turn(ctx, waits).StateReason()).To(Equal(v1alpha1.TurnReasonWaitingForAgent))
		}).WithContext(ctx).Should(Succeed())
		awaitText(ctx, s, &v1alpha1.Turn{}, waits, message, Equal(`Agent "support" is not ready: `+all))

		s.create(ctx, s.newProvider("gone"))
		t = s.awaitState(ctx, waits, v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.Provider).To(Equal("gone"))
	}, SpecTimeout(patience))

	It("stays with the model that takes over after a tool has run", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `
rules:
- when: {model: demo-small, toolMessages: 0}
  reply: {toolCalls: [{name: search}]}
- when: {model: demo-small}
  fault: {status: 402}
- when: {model: spare, toolMessages: 1}
  reply: {toolCalls: [{name: search, arguments: '{"again": true}'}]}
- reply: {text: "{{ .ToolMessages }} results"}
`), newFakeToolServer()
		host.offer("search", readOnly, answering("Found."))
		s.run()
		s.equip(ctx, host.url, "search", reading("search"))
		change(ctx, s, agent, &v1alpha1.Agent{}, chain(provider+"/"+modelName, provider+"/spare"))
		awaitChecked(ctx, s, &v1alpha1.Agent{}, agent, conditionsOfAgent)
		s.create(ctx, newTurn("asks"))
		t := s.awaitState(ctx, "asks", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("2 results"))
		Expect(outcomes(t)).To(Equal([]string{"search Succeeded", "search Succeeded"}))
		Expect(s.fake.Stats().ByModel).To(Equal(map[string]int64{modelName: 2, "spare": 2}))
		requests := s.fake.Requests()
		Expect(string(requests[1].Body)).To(ContainSubstring("- model: demo-small"))
		Expect(string(requests[2].Body)).To(And(ContainSubstring("- model: spare"), Not(ContainSubstring("- model: demo-small"))))
		Expect(t.Status.Preparation.Model).To(Equal("spare"))
		Expect(t.Status.Decision.PromptRenderHash).To(Equal(t.Status.Preparation.PromptRenderHash))
		Eventually(s.fallbackNotes).WithArguments(ctx, "asks").Should(
			ConsistOf("demo/spare answered in place of demo/demo-small (QuotaExceeded)"))
	}, SpecTimeout(patience))
})
