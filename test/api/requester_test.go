package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// asks creates a Turn of user with a patch, and returns the requester that the API server would store.
func asks(ctx SpecContext, user, patch string) (requester string, err error) {
	GinkgoHelper()
	t := merged(turnBase, patch)
	t.SetName("")
	t.SetGenerateName("asked-")
	if err := as(user).Create(ctx, t, client.DryRunAll); err != nil {
		return "", err
	}
	requester, _, err = unstructured.NestedString(t.Object, "spec", "requestedBy", "username")
	Expect(err).NotTo(HaveOccurred())
	return requester, nil
}

const (
	named = `spec: {requestedBy: {username: "NAME"}}`
	// child has a Turn as its controller, like the Turn of a sub-agent.
	child = `
metadata: {ownerReferences: [{apiVersion: capstan.dev/v1alpha1, kind: Turn, name: parent, uid: u, controller: true}]}
spec: {requestedBy: {username: "NAME"}}
`
	orphan = `metadata: {ownerReferences: [{apiVersion: capstan.dev/v1alpha1, kind: Turn, name: parent, uid: u, controller: true}]}`
)

func naming(patch, user string) string { return strings.Replace(patch, "NAME", user, 1) }

// inForce installs policies and waits until they are in force. It waits again until they are gone, because other tests
// must not meet them.
func inForce(ctx SpecContext, are func(SpecContext) bool, files ...[2]string) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) {
		Eventually(are).WithContext(ctx).WithTimeout(patience).Should(BeFalse())
	})
	for _, file := range files {
		createShipped(ctx, file[0], file[1])
	}
	Eventually(are).WithContext(ctx).WithTimeout(patience).Should(BeTrue())
}

// managerOf binds a user to the rights of the manager.
func managerOf(ctx SpecContext, user string) {
	GinkgoHelper()
	for kind, object := range map[string]map[string]any{
		"ClusterRole": {"rules": []any{
			map[string]any{"apiGroups": []any{"capstan.dev"}, "resources": []any{"requesters"}, "verbs": []any{"impersonate"}},
			map[string]any{"apiGroups": []any{"capstan.dev"}, "resources": []any{"agents"}, "verbs": []any{"use"}},
			map[string]any{"apiGroups": []any{"capstan.dev"}, "resources": []any{"turns"}, "verbs": []any{"create"}},
		}},
		"ClusterRoleBinding": {
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
			"subjects": []any{map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}},
		},
	} {
		o := &unstructured.Unstructured{Object: object}
		o.SetAPIVersion("rbac.authorization.k8s.io/v1")
		o.SetKind(kind)
		o.SetName(user)
		Expect(apiClient.Create(ctx, o)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, o)).To(Succeed()) })
	}
}

var _ = Describe("Who asks", func() {
	BeforeEach(func(ctx SpecContext) {
		createShipped(ctx, "rbac", "people_roles.yaml")
		bound(ctx, "capstan-turn-author", "ada", "bob", "o'ada \"x\"", "ünï:cöde", strings.Repeat("u", 512), strings.Repeat("u", 513))
		managerOf(ctx, "the-manager")
		inForce(ctx, func(ctx SpecContext) bool {
			_, err := asks(ctx, "bob", naming(named, "ada"))
			return err != nil
		}, [2]string{"policy", "requester_policy.yaml"}, [2]string{"policy", "requester_binding.yaml"})
	})

	It("is the user who creates the Turn, or not said", func(ctx SpecContext) {
		for _, user := range []string{"ada", `o'ada \"x\"`, "ünï:cöde"} {
			name := strings.ReplaceAll(user, `\"`, `"`)
			Expect(asks(ctx, name, naming(named, user))).To(Equal(name))
		}
		Expect(asks(ctx, "ada", `{}`)).To(BeEmpty(), "where the API server does not set it")
		_, err := asks(ctx, "ada", naming(named, "bob"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring(`spec.requestedBy.username must be "ada", your user name, ` +
			`or spec.requestedBy must be absent: you cannot ask as another user`)))
		for _, name := range []string{"Ada", "ada ", " ada", "a\\u0301da", "system:serviceaccount:default:ada"} {
			_, err := asks(ctx, "ada", naming(named, name))
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%q: %v", name, err)
		}
	}, SpecTimeout(2*patience))

	It("is another user only for the Turn of a sub-agent that the manager creates", func(ctx SpecContext) {
		Expect(asks(ctx, "the-manager", naming(child, "ada"))).To(Equal("ada"))
		_, err := asks(ctx, "the-manager", naming(named, "ada"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "it is not the Turn of a sub-agent: %v", err)
		_, err = asks(ctx, "bob", naming(child, "ada"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "bob is not the manager: %v", err)
		_, err = asks(ctx, "the-manager", naming(strings.Replace(child, "capstan.dev/v1alpha1", "other.example/v1", 1), "ada"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "a Turn of another API group is no Turn: %v", err)
	}, SpecTimeout(2*patience))

	It("cannot ask an Agent of another namespace: only the manager can, for the Turn of a sub-agent", func(ctx SpecContext) {
		const foreign = `spec: {agentRef: {name: helper, namespace: platform}, depth: 1}`
		const foreignChild = foreign + `
metadata: {ownerReferences: [{apiVersion: capstan.dev/v1alpha1, kind: Turn, name: parent, uid: u, controller: true}]}
`
		_, err := asks(ctx, "the-manager", foreignChild)
		Expect(err).NotTo(HaveOccurred())
		for user, patch := range map[string]string{"the-manager": foreign, "ada": foreignChild, "bob": foreign} {
			_, err := asks(ctx, user, patch)
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", user, err)
			Expect(err).To(MatchError(ContainSubstring("spec.agentRef.namespace must be absent: only Capstan creates Turns of " +
				"Agents of other namespaces, for calls of sub-agents")))
		}
	}, SpecTimeout(2*patience))

	It("cannot be changed later, by an update or by another field manager", func(ctx SpecContext) {
		t := merged(turnBase, naming(named, "ada"))
		t.SetName("")
		t.SetGenerateName("asked-")
		Expect(as("ada").Create(ctx, t)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, t)).To(Succeed()) })
		for _, patch := range []string{naming(named, "bob"), `spec: {requestedBy: null}`} {
			Expect(change(ctx, t, patch)).To(MatchError(ContainSubstring("requestedBy must not change")),
				"even for users who may do anything")
		}
		applied := merged(turnBase, naming(named, "bob"))
		applied.SetName(t.GetName())
		err := as("bob").Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("bob"), client.ForceOwnership)
		Expect(err).To(MatchError(ContainSubstring("requestedBy must not change")))
	}, SpecTimeout(2*patience))

	It("is set by an API server that can set fields", func(ctx SpecContext) {
		inForce(ctx, func(ctx SpecContext) bool {
			requester, err := asks(ctx, "ada", `{}`)
			return err == nil && requester == "ada"
		}, [2]string{"requester", "requester_mutation.yaml"}, [2]string{"requester", "requester_mutation_binding.yaml"})

		Expect(asks(ctx, "ada", naming(named, "ada"))).To(Equal("ada"))
		_, err := asks(ctx, "ada", naming(named, "bob"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "a forged name stays refused: %v", err)
		Expect(asks(ctx, `o'ada "x"`, `{}`)).To(Equal(`o'ada "x"`))
		Expect(asks(ctx, strings.Repeat("u", 512), `{}`)).To(Equal(strings.Repeat("u", 512)))
		Expect(asks(ctx, strings.Repeat("u", 513), `{}`)).To(BeEmpty(), "a name beyond the bound does not prevent Turns")
		Expect(asks(ctx, "bob", orphan)).To(Equal("bob"), "an owner does not make it the Turn of a sub-agent")
		Expect(asks(ctx, "the-manager", orphan)).To(BeEmpty(), "a sub-agent's Turn has the requester of its parent, or none")
		Expect(asks(ctx, "the-manager", naming(child, "ada"))).To(Equal("ada"))

		By("replacing a Turn by a manifest that does not have the field")
		t := merged(turnBase, `{}`)
		t.SetName("")
		t.SetGenerateName("asked-")
		Expect(as("ada").Create(ctx, t)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, t)).To(Succeed()) })
		unstructured.RemoveNestedField(t.Object, "spec", "requestedBy")
		Expect(as("bob").Update(ctx, t)).To(Succeed())
		Expect(t.Object["spec"]).To(HaveKeyWithValue("requestedBy", map[string]any{"username": "ada"}), "bob did not become the requester")
	}, SpecTimeout(3*patience))
})

var _ = Describe("Who may use an Agent", func() {
	It("has the verb use on it", func(ctx SpecContext) {
		createShipped(ctx, "rbac", "people_roles.yaml")
		managerOf(ctx, "the-manager")
		bound(ctx, "capstan-turn-author", "ada")
		creator := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": "creator"},
			"rules": []any{
				map[string]any{"apiGroups": []any{"capstan.dev"}, "resources": []any{"turns"}, "verbs": []any{"create"}},
				map[string]any{
					"apiGroups": []any{"capstan.dev"}, "resources": []any{"agents"}, "verbs": []any{"use"},
					"resourceNames": []any{"other"},
				},
			},
		}}
		Expect(apiClient.Create(ctx, creator)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, creator)).To(Succeed()) })
		bound(ctx, "creator", "bob")
		inForce(ctx, func(ctx SpecContext) bool {
			_, err := asks(ctx, "bob", `{}`)
			return err != nil
		}, [2]string{"usepolicy", "agent_use_policy.yaml"}, [2]string{"usepolicy", "agent_use_binding.yaml"})

		_, err := asks(ctx, "bob", `{}`)
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring(`user "bob" may not use Agent "support" in namespace "default": ` +
			`whoever creates a Turn needs the verb use on its Agent: ask for ClusterRole capstan-turn-author in this namespace, ` +
			`or for a Role with the verb use on agents.capstan.dev (resourceNames "support")`)))
		_, err = asks(ctx, "bob", `spec: {agentRef: {name: other}}`)
		Expect(err).NotTo(HaveOccurred(), "the right is for one Agent")
		_, err = asks(ctx, "ada", `{}`)
		Expect(err).NotTo(HaveOccurred(), "the role turn-author has the verb")
		_, err = asks(ctx, "the-manager", orphan)
		Expect(err).NotTo(HaveOccurred(), "the manager creates the Turns of sub-agents")

		By("naming an Agent of another namespace")
		for _, user := range []string{"ada", "bob"} {
			_, err = asks(ctx, user, `spec: {agentRef: {name: other, namespace: platform}, depth: 1}`)
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s has the verb in this namespace only: %v", user, err)
			Expect(err).To(MatchError(ContainSubstring(`user "` + user + `" may not use Agent "other" in namespace "platform"`)))
		}
		_, err = asks(ctx, "the-manager", `spec: {agentRef: {name: other, namespace: platform}, depth: 1}`)
		Expect(err).NotTo(HaveOccurred())
	}, SpecTimeout(2*patience))
})

var _ = Describe("The groups of who decides", func() {
	It("are those that the API server knows", func(ctx SpecContext) {
		createShipped(ctx, "rbac", "people_roles.yaml")
		bound(ctx, "capstan-approver", "ada")
		decide := func(ctx SpecContext, groups string) error {
			return as("ada").Create(ctx, merged(approvalBase, `spec: {decidedBy: ada, decidedByGroups: [`+groups+`]}`), client.DryRunAll)
		}
		inForce(ctx, func(ctx SpecContext) bool { return decide(ctx, "leads") != nil },
			[2]string{"policy", "toolapproval_policy.yaml"}, [2]string{"policy", "toolapproval_binding.yaml"})

		Expect(decide(ctx, `"system:authenticated"`)).To(Succeed())
		Expect(decide(ctx, `"system:authenticated", leads`)).To(
			MatchError(ContainSubstring("spec.decidedByGroups must be groups of yours")))
	}, SpecTimeout(2*patience))
})
