package api_test

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// createShipped creates the objects of a file in config and deletes them after the test.
func createShipped(ctx SpecContext, path ...string) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", "..", "config"}, path...)...))
	Expect(err).NotTo(HaveOccurred())
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		object := &unstructured.Unstructured{}
		Expect(yaml.UnmarshalStrict([]byte(document), &object.Object)).To(Succeed())
		Expect(apiClient.Create(ctx, object, client.FieldValidation("Strict"))).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, object)).To(Succeed()) })
	}
}

// clientOf returns a client of a user without special permissions.
func clientOf(name string) client.Client {
	GinkgoHelper()
	config := rest.CopyConfig(controlPlane.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	c, err := client.New(config, client.Options{Scheme: apiClient.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	return c
}

// bindRole binds users to a ClusterRole in the namespace default.
func bindRole(ctx SpecContext, role string, users ...string) {
	GinkgoHelper()
	subjects := make([]any, 0, len(users))
	for _, name := range users {
		subjects = append(subjects, map[string]any{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name})
	}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
		"metadata": map[string]any{"name": role, "namespace": "default"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
		"subjects": subjects,
	}}
	Expect(apiClient.Create(ctx, binding)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, binding)).To(Succeed()) })
}

var _ = Describe("An approver", func() {
	decide := func(ctx SpecContext, user, decidedBy string) error {
		GinkgoHelper()
		return clientOf(user).Create(ctx, merged(approvalBase, `spec: {decidedBy: "`+decidedBy+`"}`), client.DryRunAll)
	}

	BeforeEach(func(ctx SpecContext) {
		createShipped(ctx, "policy", "toolapproval_policy.yaml")
		// The policy is removed with its binding. Wait until it is no longer in force, because it must not affect
		// other tests.
		DeferCleanup(func(ctx SpecContext) {
			Eventually(func() error { return apiClient.Create(ctx, merged(approvalBase, `{}`), client.DryRunAll) }).
				WithContext(ctx).WithTimeout(patience).Should(Succeed())
		})
		createShipped(ctx, "policy", "toolapproval_binding.yaml")
		createShipped(ctx, "rbac", "people_roles.yaml")
		bindRole(ctx, "capstan-approver", "ada", "bob")
		// A new policy takes effect a moment later.
		Eventually(func() error { return decide(ctx, "ada", "bob") }).WithContext(ctx).WithTimeout(patience).
			Should(MatchError(ContainSubstring("spec.decidedBy must be")))
	})

	It("must be the user of the request", func(ctx SpecContext) {
		Expect(decide(ctx, "ada", "ada")).To(Succeed())
		Expect(decide(ctx, "bob", "bob")).To(Succeed())

		err := decide(ctx, "ada", "bob")
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring(
			`spec.decidedBy must be "ada", your user name: you cannot decide as another user`)))
		Expect(decide(ctx, "bob", "ada")).To(MatchError(ContainSubstring(`spec.decidedBy must be "bob"`)))
		Expect(decide(ctx, "ada", "Ada")).NotTo(Succeed(), "names are case-sensitive")
		Expect(decide(ctx, "ada", "ada ")).NotTo(Succeed(), "white space counts")
	}, SpecTimeout(2*patience))

	It("must be the user of the request even with all permissions", func(ctx SpecContext) {
		Expect(apiClient.Create(ctx, merged(approvalBase, `spec: {decidedBy: ada}`), client.DryRunAll)).
			To(MatchError(ContainSubstring("spec.decidedBy must be")))
	}, SpecTimeout(2*patience))

	It("may read the Turn and its call, and do nothing else", func(ctx SpecContext) {
		allowed := func(user, verb, resource string) bool {
			GinkgoHelper()
			review := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
				"spec": map[string]any{"resourceAttributes": attributes(verb, resource)},
			}}
			Expect(clientOf(user).Create(ctx, review)).To(Succeed())
			allowed, _, err := unstructured.NestedBool(review.Object, "status", "allowed")
			Expect(err).NotTo(HaveOccurred())
			return allowed
		}
		for _, permission := range [][2]string{
			{"create", "toolapprovals"}, {"list", "toolapprovals"}, {"watch", "turns"}, {"get", "turns/log"},
		} {
			Expect(allowed("ada", permission[0], permission[1])).To(BeTrue(), "an approver may %s %s", permission[0], permission[1])
			Expect(allowed("eve", permission[0], permission[1])).To(BeFalse(), "other users may not %s %s", permission[0], permission[1])
		}
		for _, permission := range [][2]string{
			{"update", "toolapprovals"},
			{"delete", "toolapprovals"},
			{"create", "turns"},
			{"patch", "turns"},
			{"update", "turns/status"},
			{"get", "agents"},
		} {
			Expect(allowed("ada", permission[0], permission[1])).To(BeFalse(), "an approver may not %s %s", permission[0], permission[1])
		}
		Expect(decide(ctx, "eve", "eve")).To(MatchError(ContainSubstring("cannot create resource")))
	}, SpecTimeout(2*patience))
})

// attributes returns the attributes of an access review for a resource of Capstan, or a subresource, in the
// namespace default.
func attributes(verb, resource string) map[string]any {
	name, subresource, _ := strings.Cut(resource, "/")
	return map[string]any{"namespace": "default", "verb": verb, "group": "capstan.dev", "resource": name, "subresource": subresource}
}
