package controller_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// runsATurn checks that the manager runs a Turn of the test environment.
func (s *testEnv) runsATurn(ctx context.Context) {
	GinkgoHelper()
	s.create(ctx, s.basics()...)
	s.create(ctx, newTurns(1)...)
	s.awaitAll(ctx, 1, v1alpha1.TurnReasonCompleted)
}

// mayGetNamespace lets the test environment's own user get one namespace, as the chart does for watched namespaces.
func (s *testEnv) mayGetNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	rule := rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{name}, Verbs: []string{"get"},
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}, Rules: []rbacv1.PolicyRule{rule}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: s.namespace},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: s.namespace}},
	}
	Expect(apiClient.Create(ctx, role)).To(Succeed())
	Expect(apiClient.Create(ctx, binding)).To(Succeed())
	clientset, err := kubernetes.NewForConfig(apiConfig)
	Expect(err).NotTo(HaveOccurred())
	harnesstest.AwaitAccess(ctx, GinkgoTB(), clientset, "", s.namespace, rule)
}

// leaveJournal leaves the history of a deleted Session of a namespace in the store of a manager that does not run.
func leaveJournal(ctx context.Context, o manager.Options, namespace string) {
	GinkgoHelper()
	store, err := sqlite.Open(ctx, filepath.Join(o.DataDir, "journal.db"))
	Expect(err).NotTo(HaveOccurred())
	Expect(store.Append(ctx, "uid-of-a-deleted-session", journal.Entry{
		Seq: 1, Epoch: 1, Kind: journal.SessionTurn, Version: 1, Payload: fmt.Appendf(nil, `{"namespace": %q}`, namespace),
	})).To(Succeed())
	Expect(store.Close()).To(Succeed())
}

// grantRole gives a user these permissions in the test environment, as the chart does for the manager.
func (s *testEnv) grantRole(ctx context.Context, user string, rules []rbacv1.PolicyRule) {
	GinkgoHelper()
	s.create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: theRole}, Rules: rules},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: theRole},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: theRole},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		})
}

// permitted matches the error of a manager that ends because it has permissions in a namespace.
func permitted(s *testEnv) OmegaMatcher {
	return MatchError(ContainSubstring("has permissions in namespace %q of --watch-namespaces now", s.namespace))
}

var _ = Describe("A manager that starts after a tenant has deleted a watched namespace", func() {
	It("serves the other namespaces while the namespace is being deleted", func(ctx SpecContext) {
		s, leaving := newTestEnv(ctx, ``), newTestEnv(ctx, ``)
		// No controller removes the namespace here, so it stays as with an object whose finalizer is never removed.
		Expect(apiClient.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaving.namespace}})).To(Succeed())
		m := s.run(func(o *manager.Options) { o.WatchNamespaces = append(o.WatchNamespaces, leaving.namespace) })
		s.runsATurn(ctx)
		Expect(m.logs.String()).To(ContainSubstring("is being terminated"))
	}, SpecTimeout(patience))

	It("serves the other namespaces when the namespace and its Role are gone, and ends when they exist again", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		gone := &testEnv{namespace: s.namespace + "-gone"}
		user := s.userWithoutConfigMaps(ctx)
		s.mayGetNamespace(ctx, gone.namespace)
		o, log := s.options(func(o *manager.Options) {
			o.WatchNamespaces, o.JournalRetention = append(o.WatchNamespaces, gone.namespace), 0
		}), &logs{}
		leaveJournal(ctx, o, gone.namespace)
		running, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- manager.Run(running, o, user, log.logger()) }()
		s.runsATurn(ctx)
		Eventually(log.String).Should(ContainSubstring("Found journals or comments of deleted objects"),
			"the journals of the namespace must still be deleted")
		Expect(ended).NotTo(Receive())

		Expect(apiClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gone.namespace}})).To(Succeed())
		gone.grantRole(ctx, s.namespace, shippedRules())
		Eventually(ended).WithContext(ctx).Should(Receive(permitted(gone)))
	}, SpecTimeout(patience))
})

var _ = Describe("A manager that starts without permissions in one of its watched namespaces", func() {
	withoutBudgets := func() []rbacv1.PolicyRule {
		rules := shippedRules()
		for i := range rules {
			rules[i].Resources = slices.DeleteFunc(rules[i].Resources, func(r string) bool { return r == "budgets" })
		}
		return rules
	}
	DescribeTable("serves the other namespaces, and ends when it has the permissions",
		func(ctx SpecContext, left func() []rbacv1.PolicyRule) {
			s, tenant := newTestEnv(ctx, ``), newTestEnv(ctx, ``)
			user := s.userWithoutConfigMaps(ctx)
			s.mayGetNamespace(ctx, tenant.namespace)
			tenant.grantRole(ctx, s.namespace, left())
			if len(left()) > 0 {
				tenant.awaitAllowedTo(ctx, s.namespace, left()...)
			}
			o := s.options(func(o *manager.Options) { o.WatchNamespaces = append(o.WatchNamespaces, tenant.namespace) })
			running, stop := context.WithCancel(ctx)
			defer stop()
			log, ended := &logs{}, make(chan error, 1)
			go func() { ended <- manager.Run(running, o, user, log.logger()) }()
			s.runsATurn(ctx)
			Expect(log.String()).To(ContainSubstring(
				"namespace \\\"" + tenant.namespace + "\\\" exists, but the manager lacks permissions in it"))
			Expect(ended).NotTo(Receive())

			change(ctx, tenant, theRole, &rbacv1.Role{}, func(r *rbacv1.Role) { r.Rules = shippedRules() })
			Eventually(ended).WithContext(ctx).Should(Receive(permitted(tenant)))
		},
		Entry("because its Role has no rules", func() []rbacv1.PolicyRule { return nil }, SpecTimeout(patience)),
		Entry("because its Role lacks one kind", withoutBudgets, SpecTimeout(patience)),
	)
})
