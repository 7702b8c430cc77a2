package controller_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// member is a member of a team: a ServiceAccount of its namespace, with a token of the API server.
type member struct {
	client.Client
	// user is the name by which the API server knows the member.
	user string
}

// addMember creates a member of the team of this namespace.
func (s *testEnv) addMember(ctx SpecContext, name string) member {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	Expect(apiClient.Create(ctx, account)).To(Succeed())
	token := &authenticationv1.TokenRequest{}
	Expect(apiClient.SubResource("token").Create(ctx, account, token)).To(Succeed())
	config := rest.AnonymousClientConfig(apiConfig)
	config.BearerToken = token.Status.Token
	c, err := client.New(config, client.Options{Scheme: apiClient.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	return member{c, "system:serviceaccount:" + s.namespace + ":" + name}
}

// grant creates a Role with these rules and a RoleBinding that gives it to members, in this namespace.
func (s *testEnv) grant(ctx SpecContext, role string, rules []rbacv1.PolicyRule, members ...member) {
	GinkgoHelper()
	s.create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: role}, Rules: rules})
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	}
	for _, m := range members {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: m.user})
	}
	s.create(ctx, binding)
}

// peopleRules returns the rules of a role of config/rbac/people_roles.yaml.
func peopleRules(role string) []rbacv1.PolicyRule {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "rbac", "people_roles.yaml"))
	Expect(err).NotTo(HaveOccurred())
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var found rbacv1.ClusterRole
		Expect(yaml.UnmarshalStrict([]byte(document), &found)).To(Succeed())
		if found.Labels["capstan.dev/role"] == role {
			return found.Rules
		}
	}
	Fail("there is no role " + role)
	return nil
}

// shipped reads an object of config.
func shipped[T client.Object](object T, path ...string) T {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", "..", "config"}, path...)...))
	Expect(err).NotTo(HaveOccurred())
	Expect(yaml.UnmarshalStrict(text, object)).To(Succeed())
	return object
}

// turnOfAgent returns a Turn of an Agent.
func (s *testEnv) turnOfAgent(name, agent string, change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	t := newTurn(name, change...)
	t.Namespace, t.Spec.AgentRef.Name = s.namespace, agent
	return t
}

// The policies apply to the whole cluster, so no other spec may run.
var _ = Describe("Two teams with tokens of the API server", Serial, func() {
	It("cannot use each other's Agents or keys, ask in another's name, approve their own calls, or overspend", func(ctx SpecContext) {
		helpdesk, research := newTestEnv(ctx, deletingModel), newTestEnv(ctx, deletingModel)
		ada, grace, eve := helpdesk.addMember(ctx, "ada"), helpdesk.addMember(ctx, "grace"), research.addMember(ctx, "eve")
		author, approver := peopleRules("turn-author"), peopleRules("approver")
		helpdesk.grant(ctx, "author", author, ada)
		helpdesk.grant(ctx, "approver", approver, ada, grace)
		research.grant(ctx, "author", slices.Concat(author, approver, peopleRules("agent-author"), peopleRules("connection-author")), eve)

		By("installing the policies")
		install(ctx, shipped(&admissionv1.ValidatingAdmissionPolicy{}, "policy", "requester_policy.yaml"))
		bound := shipped(&admissionv1.ValidatingAdmissionPolicyBinding{}, "policy", "requester_binding.yaml")
		install(ctx, bound)
		install(ctx, shipped(&admissionv1.MutatingAdmissionPolicy{}, "requester", "requester_mutation.yaml"))
		install(ctx, shipped(&admissionv1.MutatingAdmissionPolicyBinding{}, "requester", "requester_mutation_binding.yaml"))
		install(ctx, shipped(&admissionv1.ValidatingAdmissionPolicy{}, "usepolicy", "agent_use_policy.yaml"))
		install(ctx, shipped(&admissionv1.ValidatingAdmissionPolicyBinding{}, "usepolicy", "agent_use_binding.yaml"))
		install(ctx, newPolicy(helpdesk.namespace))
		deciding := newPolicyBinding(helpdesk.namespace)
		install(ctx, deciding)

		By("permitting eve to create Turns in the other namespace, but not to use its Agents")
		helpdesk.grant(ctx, "creator", []rbacv1.PolicyRule{{
			APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"create"},
		}}, eve)
		Eventually(func() error { return eve.Create(ctx, helpdesk.turnOfAgent("hers", "support"), client.DryRunAll) }).
			WithContext(ctx).Should(MatchError(ContainSubstring(`user "` + eve.user + `" may not use Agent "support" in namespace "` +
			helpdesk.namespace + `"`)))

		By("forging a requester")
		Eventually(func() error {
			return eve.Create(ctx, research.turnOfAgent("forged", "support", func(t *v1alpha1.Turn) {
				t.Spec.RequestedBy = &v1alpha1.Requester{Username: ada.user}
			}), client.DryRunAll)
		}).WithContext(ctx).Should(MatchError(ContainSubstring(`spec.requestedBy.username must be "` + eve.user + `", your user name`)))
		Eventually(func(g Gomega) {
			t := research.turnOfAgent("own", "support")
			g.Expect(eve.Create(ctx, t, client.DryRunAll)).To(Succeed())
			g.Expect(t.Requester()).To(Equal(eve.user), "the API server sets it")
		}).WithContext(ctx).Should(Succeed())

		By("reading the other team's key")
		var calls atomic.Int64
		m := helpdesk.run(deletes(&calls), underPolicy(helpdesk.namespace), func(o *manager.Options) {
			o.WatchNamespaces = []string{helpdesk.namespace, research.namespace}
		})
		objects := helpdesk.basics()
		var key corev1.Secret
		Expect(apierrors.IsForbidden(eve.Get(ctx, helpdesk.key(secretName), &key))).To(BeTrue())
		Expect(apierrors.IsForbidden(ada.Get(ctx, helpdesk.key(secretName), &key))).To(BeTrue(), "even in her own namespace")

		By("making Capstan send the key to her own endpoint")
		thief := research.newProvider("thief")
		thief.Namespace = research.namespace
		Expect(eve.Create(ctx, thief)).To(Succeed())
		awaitText(ctx, research, &v1alpha1.ModelProvider{}, "thief", providerReadiness,
			And(HavePrefix("SecretNotFound: "), ContainSubstring(`in namespace "`+research.namespace+`"`)))
		Expect(research.fake.Stats().Requests).To(BeZero())
		foreign := func(a *v1alpha1.Agent) { a.Spec.Models[0].ProviderRef.Namespace = helpdesk.namespace }
		for _, o := range []client.Object{newProfile(profile), newAgent(agent, foreign)} {
			o.SetNamespace(research.namespace)
			Expect(eve.Create(ctx, o)).To(Succeed())
		}

		By("approving her own call")
		for _, o := range objects {
			if a, ok := o.(*v1alpha1.Agent); ok {
				a.Spec.Approval = &v1alpha1.AgentApproval{ForbidRequester: true}
			}
		}
		helpdesk.create(ctx, objects...)
		awaitText(ctx, research, &v1alpha1.Agent{}, agent, func(a *v1alpha1.Agent) string { return readiness(a.Status.Conditions) },
			HavePrefix("ReferenceNotAllowed: "))
		awaitPolicy(ctx, bound)
		awaitPolicy(ctx, deciding)
		t := newTurn("delete")
		t.Namespace = helpdesk.namespace
		Expect(ada.Create(ctx, t)).To(Succeed())
		t = helpdesk.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		Expect(t.Requester()).To(Equal(ada.user))
		decides := func(m member) {
			GinkgoHelper()
			Expect(m.Create(ctx, helpdesk.decision(t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) {
				a.Spec.DecidedBy = m.user
			}))).To(Succeed())
		}
		Expect(ada.Create(ctx, helpdesk.decision(t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) {
			a.Spec.DecidedBy = grace.user
		}))).To(MatchError(ContainSubstring(`spec.decidedBy must be "` + ada.user + `", your user name`)))
		Expect(apierrors.IsForbidden(eve.Create(ctx, helpdesk.decision(t, 0, v1alpha1.ApprovalApproved, func(a *v1alpha1.ToolApproval) {
			a.Spec.DecidedBy = eve.user
		})))).To(BeTrue(), "she is an approver in her own namespace only")
		decides(ada)
		awaitText(ctx, helpdesk, &v1alpha1.Turn{}, "delete", message, And(
			ContainSubstring("is not used: Agent "),
			ContainSubstring(`forbids requesters to approve their own calls (approval.forbidRequester), and "`+ada.user+
				`" is the requester of this Turn; another approver must decide`)))
		Expect(calls.Load()).To(BeZero())

		By("letting another person approve")
		decides(grace)
		t = helpdesk.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
		Expect(t.Status.ToolCalls[0].DecidedBy).To(Equal(grace.user))

		By("spending more than the Budget of her team, with the other team's key")
		const limit, turns = 8000, 20
		research.create(ctx, newBudget("team", rejecting, func(b *v1alpha1.Budget) {
			b.Spec.Limits = v1alpha1.BudgetLimits{Tokens: new(int64(limit))}
		}))
		research.awaitReason(ctx, "team", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
		before := helpdesk.fake.Stats().Requests
		change(ctx, helpdesk, provider, &v1alpha1.ModelProvider{}, func(p *v1alpha1.ModelProvider) {
			p.Spec.AllowedNamespaces = allowFrom(v1alpha1.NamespacesFromAll, nil)
		})
		awaitText(ctx, research, &v1alpha1.Agent{}, agent, func(a *v1alpha1.Agent) string { return readiness(a.Status.Conditions) },
			HavePrefix("Ready: "))
		var budget v1alpha1.Budget
		Expect(apiClient.Get(ctx, research.key("team"), &budget)).To(Succeed())
		Expect(apierrors.IsForbidden(eve.Delete(ctx, &budget))).To(BeTrue())
		budget.Spec.Limits.Tokens = new(int64(1_000_000))
		Expect(apierrors.IsForbidden(eve.Update(ctx, &budget))).To(BeTrue())
		for _, t := range newTurns(turns) {
			t.SetNamespace(research.namespace)
			Expect(eve.Create(ctx, t)).To(Succeed())
		}
		ended := map[string]int{}
		var used int64
		var all v1alpha1.TurnList
		Eventually(func(g Gomega) {
			g.Expect(apiClient.List(ctx, &all, client.InNamespace(research.namespace))).To(Succeed())
			g.Expect(all.Items).To(HaveLen(turns))
			g.Expect(all.Items).To(HaveEach(HaveField("Status.CompletionTime", Not(BeNil()))))
		}).WithContext(ctx).Should(Succeed())
		for _, t := range all.Items {
			ended[t.StateReason()]++
			if t.Status.Usage != nil {
				used += t.Status.Usage.TotalTokens
			}
			Expect(t.Requester()).To(Equal(eve.user))
		}
		Expect(ended).To(And(HaveLen(2), HaveKey(v1alpha1.TurnReasonCompleted), HaveKey(v1alpha1.TurnReasonBudgetExceeded)))
		Expect(used).To(And(BeNumerically(">", 0), BeNumerically("<=", limit)))
		Expect(helpdesk.fake.Stats().Requests-before).To(BeEquivalentTo(ended[v1alpha1.TurnReasonCompleted]),
			"no request beyond the Budget")
		awaitText(ctx, research, &v1alpha1.Budget{}, "team", func(b *v1alpha1.Budget) string {
			return fmt.Sprint(b.Status.Spent.Tokens)
		}, Equal(fmt.Sprint(used)))
		Expect(research.fake.Stats().Requests).To(BeZero(), "her own endpoint has never been sent a key")
		Expect(m.logs.String()).NotTo(ContainSubstring(apiKey))
	}, SpecTimeout(6*patience))
})
