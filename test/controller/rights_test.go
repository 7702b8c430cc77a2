package controller_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// theRole is the name of the role of a test environment's own user.
const theRole = "manager"

// shippedRules returns the rules of the installed manager, except for those about ConfigMaps.
func shippedRules() []rbacv1.PolicyRule {
	GinkgoHelper()
	file, err := os.Open(filepath.Join("..", "..", "config", "rbac", "role.yaml"))
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(file.Close()).To(Succeed()) }()
	var rules []rbacv1.PolicyRule
	for decoder := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var role rbacv1.ClusterRole
		err := decoder.Decode(&role)
		if errors.Is(err, io.EOF) {
			break
		}
		Expect(err).NotTo(HaveOccurred())
		rules = append(rules, role.Rules...)
	}
	kept := slices.DeleteFunc(slices.Clone(rules), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "configmaps") })
	Expect(kept).To(HaveLen(len(rules)-1), "there must be one rule about ConfigMaps, or the specs check nothing")
	return kept
}

// userWithoutConfigMaps returns a user with the manager's permissions in the test environment, except for those on
// ConfigMaps.
func (s *testEnv) userWithoutConfigMaps(ctx context.Context) *rest.Config {
	GinkgoHelper()
	user := rest.CopyConfig(apiConfig)
	user.Impersonate = rest.ImpersonationConfig{UserName: s.namespace}
	s.grantRole(ctx, s.namespace, shippedRules())
	s.awaitAllowed(ctx, shippedRules()...)
	return user
}

// awaitAllowed waits until the API server applies these rules to the test environment's own user.
func (s *testEnv) awaitAllowed(ctx context.Context, rules ...rbacv1.PolicyRule) {
	GinkgoHelper()
	s.awaitAllowedTo(ctx, s.namespace, rules...)
}

// awaitAllowedTo waits until the API server applies these rules to a user in the test environment.
func (s *testEnv) awaitAllowedTo(ctx context.Context, user string, rules ...rbacv1.PolicyRule) {
	GinkgoHelper()
	clientset, err := kubernetes.NewForConfig(apiConfig)
	Expect(err).NotTo(HaveOccurred())
	harnesstest.AwaitAccess(ctx, GinkgoTB(), clientset, s.namespace, user, rules...)
}

// allow adds verbs on ConfigMaps to the role of the test environment's own user.
func (s *testEnv) allow(ctx context.Context, verbs ...string) {
	GinkgoHelper()
	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs}
	change(ctx, s, theRole, &rbacv1.Role{}, func(r *rbacv1.Role) { r.Rules = append(r.Rules, rule) })
	s.awaitAllowed(ctx, rule)
}

var _ = Describe("A manager whose role lacks ConfigMaps", func() {
	const lacking = "The manager may not list and watch ConfigMaps"

	It("runs Turns that need none, reports the missing permission, and continues when it has the permission", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		m := startAs(s.userWithoutConfigMaps(ctx), s.options())
		s.create(ctx, s.basics()...)
		s.create(ctx, newProfile("skilled", func(p *v1alpha1.PromptProfile) {
			p.Spec.Skills = []v1alpha1.Skill{skillOf("refunds", "skills")}
		}))
		s.create(ctx, newTurn("plain"), newTurn("needs", contributing("terms")))
		s.awaitState(ctx, "plain", v1alpha1.TurnReasonCompleted)
		s.awaitState(ctx, "needs", v1alpha1.TurnReasonPending)
		awaitText(ctx, s, &v1alpha1.Turn{}, "needs", message, And(
			HavePrefix(`ConfigMap "terms", which spec.context.contributions[0].configMapKeyRef names, cannot be read: `),
			ContainSubstring("forbidden")))
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, "skilled", profileReadiness, And(
			HavePrefix(`ConfigMapUnreadable: PromptProfile spec.skills[0].contentFrom.configMapKeyRef: `+
				`ConfigMap "skills" cannot be read: `), ContainSubstring("forbidden")))
		Expect(strings.Count(m.logs.String(), lacking)).To(Equal(1), "the log must report it once")

		s.allow(ctx, "get")
		awaitText(ctx, s, &v1alpha1.Turn{}, "needs", message, HaveSuffix("does not exist"))
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, "skilled", profileReadiness, HavePrefix("ConfigMapNotFound: "))
		s.create(ctx, newConfigMap("terms", "Three days."), newConfigMap("skills", "Ask for the order number."))
		s.awaitState(ctx, "needs", v1alpha1.TurnReasonCompleted)
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, "skilled", profileReadiness, HavePrefix("Ready: "))
		s.drop(ctx, &corev1.ConfigMap{}, "skills")
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, "skilled", profileReadiness, HavePrefix("ConfigMapNotFound: "))
	}, SpecTimeout(2*patience))

	It("reports no missing permission if it has all", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		user := s.userWithoutConfigMaps(ctx)
		s.allow(ctx, "get", "list", "watch")
		m := startAs(user, s.options())
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("waits", contributing("terms")))
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonPending)
		s.create(ctx, newConfigMap("terms", "Three days."))
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
		Expect(m.logs.String()).NotTo(ContainSubstring(lacking))
	}, SpecTimeout(patience))
})
