package api_test

import (
	"errors"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// createAs creates a Turn as a user, with a patch, in a dry run. It returns the requester that the API server would
// store.
func createAs(ctx SpecContext, user, patch string) (requester string, err error) {
	GinkgoHelper()
	t := merged(turnBase, patch)
	t.SetName("")
	t.SetGenerateName("asked-")
	if err := clientOf(user).Create(ctx, t, client.DryRunAll); err != nil {
		return "", err
	}
	requester, _, err = unstructured.NestedString(t.Object, "spec", "requestedBy", "username")
	Expect(err).NotTo(HaveOccurred())
	return requester, nil
}

const (
	// named has a requester: see withRequester.
	named = `spec: {requestedBy: {username: "NAME"}}`
	// child has a requester, and a Turn as its controller, like the Turn of a sub-agent.
	child = `
metadata: {ownerReferences: [{apiVersion: capstan.dev/v1alpha1, kind: Turn, name: parent, uid: u, controller: true}]}
spec: {requestedBy: {username: "NAME"}}
`
	// childWithoutRequester has a Turn as its controller, and no requester.
	childWithoutRequester = `
metadata: {ownerReferences: [{apiVersion: capstan.dev/v1alpha1, kind: Turn, name: parent, uid: u, controller: true}]}
`
)

// withRequester replaces NAME in a patch by a user.
func withRequester(patch, user string) string { return strings.Replace(patch, "NAME", user, 1) }

// enforcePolicies installs policies and waits until they are in force: attempt must succeed without them, and fail with
// an error that contains effect when they are in force. After the test, enforcePolicies waits until they are no longer
// in force, because they must not affect other tests.
func enforcePolicies(ctx SpecContext, attempt func(SpecContext) error, effect string, files ...[2]string) {
	GinkgoHelper()
	// The API server applies the roles of the user a moment after they were created.
	Eventually(attempt).WithContext(ctx).WithTimeout(patience).Should(Succeed(), "without the policies, the attempt must succeed")
	DeferCleanup(func(ctx SpecContext) {
		Eventually(attempt).WithContext(ctx).WithTimeout(patience).Should(Succeed())
	})
	for _, file := range files {
		createShipped(ctx, file[0], file[1])
	}
	Eventually(attempt).WithContext(ctx).WithTimeout(patience).Should(MatchError(ContainSubstring(effect)))
}

// grantManagerPermissions gives a user the permissions of the manager that the policies for requesters check. It waits
// until the API server applies them.
func grantManagerPermissions(ctx SpecContext, user string) {
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
	Eventually(func(ctx SpecContext) error {
		_, err := createAs(ctx, user, `{}`)
		return err
	}).WithContext(ctx).WithTimeout(patience).Should(Succeed())
}

var _ = Describe("The requester of a Turn", func() {
	BeforeEach(func(ctx SpecContext) {
		createShipped(ctx, "rbac", "people_roles.yaml")
		bindRole(ctx, "capstan-turn-author", "ada", "bob", "o'ada \"x\"", "ünï:cöde", strings.Repeat("u", 512), strings.Repeat("u", 513))
		grantManagerPermissions(ctx, "the-manager")
		enforcePolicies(ctx, func(ctx SpecContext) error {
			_, err := createAs(ctx, "bob", withRequester(named, "ada"))
			return err
		}, `spec.requestedBy.username must be "bob"`,
			[2]string{"policy", "requester_policy.yaml"}, [2]string{"policy", "requester_binding.yaml"})
	})

	It("is the user who creates the Turn, or is absent", func(ctx SpecContext) {
		for _, user := range []string{"ada", `o'ada \"x\"`, "ünï:cöde"} {
			name := strings.ReplaceAll(user, `\"`, `"`)
			Expect(createAs(ctx, name, withRequester(named, user))).To(Equal(name))
		}
		Expect(createAs(ctx, "ada", `{}`)).To(BeEmpty(), "the API server does not set it here")
		_, err := createAs(ctx, "ada", withRequester(named, "bob"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring(`spec.requestedBy.username must be "ada", your user name, ` +
			`or spec.requestedBy must be absent: you cannot ask as another user`)))
		for _, name := range []string{"Ada", "ada ", " ada", "a\\u0301da", "system:serviceaccount:default:ada"} {
			_, err := createAs(ctx, "ada", withRequester(named, name))
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%q: %v", name, err)
		}
	}, SpecTimeout(2*patience))

	It("is another user only for the Turn of a sub-agent that the manager creates", func(ctx SpecContext) {
		Expect(createAs(ctx, "the-manager", withRequester(child, "ada"))).To(Equal("ada"))
		_, err := createAs(ctx, "the-manager", withRequester(named, "ada"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "the Turn is not the Turn of a sub-agent: %v", err)
		_, err = createAs(ctx, "bob", withRequester(child, "ada"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "bob is not the manager: %v", err)
		_, err = createAs(ctx, "the-manager", withRequester(strings.Replace(child, "capstan.dev/v1alpha1", "other.example/v1", 1), "ada"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "the parent must be of the API group capstan.dev: %v", err)
	}, SpecTimeout(2*patience))

	It("cannot use an Agent of another namespace: only the manager can, for the Turn of a sub-agent", func(ctx SpecContext) {
		const foreign = `spec: {agentRef: {name: helper, namespace: platform}, depth: 1}`
		const foreignChild = foreign + `
metadata: {ownerReferences: [{apiVersion: capstan.dev/v1alpha1, kind: Turn, name: parent, uid: u, controller: true}]}
`
		_, err := createAs(ctx, "the-manager", foreignChild)
		Expect(err).NotTo(HaveOccurred())
		for user, patch := range map[string]string{"the-manager": foreign, "ada": foreignChild, "bob": foreign} {
			_, err := createAs(ctx, user, patch)
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", user, err)
			Expect(err).To(MatchError(ContainSubstring("spec.agentRef.namespace must be absent: only Capstan creates Turns of " +
				"Agents of other namespaces, for calls of sub-agents")))
		}
	}, SpecTimeout(2*patience))

	It("cannot be changed later, by an update or by another field manager", func(ctx SpecContext) {
		t := merged(turnBase, withRequester(named, "ada"))
		t.SetName("")
		t.SetGenerateName("asked-")
		Expect(clientOf("ada").Create(ctx, t)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, t)).To(Succeed()) })
		for _, patch := range []string{withRequester(named, "bob"), `spec: {requestedBy: null}`} {
			Expect(change(ctx, t, patch)).To(MatchError(ContainSubstring("requestedBy must not change")),
				"even by users with all permissions")
		}
		applied := merged(turnBase, withRequester(named, "bob"))
		applied.SetName(t.GetName())
		err := clientOf("bob").Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("bob"),
			client.ForceOwnership)
		Expect(err).To(MatchError(ContainSubstring("requestedBy must not change")))
	}, SpecTimeout(2*patience))

	It("is set by an API server that supports MutatingAdmissionPolicies", func(ctx SpecContext) {
		const mutated = "the API server has set the requester"
		enforcePolicies(ctx, func(ctx SpecContext) error {
			requester, err := createAs(ctx, "ada", `{}`)
			if err == nil && requester == "ada" {
				err = errors.New(mutated)
			}
			return err
		}, mutated,
			[2]string{"requester", "requester_mutation.yaml"}, [2]string{"requester", "requester_mutation_binding.yaml"})

		Expect(createAs(ctx, "ada", withRequester(named, "ada"))).To(Equal("ada"))
		_, err := createAs(ctx, "ada", withRequester(named, "bob"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "a forged name is still rejected: %v", err)
		Expect(createAs(ctx, `o'ada "x"`, `{}`)).To(Equal(`o'ada "x"`))
		Expect(createAs(ctx, strings.Repeat("u", 512), `{}`)).To(Equal(strings.Repeat("u", 512)))
		Expect(createAs(ctx, strings.Repeat("u", 513), `{}`)).To(BeEmpty(), "a Turn is created although the name is too long")
		Expect(createAs(ctx, "bob", childWithoutRequester)).To(Equal("bob"),
			"an owner reference by a user does not make it the Turn of a sub-agent")
		Expect(createAs(ctx, "the-manager", childWithoutRequester)).To(BeEmpty(),
			"a sub-agent's Turn has the requester of its parent, or none")
		Expect(createAs(ctx, "the-manager", withRequester(child, "ada"))).To(Equal("ada"))

		By("replacing a Turn by a manifest that does not have the field")
		t := merged(turnBase, `{}`)
		t.SetName("")
		t.SetGenerateName("asked-")
		Expect(clientOf("ada").Create(ctx, t)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, t)).To(Succeed()) })
		unstructured.RemoveNestedField(t.Object, "spec", "requestedBy")
		Expect(clientOf("bob").Update(ctx, t)).To(Succeed())
		Expect(t.Object["spec"]).To(HaveKeyWithValue("requestedBy", map[string]any{"username": "ada"}), "bob did not become the requester")
	}, SpecTimeout(3*patience))
})

var _ = Describe("A user of an Agent", func() {
	It("needs the verb use on it", func(ctx SpecContext) {
		createShipped(ctx, "rbac", "people_roles.yaml")
		grantManagerPermissions(ctx, "the-manager")
		bindRole(ctx, "capstan-turn-author", "ada")
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
		bindRole(ctx, "creator", "bob")
		enforcePolicies(ctx, func(ctx SpecContext) error {
			_, err := createAs(ctx, "bob", `{}`)
			return err
		}, `user "bob" may not use Agent "support"`,
			[2]string{"usepolicy", "agent_use_policy.yaml"}, [2]string{"usepolicy", "agent_use_binding.yaml"})

		_, err := createAs(ctx, "bob", `{}`)
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring(`user "bob" may not use Agent "support" in namespace "default": ` +
			`whoever creates a Turn needs the verb use on its Agent: ask for ClusterRole capstan-turn-author in this namespace, ` +
			`or for a Role with the verb use on agents.capstan.dev (resourceNames "support")`)))
		_, err = createAs(ctx, "bob", `spec: {agentRef: {name: other}}`)
		Expect(err).NotTo(HaveOccurred(), "the permission is for one Agent")
		_, err = createAs(ctx, "ada", `{}`)
		Expect(err).NotTo(HaveOccurred(), "the role turn-author has the verb")
		_, err = createAs(ctx, "the-manager", childWithoutRequester)
		Expect(err).NotTo(HaveOccurred(), "the manager creates the Turns of sub-agents")

		By("naming an Agent of another namespace")
		for _, user := range []string{"ada", "bob"} {
			_, err = createAs(ctx, user, `spec: {agentRef: {name: other, namespace: platform}, depth: 1}`)
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s has the verb in this namespace only: %v", user, err)
			Expect(err).To(MatchError(ContainSubstring(`user "` + user + `" may not use Agent "other" in namespace "platform"`)))
		}
		_, err = createAs(ctx, "the-manager", `spec: {agentRef: {name: other, namespace: platform}, depth: 1}`)
		Expect(err).NotTo(HaveOccurred())
	}, SpecTimeout(2*patience))
})

var _ = Describe("The groups of an approver", func() {
	It("must be groups of the user of the request", func(ctx SpecContext) {
		createShipped(ctx, "rbac", "people_roles.yaml")
		bindRole(ctx, "capstan-approver", "ada")
		decide := func(ctx SpecContext, groups string) error {
			return clientOf("ada").Create(ctx, merged(approvalBase, `spec: {decidedBy: ada, decidedByGroups: [`+groups+`]}`),
				client.DryRunAll)
		}
		enforcePolicies(ctx, func(ctx SpecContext) error { return decide(ctx, "leads") },
			"spec.decidedByGroups must be groups of yours",
			[2]string{"policy", "toolapproval_policy.yaml"}, [2]string{"policy", "toolapproval_binding.yaml"})

		Expect(decide(ctx, `"system:authenticated"`)).To(Succeed())
		Expect(decide(ctx, `"system:authenticated", leads`)).To(
			MatchError(ContainSubstring("spec.decidedByGroups must be groups of yours")))
	}, SpecTimeout(2*patience))
})
