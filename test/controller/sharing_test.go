package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// platformKey is the key of the platform team's provider. It is longer than the shortest key that is redacted.
const platformKey = "sk-platform-0123456789"

// platform returns the namespace of a platform team with a ModelProvider and its key, and the namespace of another team
// whose Agent uses this provider. One manager watches both. config is the configuration of the fake model of
// the platform team.
func platform(ctx SpecContext, config string, allowed *v1alpha1.AllowedNamespaces) (owner, team *testEnv) {
	GinkgoHelper()
	owner, team = newTestEnv(ctx, config), newTestEnv(ctx, `rules: [{reply: {text: "the team's own model answers"}}]`)
	owner.run(func(o *manager.Options) { o.WatchNamespaces = []string{owner.namespace, team.namespace} })
	owner.create(ctx, newSecret(secretName, platformKey), owner.newProvider(provider, func(p *v1alpha1.ModelProvider) {
		p.Spec.AllowedNamespaces = allowed
	}))
	team.create(ctx, newProfile(profile), newAgent(agent, func(a *v1alpha1.Agent) {
		a.Spec.Models[0].ProviderRef.Namespace = owner.namespace
	}))
	return owner, team
}

// allowFrom returns the allowedNamespaces of an object that these namespaces may use.
func allowFrom(which v1alpha1.NamespacesFrom, selector *v1alpha1.LabelSelector) *v1alpha1.AllowedNamespaces {
	return &v1alpha1.AllowedNamespaces{From: which, Selector: selector}
}

// finding returns the condition ModelsResolved of the Agent as "STATUS REASON: MESSAGE", or an empty string if the
// Agent does not have the condition.
func (s *testEnv) finding(ctx context.Context) string {
	GinkgoHelper()
	var a v1alpha1.Agent
	Expect(apiClient.Get(ctx, s.key(agent), &a)).To(Succeed())
	return modelsFinding(&a)
}

var _ = Describe("A ModelProvider of another namespace", func() {
	It("is used with its own key and at its own endpoint", func(ctx SpecContext) {
		owner, team := platform(ctx, `{apiKeys: [`+platformKey+`], rules: [{reply: {text: "the platform's model answers"}}]}`,
			allowFrom(v1alpha1.NamespacesFromAll, nil))
		team.create(ctx, newTurn("asks"))
		t := team.awaitState(ctx, "asks", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("the platform's model answers"))
		Expect(t.Status.Preparation.Provider).To(Equal(owner.namespace + "/" + provider))
		Expect(team.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))

	It("is refused without consent, whether it exists or not, and the message says what to do", func(ctx SpecContext) {
		owner, team := platform(ctx, `rules: [{reply: {text: "never"}}]`, nil)
		team.create(ctx, newTurn("asks"))
		refused := `False ReferenceNotAllowed: ModelProvider "` + owner.namespace + `/NAME" cannot be used in namespace "` +
			team.namespace + `": it does not exist, or its spec.allowedNamespaces does not allow this namespace: ` +
			`ask its owner, or use an object of this namespace`
		Eventually(func() string { return team.finding(ctx) }).WithContext(ctx).Should(Equal(strings.ReplaceAll(refused, "NAME", provider)))
		team.awaitState(ctx, "asks", v1alpha1.TurnReasonWaitingForAgent)
		change(ctx, team, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Models[0].ProviderRef.Name = "absent" })
		Eventually(func() string { return team.finding(ctx) }).WithContext(ctx).Should(Equal(strings.ReplaceAll(refused, "NAME", "absent")))
		change(ctx, team, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Models[0].ProviderRef.Namespace = "kube-system" })
		Eventually(func() string { return team.finding(ctx) }).WithContext(ctx).Should(
			ContainSubstring(`"kube-system/absent" cannot be used`), "a namespace that the manager does not watch")
		Expect(owner.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))

	It("is allowed by a label of the namespace that asks", func(ctx SpecContext) {
		_, team := platform(ctx, `rules: [{reply: {text: "Fine."}}]`, allowFrom(v1alpha1.NamespacesFromSelector,
			&v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"models": "shared"}}))
		Eventually(func() string { return team.finding(ctx) }).WithContext(ctx).Should(ContainSubstring("False ReferenceNotAllowed"))
		namespace := &corev1.Namespace{}
		Expect(apiClient.Get(ctx, client.ObjectKey{Name: team.namespace}, namespace)).To(Succeed())
		namespace.Labels["models"] = "shared"
		Expect(apiClient.Update(ctx, namespace)).To(Succeed())
		team.create(ctx, newTurn("asks"))
		team.awaitState(ctx, "asks", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(2*patience))

	It("is allowed by the name of the namespace that asks", func(ctx SpecContext) {
		owner, team := platform(ctx, `rules: [{reply: {text: "Fine."}}]`, nil)
		change(ctx, owner, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) {
			p.Spec.AllowedNamespaces = allowFrom(v1alpha1.NamespacesFromSelector, &v1alpha1.LabelSelector{
				MatchExpressions: []v1alpha1.LabelRequirement{{
					Key: corev1.LabelMetadataName, Operator: "In", Values: []v1alpha1.LabelValue{v1alpha1.LabelValue(team.namespace)},
				}},
			})
		})
		team.create(ctx, newTurn("asks"))
		team.awaitState(ctx, "asks", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("gets no further request of a running Turn once its owner withdraws the consent", func(ctx SpecContext) {
		owner, team := platform(ctx, `rules: [{fault: {status: 503}}]`, allowFrom(v1alpha1.NamespacesFromAll, nil))
		change(ctx, owner, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) { p.Spec.Retry.MaxAttempts = 5 })
		release := owner.hold()
		team.create(ctx, newTurn("asks", timeout(600)))
		Eventually(owner.gate.waiting.Load).WithContext(ctx).Should(BeEquivalentTo(1), "the first request is in flight")
		change(ctx, owner, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) { p.Spec.AllowedNamespaces = nil })
		Eventually(func() string { return team.finding(ctx) }).WithContext(ctx).Should(ContainSubstring("False ReferenceNotAllowed"),
			"the manager must have seen the change")
		release()
		t := team.awaitState(ctx, "asks", v1alpha1.TurnReasonModelFailed)
		Expect(message(t)).To(ContainSubstring("its spec.allowedNamespaces does not allow this namespace"))
		Expect(owner.fake.Stats().Requests).To(BeEquivalentTo(1), "the request in flight was the last one")
	}, SpecTimeout(patience))

	It("does not reveal the names of its Secrets to other namespaces", func(ctx SpecContext) {
		owner, team := platform(ctx, `rules: [{reply: {text: "Fine."}}]`, allowFrom(v1alpha1.NamespacesFromAll, nil))
		change(ctx, owner, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) { p.Spec.CredentialsRef.Name = "hidden" })
		Eventually(func() string { return team.finding(ctx) }).WithContext(ctx).Should(Equal(
			`False ProviderNotReady: ModelProvider "` + owner.namespace + "/" + provider + `" is not ready (SecretNotFound)`))
	}, SpecTimeout(patience))

	DescribeTable("does not name its Secret to a Turn whose request fails with", func(ctx SpecContext, status int) {
		owner, team := platform(ctx, fmt.Sprintf(`rules: [{fault: {status: %d}}]`, status), allowFrom(v1alpha1.NamespacesFromAll, nil))
		team.create(ctx, newTurn("asks"))
		t := team.awaitState(ctx, "asks", v1alpha1.TurnReasonModelFailed)
		Expect(message(t)).To(And(ContainSubstring("refused the credentials: ask the owner of ModelProvider %q",
			owner.namespace+"/"+provider), Not(ContainSubstring(secretName))))
	}, Entry("HTTP 401", 401, SpecTimeout(patience)), Entry("HTTP 403", 403, SpecTimeout(patience)))
})

var _ = Describe("A PromptProfile of another namespace", func() {
	// house is the profile of the platform team, with a text from a ConfigMap of its namespace.
	house := func(allowed *v1alpha1.AllowedNamespaces) *v1alpha1.PromptProfile {
		return newProfile(profile, func(p *v1alpha1.PromptProfile) {
			p.Spec.AllowedNamespaces = allowed
			p.Spec.Contributions = []v1alpha1.Contribution{{
				Name: "rules", ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: "rules", Key: "text"},
			}}
		})
	}
	// houseRules is the ConfigMap to which the profile refers.
	houseRules := func(text string) *corev1.ConfigMap {
		o := &corev1.ConfigMap{Data: map[string]string{"text": text}}
		o.Name = "rules"
		return o
	}
	It("is used with the texts of its own namespace", func(ctx SpecContext) {
		owner, team := newTestEnv(ctx, `rules: []`), newTestEnv(ctx, `rules: [{reply: {text: Fine.}}]`)
		team.run(func(o *manager.Options) { o.WatchNamespaces = []string{owner.namespace, team.namespace} })
		owner.create(ctx, houseRules("Never promise a refund."), house(allowFrom(v1alpha1.NamespacesFromAll, nil)))
		team.create(ctx, houseRules("Promise every refund."), newSecret(secretName, apiKey), team.newProvider(provider),
			newAgent(agent, func(a *v1alpha1.Agent) { a.Spec.PromptProfileRef.Namespace = owner.namespace }), newTurn("asks"))
		team.awaitState(ctx, "asks", v1alpha1.TurnReasonCompleted)
		prompt := fmt.Sprint(team.heard())
		Expect(prompt).To(And(ContainSubstring("Never promise a refund."), Not(ContainSubstring("Promise every refund."))))

		By("withdrawing the consent")
		change(ctx, owner, profile, &v1alpha1.PromptProfile{}, func(p *v1alpha1.PromptProfile) { p.Spec.AllowedNamespaces = nil })
		Eventually(func(g Gomega) {
			var a v1alpha1.Agent
			g.Expect(apiClient.Get(ctx, team.key(agent), &a)).To(Succeed())
			c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionProfileResolved)
			g.Expect(c.Reason + ": " + c.Message).To(Equal(`ReferenceNotAllowed: PromptProfile "` + owner.namespace + "/" + profile +
				`" cannot be used in namespace "` + team.namespace + `": it does not exist, or its spec.allowedNamespaces does not allow ` +
				`this namespace: ask its owner, or use an object of this namespace`))
		}).WithContext(ctx).Should(Succeed())
		team.create(ctx, newTurn("later"))
		team.awaitState(ctx, "later", v1alpha1.TurnReasonWaitingForAgent)
		change(ctx, owner, profile, &v1alpha1.PromptProfile{}, func(p *v1alpha1.PromptProfile) {
			p.Spec.AllowedNamespaces = allowFrom(v1alpha1.NamespacesFromAll, nil)
		})
		team.awaitState(ctx, "later", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(2*patience))
})

var _ = Describe("A ToolServer of another namespace", func() {
	It("is called with its own key until its owner withdraws the consent", func(ctx SpecContext) {
		owner, team := newTestEnv(ctx, `rules: []`), newTestEnv(ctx, calling("look"))
		team.run(func(o *manager.Options) { o.WatchNamespaces = []string{owner.namespace, team.namespace} })
		host := newToolHost("look")
		host.token.Store(new(platformKey))
		owner.create(ctx, newSecret(secretName, platformKey), newToolServer("tickets", host.url, func(s *v1alpha1.ToolServer) {
			s.Spec.CredentialsRef = &v1alpha1.SecretKeyReference{Name: secretName, Key: keyName}
			s.Spec.AllowedNamespaces = allowFrom(v1alpha1.NamespacesFromAll, nil)
		}))
		shared := owner.namespace + "/tickets"
		team.create(ctx, team.basics(func(a *v1alpha1.Agent) {
			a.Spec.Tools = []v1alpha1.AgentTool{{ServerRef: &v1alpha1.SharedReference{Namespace: owner.namespace, Name: "tickets"}}}
		})...)
		team.create(ctx, newTurn("call-1"))
		t := team.awaitState(ctx, "call-1", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"look Succeeded"}))
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, team.key(agent), &a)).To(Succeed())
		Expect(a.Status.Tools[0].Server).To(Equal(shared))

		By("revoking the key: the model does not see the name of the Secret")
		host.token.Store(new("sk-another"))
		team.create(ctx, newTurn("call-refused"))
		team.awaitState(ctx, "call-refused", v1alpha1.TurnReasonCompleted)
		Expect(team.lastMessage()).To(And(ContainSubstring(`tool server "`+shared+`" cannot be used with its credentials: ask its owner`),
			Not(ContainSubstring(secretName))))
		host.token.Store(new(platformKey))

		By("withdrawing the consent while the model thinks")
		release := team.hold()
		team.create(ctx, newTurn("call-2", timeout(600)))
		Eventually(team.gate.waiting.Load).WithContext(ctx).Should(BeEquivalentTo(1))
		change(ctx, owner, "tickets", &v1alpha1.ToolServer{}, func(s *v1alpha1.ToolServer) { s.Spec.AllowedNamespaces = nil })
		Eventually(func(g Gomega) {
			var a v1alpha1.Agent
			g.Expect(apiClient.Get(ctx, team.key(agent), &a)).To(Succeed())
			c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionToolsResolved)
			g.Expect(c.Reason + ": " + c.Message).To(HavePrefix(`ReferenceNotAllowed: ToolServer "` + shared + `" cannot be used in ` +
				`namespace "` + team.namespace + `"`))
		}).WithContext(ctx).Should(Succeed())
		release()
		t = team.awaitState(ctx, "call-2", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"look Failed"}))
		Expect(team.lastMessage()).To(ContainSubstring(
			`tool server "` + shared + `" could not be read, no longer exists, or may no longer be used`))
	}, SpecTimeout(2*patience))
})

var _ = Describe("Servers of another namespace that know credentials of each other", func() {
	const deskToken = "tool-m3n4b5v6c7x8l9k0j1h2"
	// The model repeats the token of the ToolServer in a call, in an answer, and in an error.
	const rules = `
rules:
- when: {matches: "^call", toolMessages: 0}
  reply: {toolCalls: [{name: look_up, arguments: '{"note":"` + deskToken + `"}'}]}
- when: {matches: "^call"}
  reply: {text: "The token is ` + deskToken + `."}
- when: {contains: wrong}
  fault: {status: 400, message: "The tool server has ` + deskToken + `."}
`
	It("do not reveal them to the namespaces that share them", func(ctx SpecContext) {
		owner, team := newTestEnv(ctx, rules), newTestEnv(ctx, `rules: []`)
		m := owner.run(func(o *manager.Options) { o.WatchNamespaces = []string{owner.namespace, team.namespace} })
		allowed := allowFrom(v1alpha1.NamespacesFromAll, nil)
		// The ToolServer repeats the key of the model in a result and in an error.
		host := newFakeToolServer()
		var fails atomic.Bool
		host.AddTool(&mcp.Tool{Name: "look_up", InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				content := []mcp.Content{&mcp.TextContent{Text: "It has " + platformKey + "."}}
				return &mcp.CallToolResult{Content: content, IsError: fails.Load()}, nil
			})
		owner.create(ctx, newSecret(secretName, platformKey), newSecret("desk", deskToken),
			owner.newProvider(provider, func(p *v1alpha1.ModelProvider) { p.Spec.AllowedNamespaces = allowed }),
			newToolServer("desk", host.url, reading("look_up"), func(o *v1alpha1.ToolServer) {
				o.Spec.CredentialsRef = &v1alpha1.SecretKeyReference{Name: "desk", Key: keyName}
				o.Spec.AllowedNamespaces = allowed
			}))
		team.create(ctx, newProfile(profile), newAgent(agent, func(a *v1alpha1.Agent) {
			a.Spec.Models[0].ProviderRef.Namespace = owner.namespace
			a.Spec.Tools = []v1alpha1.AgentTool{{ServerRef: &v1alpha1.SharedReference{Namespace: owner.namespace, Name: "desk"}}}
		}))
		awaitText(ctx, team, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[look_up]"))

		team.create(ctx, newTurn("call-it"))
		t := team.awaitState(ctx, "call-it", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("The token is [redacted]."))
		fails.Store(true)
		team.create(ctx, newTurn("call-fails"))
		team.awaitState(ctx, "call-fails", v1alpha1.TurnReasonCompleted)
		team.create(ctx, newTurn("wrong"))
		team.awaitState(ctx, "wrong", v1alpha1.TurnReasonModelFailed)

		found := team.everything(ctx)
		found["the model's requests"] = bodies(owner)
		Expect(found["the model's requests"]).To(ContainSubstring("It has [redacted]."))
		for _, name := range []string{"call-it", "call-fails", "wrong"} {
			found["the journal of "+name] = team.journal(ctx, m, string(team.turn(ctx, name).UID))
		}
		for name, text := range found {
			Expect(text).NotTo(Or(ContainSubstring(platformKey), ContainSubstring(deskToken)), "in %s", name)
		}
	}, SpecTimeout(2*patience))
})
