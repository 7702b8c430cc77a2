package controller_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// textKey is the key of the texts in the ConfigMaps of these specs.
const textKey = "text.md"

func newConfigMap(name, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{textKey: text}}
}

func textOf(configMap string) v1alpha1.ConfigMapKeyReference {
	return v1alpha1.ConfigMapKeyReference{Name: configMap, Key: textKey}
}

// skillOf returns a skill whose content is in a ConfigMap.
func skillOf(key, configMap string) v1alpha1.Skill {
	return v1alpha1.Skill{Key: key, ContentFrom: &v1alpha1.ContentSource{ConfigMapKeyRef: textOf(configMap)}}
}

// contributionOf returns a contribution whose text is in a ConfigMap.
func contributionOf(configMap string) []v1alpha1.Contribution {
	ref := textOf(configMap)
	return []v1alpha1.Contribution{{Name: configMap, ConfigMapKeyRef: &ref}}
}

func contributing(configMap string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Spec.Context = &v1alpha1.TurnContext{Contributions: contributionOf(configMap)}
	}
}

func loads(keys ...string) func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) { a.Spec.Skills = &v1alpha1.AgentSkills{Loaded: keys} }
}

// rewrite changes the text of a ConfigMap.
func (s *testEnv) rewrite(ctx context.Context, name, text string) {
	GinkgoHelper()
	change(ctx, s, name, &corev1.ConfigMap{}, func(m *corev1.ConfigMap) { m.Data[textKey] = text })
}

// drop deletes an object of the test environment.
func (s *testEnv) drop(ctx context.Context, o client.Object, name string) {
	GinkgoHelper()
	o.SetNamespace(s.namespace)
	o.SetName(name)
	Expect(apiClient.Delete(ctx, o)).To(Succeed())
}

func renderHash(a *v1alpha1.Agent) string { return a.Status.PromptRenderHash }

var _ = Describe("A profile with a skill in a ConfigMap", func() {
	It("changes with the ConfigMap, and so does its Agent's hash", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		objects := s.basics(loads("refunds"))
		objects[theProfile] = newProfile(profile, func(p *v1alpha1.PromptProfile) {
			p.Spec.Skills = []v1alpha1.Skill{skillOf("refunds", "skills")}
		})
		s.create(ctx, objects...)
		missing := `PromptProfile spec.skills[0].contentFrom.configMapKeyRef: ConfigMap "skills" does not ` +
			`exist: create it, or correct the name`
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, profile, profileReadiness, Equal("ConfigMapNotFound: "+missing))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, Equal(`ProfileNotReady: PromptProfile "house" is not ready: `+missing))
		var p v1alpha1.PromptProfile
		Expect(apiClient.Get(ctx, s.key(profile), &p)).To(Succeed())
		Expect(conditionsOf(p.Status.Conditions)).To(ConsistOf("Ready=False ConfigMapNotFound"),
			"the ConfigMap may appear, so the profile is not stalled")

		s.create(ctx, newConfigMap("skills", "Ask for the order number."))
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, profile, profileReadiness, HavePrefix("Ready: "))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, renderHash, Not(BeEmpty()))
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, s.key(agent), &a)).To(Succeed())
		Expect(apiClient.Get(ctx, s.key(profile), &p)).To(Succeed())
		first := a.Status.PromptRenderHash

		s.rewrite(ctx, "skills", "Ask for the invoice.")
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, renderHash, And(Not(BeEmpty()), Not(Equal(first))))
		var same v1alpha1.PromptProfile
		Expect(apiClient.Get(ctx, s.key(profile), &same)).To(Succeed())
		Expect(same.ResourceVersion).To(Equal(p.ResourceVersion), "the profile's own sample loads no skill")
		s.create(ctx, newTurn("asks"))
		t := s.awaitState(ctx, "asks", v1alpha1.TurnReasonCompleted)
		Expect(apiClient.Get(ctx, s.key(agent), &a)).To(Succeed())
		Expect(t.Status.Preparation.PromptRenderHash).To(Equal(a.Status.PromptRenderHash), "the hash of the Agent is the hash of its Turns")
		Expect(string(s.fake.Requests()[0].Body)).To(ContainSubstring("Ask for the invoice."))

		s.rewrite(ctx, "skills", "Ask {{ .nobody }}.")
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, profile, profileReadiness,
			HavePrefix(`RenderFailed: PromptProfile spec.skills[0].contentFrom, key "text.md" of ConfigMap "skills":1:8: `))
		s.drop(ctx, &corev1.ConfigMap{}, "skills")
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, profile, profileReadiness, Equal("ConfigMapNotFound: "+missing))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ProfileNotReady: "))
	}, SpecTimeout(patience))
})

var _ = Describe("An Agent", func() {
	It("with a contribution in a ConfigMap waits for it", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics(func(a *v1alpha1.Agent) { a.Spec.Contributions = contributionOf("hours") })...)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness,
			Equal(`ConfigMapNotFound: Agent spec.contributions[0].configMapKeyRef: ConfigMap "hours" does not `+
				`exist: create it, or correct the name`))
		s.create(ctx, newConfigMap("hours", "Open from 8 to 18."))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
		change(ctx, s, "hours", &corev1.ConfigMap{}, func(m *corev1.ConfigMap) { m.Data = nil })
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, And(HavePrefix("ConfigMapNotFound: "),
			ContainSubstring(`ConfigMap "hours" has no key "text.md" in its data`)))
	}, SpecTimeout(patience))

	It("with a skill that its profile lacks reports it until the profile has it", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics(loads("refunds"))...)
		s.create(ctx, newTurn("waits"))
		unknown := `Agent spec.skills.loaded[0]: "refunds" is not a skill of PromptProfile "house", which has: none`
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, Equal("SkillNotFound: "+unknown))
		awaitText(ctx, s, &v1alpha1.Turn{}, "waits", message, ContainSubstring(unknown))
		change(ctx, s, profile, &v1alpha1.PromptProfile{}, func(p *v1alpha1.PromptProfile) {
			p.Spec.Skills = []v1alpha1.Skill{{Key: "refunds", Content: new("Ask for the order number.")}}
		})
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))
})

var _ = Describe("A Turn with a contribution in a ConfigMap", func() {
	It("waits until the ConfigMap exists, then runs with its text", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("waits", contributing("terms")), newTurn("gives-up", contributing("terms"), startWithin(20)))
		// A Turn that no manager has seen before its deadline was never Pending.
		s.awaitState(ctx, "gives-up", v1alpha1.TurnReasonPending)
		why := `ConfigMap "terms", which spec.context.contributions[0].configMapKeyRef names, does not exist`
		ended := s.awaitState(ctx, "gives-up", v1alpha1.TurnReasonDeadlineExceeded)
		Expect(message(ended)).To(Equal("the turn did not start within 20s (limits.startingDeadlineSeconds); it was Pending: " + why))
		t := s.awaitState(ctx, "waits", v1alpha1.TurnReasonPending)
		Expect(message(t)).To(Equal(why))
		Expect(conditionsOf(t.Status.Conditions)).To(ConsistOf("Succeeded=Unknown Pending", "Reconciling=True Pending"))

		s.create(ctx, newConfigMap("terms", "Delivered within three days."))
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
		Expect(string(s.fake.Requests()[0].Body)).To(ContainSubstring("Delivered within three days."))

		writes := requests(ctx, "PUT", "turns", "status")
		s.create(ctx, newTurn("at-once", contributing("terms")))
		s.awaitState(ctx, "at-once", v1alpha1.TurnReasonCompleted)
		Expect(requests(ctx, "PUT", "turns", "status")-writes).To(BeEquivalentTo(2), "bind and end, as without a ConfigMap")
	}, SpecTimeout(patience))

	It("ends if the ConfigMap lacks the key", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		terms := newConfigMap("terms", "")
		terms.Data = map[string]string{"other.md": "Something else."}
		s.create(ctx, terms, newTurn("without", contributing("terms")))
		t := s.awaitState(ctx, "without", v1alpha1.TurnReasonPreparationFailed)
		Expect(message(t)).To(HavePrefix(`Turn spec.context.contributions[0].configMapKeyRef: ConfigMap "terms" ` +
			`has no key "text.md" in its data`))
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))
})

// withTexts makes a Turn take its message from the ConfigMap "request", and the value of its variable from the
// ConfigMap "values".
func withTexts(t *v1alpha1.Turn) {
	t.Spec.Message, t.Spec.MessageFrom = "", &v1alpha1.ContentSource{ConfigMapKeyRef: textOf("request")}
	t.Spec.Parameters = []v1alpha1.Parameter{{Name: "floor", ValueFrom: &v1alpha1.ContentSource{ConfigMapKeyRef: textOf("values")}}}
}

var _ = Describe("A Turn whose message is in a ConfigMap", func() {
	It("waits for all its texts, then sends them to the model", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		objects := s.basics()
		objects[theProfile] = newProfile(profile, func(p *v1alpha1.PromptProfile) {
			p.Spec.Variables = []v1alpha1.Variable{{Name: "floor", Required: true}}
			p.Spec.Instructions, p.Spec.InstructionsFrom = "", &v1alpha1.ContentSource{ConfigMapKeyRef: textOf("prompt")}
		})
		s.create(ctx, append(objects, newConfigMap("prompt", "The user is on floor {{ .floor }}."), newTurn("waits", withTexts))...)
		t := s.awaitState(ctx, "waits", v1alpha1.TurnReasonPending)
		Expect(message(t)).To(Equal(`ConfigMap "request", which spec.messageFrom.configMapKeyRef names, does not exist`))
		s.create(ctx, newConfigMap("request", "My printer is out of paper."))
		Eventually(func(g Gomega) {
			g.Expect(apiClient.Get(ctx, s.key("waits"), t)).To(Succeed())
			g.Expect(message(t)).To(Equal(`ConfigMap "values", which spec.parameters[0].valueFrom.configMapKeyRef names, does not exist`))
		}).WithContext(ctx).Should(Succeed())
		s.create(ctx, newConfigMap("values", "7"))
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
		Expect(string(s.fake.Requests()[0].Body)).To(And(
			ContainSubstring("My printer is out of paper."), ContainSubstring("The user is on floor ")))

		s.rewrite(ctx, "request", " \n")
		s.create(ctx, newTurn("blank", withTexts))
		t = s.awaitState(ctx, "blank", v1alpha1.TurnReasonPreparationFailed)
		Expect(message(t)).To(Equal(`Turn spec.messageFrom.configMapKeyRef: key "text.md" of ConfigMap "request" must not be blank: ` +
			`write the message into it`))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))

	It("reports where a text of its prompt is wrong", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		objects := s.basics(func(a *v1alpha1.Agent) {
			a.Spec.InstructionsFrom = &v1alpha1.ContentSource{ConfigMapKeyRef: textOf("prompt")}
		})
		s.create(ctx, append(objects, newConfigMap("prompt", "Ask {{ .nobody }}."))...)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness,
			ContainSubstring(`Agent spec.instructionsFrom, key "text.md" of ConfigMap "prompt":1:8: `))
		s.rewrite(ctx, "prompt", "Ask for the floor.")
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
	}, SpecTimeout(patience))
})
