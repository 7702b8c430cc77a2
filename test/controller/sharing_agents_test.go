package controller_test

import (
	"context"
	"fmt"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// lending is the manager of two namespaces: the team's Agent "support" delegates tasks to the owner's Agent "helper".
type lending struct {
	owner, team *testEnv
	*runningManager
}

// lend returns an owner whose Agent helper allows these namespaces, and a team that uses this Agent. All other objects
// have the same names in both namespaces, and may be used only in their own namespace.
func lend(ctx SpecContext, rules string, allowed *v1alpha1.AllowedNamespaces, change ...func(*v1alpha1.Agent)) *lending {
	GinkgoHelper()
	l := &lending{owner: newTestEnv(ctx, rules), team: newTestEnv(ctx, delegatingModel)}
	l.restart()
	l.owner.create(ctx, newSecret(secretName, platformKey), l.owner.newProvider(provider),
		newProfile(profile, func(p *v1alpha1.PromptProfile) { p.Spec.Instructions = "Be the owner's helper." }),
		newAgent(helper, func(a *v1alpha1.Agent) {
			a.Spec.AllowedNamespaces = allowed
			build(a, change)
		}))
	l.team.create(ctx, l.team.basics(l.withHelper())...)
	return l
}

// withHelper gives an Agent of the team the Agent helper of the owner as a tool.
func (l *lending) withHelper() func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) {
		a.Spec.Tools = []v1alpha1.AgentTool{{AgentRef: &v1alpha1.SharedReference{Namespace: l.owner.namespace, Name: helper}}}
	}
}

// restart starts the manager with the options that change has changed, or restarts it with the same options if it runs.
func (l *lending) restart(change ...func(*manager.Options)) {
	GinkgoHelper()
	if l.runningManager != nil {
		l.stop()
		l.runningManager = start(l.options)
		return
	}
	l.runningManager = l.team.run(append(change, func(o *manager.Options) {
		o.WatchNamespaces = []string{l.owner.namespace, l.team.namespace}
	})...)
}

// shared returns the name by which the team knows the owner's Agent helper.
func (l *lending) shared() string { return l.owner.namespace + "/" + helper }

// consent changes which namespaces may use the Agent helper.
func (l *lending) consent(ctx context.Context, allowed *v1alpha1.AllowedNamespaces) {
	GinkgoHelper()
	change(ctx, l.owner, helper, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.AllowedNamespaces = allowed })
}

// tools returns a function that returns the finding about the tools of an Agent.
func (s *testEnv) tools(ctx context.Context, name string) func() string {
	return func() string {
		GinkgoHelper()
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, s.key(name), &a)).To(Succeed())
		c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionToolsResolved)
		if c == nil || c.ObservedGeneration != a.Generation {
			return "not checked"
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
}

// refusal is the finding about an Agent that must not be used in a namespace.
func refusal(agent, namespace string) string {
	return `Agent "` + agent + `" cannot be used in namespace "` + namespace + `": it does not exist, or its ` +
		`spec.allowedNamespaces does not allow this namespace: ask its owner, or use an object of this namespace`
}

var _ = Describe("A sub-agent of another namespace", func() {
	everyNamespace := allowFrom(v1alpha1.NamespacesFromAll, nil)

	It("works in a Turn of the namespace that asks, with the objects of its own namespace", func(ctx SpecContext) {
		l := lend(ctx, `{apiKeys: [`+platformKey+`], rules: [{reply: {text: "The owner answers."}}]}`, everyNamespace)
		By("giving the team an Agent of the same name")
		l.team.create(ctx, newAgent(helper))
		change(ctx, l.team, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) {
			a.Spec.Tools = append(a.Spec.Tools, v1alpha1.AgentTool{AgentRef: &v1alpha1.SharedReference{Name: helper}, Name: "own"})
		})
		Eventually(l.team.tools(ctx, agent)).WithContext(ctx).Should(HavePrefix("True "))
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, l.team.key(agent), &a)).To(Succeed())
		Expect([]string{a.Status.Tools[0].Agent, a.Status.Tools[1].Agent}).To(Equal([]string{l.shared(), helper}))

		l.team.create(ctx, newTurn("parent", asking("delegate subtask one")))
		t := l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		c := l.team.awaitChild(ctx, "parent")
		Expect(c.Spec.AgentRef).To(Equal(v1alpha1.SharedReference{Namespace: l.owner.namespace, Name: helper}))
		Expect(c.Status.Result.Text).To(Equal("The owner answers."))
		Expect(c.Status.Preparation.Provider).To(Equal(l.owner.namespace + "/" + provider))
		Expect(fmt.Sprint(l.owner.heard())).To(And(ContainSubstring("Be the owner's helper."), Not(ContainSubstring("one sentence"))))
		Expect(l.team.lastMessage()).To(ContainSubstring("The owner answers."))
		Expect(t.Status.SubAgentUsage).To(Equal(c.Status.Usage))
		Expect(l.team.fake.Stats().Requests).To(BeEquivalentTo(2), "the requests of the caller")
		var turns v1alpha1.TurnList
		Expect(apiClient.List(ctx, &turns, client.InNamespace(l.owner.namespace))).To(Succeed())
		Expect(turns.Items).To(BeEmpty())

		By("asking the Agent of the same name in the team's namespace")
		change(ctx, l.team, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) {
			a.Spec.Tools = []v1alpha1.AgentTool{{AgentRef: &v1alpha1.SharedReference{Name: helper}}}
		})
		awaitChecked(ctx, l.team, &v1alpha1.Agent{}, agent, conditionsOfAgent)
		l.team.create(ctx, newTurn("other", asking("delegate subtask two")))
		l.team.awaitState(ctx, "other", v1alpha1.TurnReasonCompleted)
		Expect(l.team.awaitChild(ctx, "other").Status.Result.Text).To(Equal("The answer is 42."))
		Expect(l.owner.fake.Stats().Requests).To(BeEquivalentTo(1))
	}, SpecTimeout(2*patience))

	It("is refused without consent, whether it exists or not, and in a namespace that is not watched", func(ctx SpecContext) {
		l := lend(ctx, `rules: [{reply: {text: "never"}}]`, nil)
		for _, ref := range []v1alpha1.SharedReference{
			{Namespace: l.owner.namespace, Name: helper},
			{Namespace: l.owner.namespace, Name: "absent"},
			{Namespace: "kube-system", Name: helper},
		} {
			change(ctx, l.team, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Tools[0].AgentRef = &ref })
			Eventually(l.team.tools(ctx, agent)).WithContext(ctx).Should(
				Equal("False ReferenceNotAllowed: " + refusal(ref.String(), l.team.namespace)))
		}
		l.team.create(ctx, newTurn("parent", asking("delegate subtask")))
		l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonWaitingForAgent)
		Expect(l.owner.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))

	It("sends no further request once its owner withdraws the consent, and none of its later Turns starts", func(ctx SpecContext) {
		l := lend(ctx, `rules: [{when: {contains: fine}, reply: {text: "Fine."}}, {fault: {status: 503}}]`, everyNamespace)
		change(ctx, l.owner, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) { p.Spec.Retry.MaxAttempts = 5 })
		release := l.owner.hold()
		l.team.create(ctx, newTurn("parent", asking("delegate subtask", timeout(600))))
		l.owner.awaitHeld(ctx, 1)
		l.consent(ctx, nil)
		Eventually(l.team.tools(ctx, agent)).WithContext(ctx).Should(
			Equal("False ReferenceNotAllowed: "+refusal(l.shared(), l.team.namespace)), "the manager must have seen the change")
		release()
		t := l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		c := l.team.awaitChild(ctx, "parent")
		Expect(c.StateReason()).To(Equal(v1alpha1.TurnReasonModelFailed))
		Expect(message(c)).To(ContainSubstring(refusal(l.shared(), l.team.namespace)))
		Expect(t.Status.ToolCalls[0].Outcome).To(Equal(v1alpha1.ToolCallFailed))
		Expect(l.owner.fake.Stats().Requests).To(BeEquivalentTo(1), "the request in flight was the last one")

		By("asking again, which waits for the consent")
		l.team.create(ctx, newTurn("later", asking("delegate subtask fine")))
		l.team.awaitState(ctx, "later", v1alpha1.TurnReasonWaitingForAgent)
		l.consent(ctx, everyNamespace)
		l.team.awaitState(ctx, "later", v1alpha1.TurnReasonCompleted)
		Expect(l.team.awaitChild(ctx, "later").Status.Result.Text).To(Equal("Fine."))
	}, SpecTimeout(2*patience))

	It("is not called once its owner withdraws the consent while its caller thinks", func(ctx SpecContext) {
		l := lend(ctx, `rules: [{reply: {text: "never"}}]`, everyNamespace)
		Eventually(l.team.tools(ctx, agent)).WithContext(ctx).Should(HavePrefix("True "))
		release := l.team.hold()
		l.team.create(ctx, newTurn("parent", asking("delegate subtask", timeout(600))))
		l.team.awaitHeld(ctx, 1)
		l.consent(ctx, nil)
		Eventually(l.team.tools(ctx, agent)).WithContext(ctx).Should(HavePrefix("False ReferenceNotAllowed"))
		release()
		t := l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"helper Failed"}))
		Expect(l.team.lastMessage()).To(ContainSubstring(
			`agent "` + l.shared() + `" could not be read, no longer exists, or may no longer be used`))
		var turns v1alpha1.TurnList
		Expect(apiClient.List(ctx, &turns, client.InNamespace(l.team.namespace))).To(Succeed())
		Expect(turns.Items).To(HaveLen(1), "the call created no Turn")
	}, SpecTimeout(patience))

	It("cannot be reached by a Turn that a user writes", func(ctx SpecContext) {
		l := lend(ctx, `rules: [{reply: {text: "never"}}]`, nil)
		forged := func(name string, change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
			return newTurn(name, append([]func(*v1alpha1.Turn){func(t *v1alpha1.Turn) {
				t.Namespace = l.team.namespace
				t.Spec.AgentRef = v1alpha1.SharedReference{Namespace: l.owner.namespace, Name: helper}
				t.Spec.Depth = new(int32(1))
			}}, change...)...)
		}
		const schema = "agentRef.namespace must be absent: only Capstan creates Turns of Agents of other namespaces"
		for what, change := range map[string]func(*v1alpha1.Turn){
			"a Turn of a user":       func(t *v1alpha1.Turn) { t.Spec.Depth = nil },
			"a Turn of depth 0":      func(t *v1alpha1.Turn) { t.Spec.Depth = new(int32(0)) },
			"a Session":              func(t *v1alpha1.Turn) { t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "s"} },
			"another form of prompt": func(t *v1alpha1.Turn) { t.Spec.PromptMode = v1alpha1.PromptModeNone },
		} {
			Expect(apiClient.Create(ctx, forged("forged", change))).To(MatchError(ContainSubstring(schema)), what)
		}
		l.team.create(ctx, forged("alone"))
		Expect(message(l.team.awaitState(ctx, "alone", v1alpha1.TurnReasonInvalidSpec))).To(
			ContainSubstring("only the Turn of a sub-agent may have an Agent of another namespace"))

		By("forging the owner, too")
		parent := newTurn("parent", desired(v1alpha1.DesiredStateSuspended))
		l.team.create(ctx, parent)
		l.team.create(ctx, forged("child", func(t *v1alpha1.Turn) {
			t.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: parent.Name, UID: parent.UID, Controller: new(true),
			}}
		}))
		Expect(message(l.team.awaitState(ctx, "child", v1alpha1.TurnReasonWaitingForAgent))).To(
			Equal(refusal(l.shared(), l.team.namespace)))
		Expect(l.owner.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))

	It("may lead back over two namespaces, as deep as the limits allow", func(ctx SpecContext) {
		l := lend(ctx, delegatingModel, everyNamespace)
		change(ctx, l.team, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.AllowedNamespaces = everyNamespace })
		change(ctx, l.owner, helper, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) {
			back := v1alpha1.SharedReference{Namespace: l.team.namespace, Name: agent}
			a.Spec.Tools = []v1alpha1.AgentTool{{AgentRef: &back, Name: helper}}
		})
		const back = `leads back to this agent: limits.maxDepth bounds how deep that goes`
		Eventually(l.team.tools(ctx, agent)).WithContext(ctx).Should(Equal(`True Resolved: sub-agent "` + l.shared() + `" ` + back))
		Eventually(l.owner.tools(ctx, helper)).WithContext(ctx).Should(
			Equal(`True Resolved: sub-agent "` + l.team.namespace + "/" + agent + `" ` + back))
		l.team.create(ctx, newTurn("parent", asking("delegate delegate delegate delegate subtask", func(t *v1alpha1.Turn) {
			t.Spec.Limits = &v1alpha1.Limits{MaxDepth: new(int32(3))}
		})))
		l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		first := l.team.awaitChild(ctx, "parent")
		second := l.team.awaitChild(ctx, first.Name)
		third := l.team.awaitChild(ctx, second.Name)
		Expect([]string{first.Spec.AgentRef.String(), second.Spec.AgentRef.String(), third.Spec.AgentRef.String()}).To(
			Equal([]string{l.shared(), agent, l.shared()}))
		Expect(third.Status.ToolCalls).To(BeEmpty(), "it has no sub-agent to call")

		By("breaking the loop")
		change(ctx, l.owner, helper, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Tools = nil })
		Eventually(l.team.tools(ctx, agent)).WithContext(ctx).Should(HavePrefix("True Resolved: all tool servers"),
			"its caller is checked again")
	}, SpecTimeout(2*patience))

	It("needs the consent of its own sub-agents for the namespace that asks", func(ctx SpecContext) {
		l := lend(ctx, delegatingModel, everyNamespace)
		l.owner.create(ctx, newAgent("deep"))
		change(ctx, l.owner, helper, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) {
			a.Spec.Tools = []v1alpha1.AgentTool{{AgentRef: &v1alpha1.SharedReference{Name: "deep"}, Name: helper}}
		})
		Eventually(l.owner.tools(ctx, helper)).WithContext(ctx).Should(HavePrefix("True "), "in its own namespace it needs no consent")
		l.team.create(ctx, newTurn("parent", asking("delegate delegate subtask")))
		l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonWaitingForSubAgent)
		c := l.team.awaitState(ctx, l.team.awaitChild(ctx, "parent").Name, v1alpha1.TurnReasonWaitingForAgent)
		Expect(message(c)).To(Equal(refusal(l.owner.namespace+"/deep", l.team.namespace)))
		change(ctx, l.owner, "deep", &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.AllowedNamespaces = everyNamespace })
		l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		deep := l.team.awaitChild(ctx, c.Name)
		Expect(deep.Spec.AgentRef.String()).To(Equal(l.owner.namespace + "/deep"))
		Expect(deep.Status.Result.Text).To(Equal("The answer is 42."))
	}, SpecTimeout(2*patience))

	It("counts for the Budgets of the namespace that asks", func(ctx SpecContext) {
		l := lend(ctx, `rules: [{reply: {text: "Fine."}}]`, everyNamespace)
		wide := func(b *v1alpha1.Budget) { b.Spec.Limits.Turns = new(int64(100)) }
		l.owner.create(ctx, newBudget("owners", wide))
		l.team.create(ctx, newBudget("all", wide), newBudget("own", wide, ofAgents(helper)),
			newBudget("shared", wide, ofAgents(l.shared())))
		l.team.create(ctx, newTurn("parent", asking("delegate subtask")))
		l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		for _, b := range []struct {
			env   *testEnv
			name  string
			turns int64
		}{{l.team, "all", 2}, {l.team, "shared", 1}, {l.team, "own", 0}, {l.owner, "owners", 0}} {
			Eventually(func(g Gomega) {
				var got v1alpha1.Budget
				g.Expect(apiClient.Get(ctx, b.env.key(b.name), &got)).To(Succeed())
				g.Expect(got.Status.Spent).NotTo(BeNil())
				g.Expect(got.Status.Spent.Turns).To(Equal(b.turns), b.name)
			}).WithContext(ctx).Should(Succeed())
		}

		By("using the budget up")
		change(ctx, l.team, "shared", &v1alpha1.Budget{}, func(b *v1alpha1.Budget) {
			b.Spec.Limits.Turns = new(int64(1))
			rejecting(b)
		})
		l.team.awaitReason(ctx, "shared", v1alpha1.ConditionExceeded, v1alpha1.ReasonLimitReached)
		l.team.create(ctx, newTurn("second", asking("delegate subtask")))
		l.team.awaitState(ctx, "second", v1alpha1.TurnReasonCompleted)
		Expect(l.team.awaitChild(ctx, "second").StateReason()).To(Equal(v1alpha1.TurnReasonBudgetExceeded))
	}, SpecTimeout(2*patience))

	It("does not reveal the keys of its owner", func(ctx SpecContext) {
		const token = "tool-token-9876543210"
		l := lend(ctx, `
rules:
- when: {contains: "subtask fail"}
  fault: {status: 400, message: "I know `+token+`"}
- when: {toolMessages: 0}
  reply: {toolCalls: [{name: look}]}
- reply: {text: "The key is `+token+` and `+platformKey+`."}
`, everyNamespace)
		host := newToolHost("look")
		host.token.Store(new(token))
		l.owner.create(ctx, newSecret("token", token), newToolServer("tickets", host.url, func(s *v1alpha1.ToolServer) {
			s.Spec.CredentialsRef = &v1alpha1.SecretKeyReference{Name: "token", Key: keyName}
		}))
		change(ctx, l.owner, helper, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) {
			a.Spec.Tools = []v1alpha1.AgentTool{{ServerRef: &v1alpha1.SharedReference{Name: "tickets"}}}
		})
		Eventually(l.owner.tools(ctx, helper)).WithContext(ctx).Should(HavePrefix("True "))
		l.team.create(ctx, newTurn("parent", asking("delegate subtask")), newTurn("failing", asking("delegate subtask fail")))
		l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		l.team.awaitState(ctx, "failing", v1alpha1.TurnReasonCompleted)
		c := l.team.awaitChild(ctx, "parent")
		Expect(outcomes(c)).To(Equal([]string{"look Succeeded"}))
		Expect(c.Status.Result.Text).To(Equal("The key is [redacted] and [redacted]."))
		Expect(l.team.awaitChild(ctx, "failing").StateReason()).To(Equal(v1alpha1.TurnReasonModelFailed))
		for name, text := range l.team.leftovers(ctx, l.runningManager) {
			for _, key := range []string{token, platformKey} {
				Expect(text).NotTo(ContainSubstring(key), "in %s", name)
			}
		}
		Expect(bodies(l.team)).NotTo(Or(ContainSubstring(token), ContainSubstring(platformKey)), "in the requests of the caller")
	}, SpecTimeout(2*patience))

	It("has the approvers of its owner, also after a restart", func(ctx SpecContext) {
		var calls atomic.Int64
		l := &lending{owner: newTestEnv(ctx, deletingModel), team: newTestEnv(ctx, delegatingModel)}
		l.restart(deletes(&calls))
		l.owner.create(ctx, newSecret(secretName, platformKey), l.owner.newProvider(provider), newProfile(profile),
			newAgent(helper, func(a *v1alpha1.Agent) {
				a.Spec.AllowedNamespaces = everyNamespace
				a.Spec.Approval = &v1alpha1.AgentApproval{Approvers: &v1alpha1.Approvers{Users: []string{"jane"}}}
			}))
		l.team.create(ctx, l.team.basics(l.withHelper())...)
		l.team.create(ctx, newTurn("parent", asking("delegate subtask delete")))
		l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonWaitingForSubAgent)
		c := l.team.awaitState(ctx, l.team.awaitChild(ctx, "parent").Name, v1alpha1.TurnReasonAwaitingApproval)

		By("restarting, and asking for the approval of users whom the owner does not name")
		l.restart()
		change(ctx, l.owner, helper, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Approval.Approvers.Users = []string{"grace"} })
		awaitChecked(ctx, l.owner, &v1alpha1.Agent{}, helper, conditionsOfAgent)
		l.team.decide(ctx, c, 0, v1alpha1.ApprovalApproved)
		Eventually(func() string { return message(l.team.turn(ctx, c.Name)) }).WithContext(ctx).Should(
			ContainSubstring(`"jane" is not an approver of Agent "` + l.shared() + `"`))
		Expect(calls.Load()).To(BeZero())
		change(ctx, l.owner, helper, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Approval = nil })
		t := l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
		Expect(t.Status.ToolCalls).To(HaveLen(1))
		Expect(t.Status.ToolCalls[0].Turn).To(Equal(c.Name), "the call has found its Turn again")
	}, SpecTimeout(2*patience))
})
