package controller_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/manager"
)

// shippedPolicy reads an object of config/policy and gives it another name.
func shippedPolicy[T client.Object](file, name string, object T) T {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "policy", file))
	Expect(err).NotTo(HaveOccurred())
	Expect(yaml.UnmarshalStrict(text, object)).To(Succeed())
	object.SetName(name)
	return object
}

func newPolicy(name string, change ...func(*admissionv1.ValidatingAdmissionPolicy)) *admissionv1.ValidatingAdmissionPolicy {
	GinkgoHelper()
	return build(shippedPolicy("toolapproval_policy.yaml", name, &admissionv1.ValidatingAdmissionPolicy{}), change)
}

func newPolicyBinding(
	name string, change ...func(*admissionv1.ValidatingAdmissionPolicyBinding),
) *admissionv1.ValidatingAdmissionPolicyBinding {
	GinkgoHelper()
	b := shippedPolicy("toolapproval_binding.yaml", name, &admissionv1.ValidatingAdmissionPolicyBinding{})
	b.Spec.PolicyName = name
	return build(b, change)
}

// install creates a cluster-scoped object, which is deleted at the end of the spec.
func install(ctx SpecContext, o client.Object) {
	GinkgoHelper()
	Expect(apiClient.Create(ctx, o)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(apiClient.Delete(ctx, o))).To(Succeed()) }, NodeTimeout(patience))
}

// awaitPolicy waits until Capstan uses ToolApprovals under a policy whose binding was just created.
func awaitPolicy(ctx context.Context, b *admissionv1.ValidatingAdmissionPolicyBinding) {
	GinkgoHelper()
	Eventually(time.Now).WithContext(ctx).Should(BeTemporally(">=", b.CreationTimestamp.Add(approvals.PolicySettleTime)))
}

// underPolicy sets the name of the policy that a manager looks for.
func underPolicy(name string) func(*manager.Options) {
	return func(o *manager.Options) { o.ApprovalPolicy = name }
}

var _ = Describe("A decision whose approver was not verified", func() {
	It("is used neither before nor after the policy is installed; the Turn reports it and continues after a verified one",
		func(ctx SpecContext) {
			s := newTestEnv(ctx, deletingModel)
			name := s.namespace // the name of a policy that is not installed yet
			var calls atomic.Int64
			m := s.run(deletes(&calls), underPolicy(name))
			s.create(ctx, append(s.basics(), newTurn("delete"))...)
			t := s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
			early := s.decision(t, 0, v1alpha1.ApprovalDenied)
			early.Name, early.GenerateName = "early", ""
			Expect(jane().Create(ctx, early)).To(Succeed())

			waits := "a call of tool delete requires approval: run capstan approve " + s.namespace + "/delete or capstan deny " +
				s.namespace + "/delete; ToolApproval early is not used: "
			awaitText(ctx, s, &v1alpha1.Turn{}, "delete", message,
				Equal(waits+"Capstan cannot confirm that the API server checks who decides, because the ValidatingAdmissionPolicy "+name+
					" is not installed: install it with kubectl apply -k config/policy, or with the chart and "+
					"approvalPolicy.install=true, under the name in --approval-policy. "+
					"A ToolApproval that was not checked does not count later either: decide again then"))
			Expect(m.logs.String()).To(And(ContainSubstring("Not using ToolApprovals"),
				ContainSubstring("ValidatingAdmissionPolicy "+name+" is not installed")))

			By("installing the policy without a binding")
			install(ctx, newPolicy(name))
			awaitText(ctx, s, &v1alpha1.Turn{}, "delete", message,
				HavePrefix(waits+"Capstan cannot confirm that the API server checks who decides, because the "+
					"ValidatingAdmissionPolicyBinding "+name+" is not installed: "))

			By("installing the policy with its binding")
			b := newPolicyBinding(name)
			install(ctx, b)
			awaitText(ctx, s, &v1alpha1.Turn{}, "delete", message, Equal(waits+"the API server has checked who decides only since "+
				b.CreationTimestamp.Add(approvals.PolicySettleTime).UTC().Format(
					time.RFC3339)+" (ValidatingAdmissionPolicy "+name+"): decide again"))
			Expect(m.logs.String()).To(ContainSubstring("Using ToolApprovals again"))
			t = s.turn(ctx, "delete")
			Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(1), "the decision must not have continued the Turn")
			Expect(calls.Load()).To(BeZero())

			By("deciding again")
			awaitPolicy(ctx, b)
			s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
			t = s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
			Expect(calls.Load()).To(BeEquivalentTo(1))
			Expect(t.Status.ToolCalls[0].DecidedBy).To(Equal("jane"))
			Expect(t.Status.Executor.Epoch).To(BeEquivalentTo(2))
		}, SpecTimeout(4*patience))

	It("is used if the operator trusts it", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		m := s.run(deletes(&calls), underPolicy(s.namespace), func(o *manager.Options) { o.TrustDecidedBy = true })
		s.create(ctx, append(s.basics(), newTurn("delete"))...)
		s.decide(ctx, s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval), 0, v1alpha1.ApprovalApproved)
		s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1))
		Expect(m.logs.String()).To(ContainSubstring("because --trust-decided-by is set"))
	}, SpecTimeout(patience))

	It("is not used until the manager may read the policy", func(ctx SpecContext) {
		s := newTestEnv(ctx, deletingModel)
		var calls atomic.Int64
		startAs(s.userWithoutConfigMaps(ctx), s.options(deletes(&calls)))
		s.create(ctx, append(s.basics(), newTurn("delete"))...)
		t := s.awaitState(ctx, "delete", v1alpha1.TurnReasonAwaitingApproval)
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		awaitText(ctx, s, &v1alpha1.Turn{}, "delete", message, ContainSubstring(
			"Capstan cannot confirm that the API server checks who decides, because the manager may not get the ValidatingAdmissionPolicy "+
				approvals.DefaultPolicy+": grant it the rule for this kind in config/rbac/role.yaml"))

		s.allowPolicies(ctx)
		s.awaitState(ctx, "delete", v1alpha1.TurnReasonCompleted)
		Expect(calls.Load()).To(BeEquivalentTo(1), "the API server checked the decision when it was made")
	}, SpecTimeout(2*patience))
})

// allowPolicies grants the test environment's own user the manager's permissions on the policy.
func (s *testEnv) allowPolicies(ctx SpecContext) {
	GinkgoHelper()
	var rules []rbacv1.PolicyRule
	for _, r := range shippedRules() {
		if r.APIGroups[0] == admissionv1.GroupName {
			rules = append(rules, r)
		}
	}
	Expect(rules).To(HaveLen(1))
	install(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}, Rules: rules})
	install(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: s.namespace},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: s.namespace}},
	})
}

// madeAt returns a decision that was made at this time.
func madeAt(name string, at time.Time) v1alpha1.ToolApproval {
	return v1alpha1.ToolApproval{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at)}}
}

var _ = Describe("The check of decisions", func() {
	var (
		name string
		now  time.Time
		// lookups counts the API requests of the check.
		lookups *atomic.Int64
		check   approvals.Check
	)
	BeforeEach(func(ctx SpecContext) {
		name, now, lookups = newTestEnv(ctx, ``).namespace, time.Now(), &atomic.Int64{}
		counted := rest.CopyConfig(apiConfig)
		counted.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counting{next, lookups} })
		clientset, err := kubernetes.NewForConfig(counted)
		Expect(err).NotTo(HaveOccurred())
		check = approvals.NewPolicy(name, clientset.AdmissionregistrationV1(), func() time.Time { return now }, logr.Discard()).Check
	}, NodeTimeout(patience))

	DescribeTable("accepts no decision if the policy or its binding has a gap",
		func(ctx SpecContext, p func(*admissionv1.ValidatingAdmissionPolicy),
			b func(*admissionv1.ValidatingAdmissionPolicyBinding), want string,
		) {
			policy, binding := newPolicy(name), newPolicyBinding(name)
			p(policy)
			b(binding)
			install(ctx, policy)
			install(ctx, binding)
			checked, why, err := check(ctx, []v1alpha1.ToolApproval{madeAt("x", now.Add(time.Hour))})
			Expect(err).NotTo(HaveOccurred())
			Expect(checked).To(BeEmpty())
			Expect(why).To(And(
				HavePrefix("ToolApproval x is not used: Capstan cannot confirm that the API server checks who decides, because "),
				ContainSubstring(want)))
		},
		Entry("because it allows requests that it cannot evaluate",
			func(p *admissionv1.ValidatingAdmissionPolicy) { p.Spec.FailurePolicy = new(admissionv1.Ignore) }, asShipped,
			"has the failurePolicy Ignore: set it to Fail"),
		Entry("because it does not apply to some requests", func(p *admissionv1.ValidatingAdmissionPolicy) {
			p.Spec.MatchConditions = []admissionv1.MatchCondition{{Name: "not-admin", Expression: "request.userInfo.username != 'admin'"}}
		}, asShipped, "has matchConditions"),
		Entry("because it does not apply to some objects", func(p *admissionv1.ValidatingAdmissionPolicy) {
			p.Spec.MatchConstraints.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"guarded": "yes"}}
		}, asShipped, "has a selector or excludeResourceRules in its matchConstraints"),
		Entry("because it is always satisfied", func(p *admissionv1.ValidatingAdmissionPolicy) {
			p.Spec.Validations[0].Expression, p.Spec.Validations[0].MessageExpression = "true", ""
		}, asShipped, "lacks the expression by which Capstan checks spec.decidedBy"),
		Entry("because it does not check creations", func(p *admissionv1.ValidatingAdmissionPolicy) {
			p.Spec.MatchConstraints.ResourceRules[0].Operations = []admissionv1.OperationType{admissionv1.Update}
		}, asShipped, "does not apply to each creation of toolapprovals"),
		Entry("because another policy is bound", func(*admissionv1.ValidatingAdmissionPolicy) {},
			func(b *admissionv1.ValidatingAdmissionPolicyBinding) { b.Spec.PolicyName = "another" },
			"binds the policy another: set its policyName to test-"),
		Entry("because it only warns", func(*admissionv1.ValidatingAdmissionPolicy) {},
			func(b *admissionv1.ValidatingAdmissionPolicyBinding) {
				b.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Warn, admissionv1.Audit}
			}, "has the validationActions [Warn Audit], which deny nothing: set them to Deny"),
		Entry("because it does not apply in some namespaces", func(*admissionv1.ValidatingAdmissionPolicy) {},
			func(b *admissionv1.ValidatingAdmissionPolicyBinding) {
				b.Spec.MatchResources = &admissionv1.MatchResources{
					NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"guarded": "yes"}},
				}
			}, "has matchResources"),
	)

	It("accepts only decisions made after the policy", func(ctx SpecContext) {
		install(ctx, newPolicy(name))
		b := newPolicyBinding(name)
		install(ctx, b)
		since := b.CreationTimestamp.Add(approvals.PolicySettleTime)
		checked, why, err := check(ctx, []v1alpha1.ToolApproval{
			madeAt("before", since.Add(-time.Second)),
			madeAt("then", since), madeAt("after", since.Add(time.Hour)),
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(checked).To(HaveExactElements(HaveField("Name", "then"), HaveField("Name", "after")))
		Expect(why).To(HavePrefix("ToolApproval before is not used: the API server has checked who decides only since " +
			since.UTC().Format(time.RFC3339)))
	}, SpecTimeout(patience))

	It("accepts no decision that was made while the binding did not have the action Deny", func(ctx SpecContext) {
		install(ctx, newPolicy(name))
		b := newPolicyBinding(name, func(b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Audit}
		})
		install(ctx, b)
		made := b.CreationTimestamp.Add(approvals.PolicySettleTime)
		Eventually(time.Now).WithContext(ctx).Should(BeTemporally(">=", b.CreationTimestamp.Add(time.Second)),
			"times of objects are whole seconds")
		b.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Deny}
		Expect(apiClient.Update(ctx, b)).To(Succeed())
		checked, why, err := check(ctx, []v1alpha1.ToolApproval{madeAt("audited", made), madeAt("after", made.Add(time.Hour))})
		Expect(err).NotTo(HaveOccurred())
		Expect(checked).To(HaveExactElements(HaveField("Name", "after")))
		Expect(why).To(HavePrefix("ToolApproval audited is not used: the API server has checked who decides only since"))
	}, SpecTimeout(patience))

	It("accepts no decision that was made before it saw that a weakness was removed", func(ctx SpecContext) {
		install(ctx, newPolicy(name))
		b := newPolicyBinding(name, func(b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.MatchResources = &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"guarded": "yes"}},
			}
		})
		install(ctx, b)
		now = now.Add(time.Hour)
		made := madeAt("meanwhile", now)
		_, why, err := check(ctx, []v1alpha1.ToolApproval{made})
		Expect(err).NotTo(HaveOccurred())
		Expect(why).To(ContainSubstring("has matchResources"))
		b.Spec.MatchResources = nil
		Expect(apiClient.Update(ctx, b)).To(Succeed()) // the removal of a field leaves no time in the managed fields
		now = now.Add(time.Minute)
		checked, why, err := check(ctx, []v1alpha1.ToolApproval{made, madeAt("after", now)})
		Expect(err).NotTo(HaveOccurred())
		Expect(checked).To(HaveExactElements(HaveField("Name", "after")))
		Expect(why).To(HavePrefix("ToolApproval meanwhile is not used: the API server has checked who decides only since"))
	}, SpecTimeout(patience))

	It("reads the policy again for a newer decision and after a while, and no more often", func(ctx SpecContext) {
		first, second := madeAt("first", now.Add(time.Hour)), madeAt("second", now.Add(2*time.Hour))
		expectCheck := func(requests int64, accepts bool, made ...v1alpha1.ToolApproval) {
			GinkgoHelper()
			before := lookups.Load()
			checked, why, err := check(ctx, made)
			Expect(err).NotTo(HaveOccurred())
			Expect(lookups.Load()-before).To(Equal(requests), "requests")
			Expect(why == "" && len(checked) == len(made)).To(Equal(accepts), why)
		}
		expectCheck(0, true)
		expectCheck(1, false, first)
		expectCheck(0, false, second)
		policy := newPolicy(name)
		install(ctx, policy)
		install(ctx, newPolicyBinding(name))
		expectCheck(0, false, first)
		now = now.Add(5 * time.Second)
		expectCheck(2, true, first)
		expectCheck(0, true, first)
		expectCheck(2, true, first, second)
		expectCheck(0, true, second)
		Expect(apiClient.Delete(ctx, policy)).To(Succeed())
		expectCheck(1, false, madeAt("third", now.Add(3*time.Hour)))
		expectCheck(0, false, first)
	}, SpecTimeout(patience))

	It("reports an unknown result if the API server does not answer", func(ctx SpecContext) {
		gone := rest.CopyConfig(apiConfig)
		gone.Host = "127.0.0.1:1"
		clientset, err := kubernetes.NewForConfig(gone)
		Expect(err).NotTo(HaveOccurred())
		checked, why, err := approvals.NewPolicy(name, clientset.AdmissionregistrationV1(), time.Now,
			logr.Discard()).Check(ctx, []v1alpha1.ToolApproval{madeAt("x", now)})
		Expect(err).To(MatchError(ContainSubstring(
			`failed to get the ValidatingAdmissionPolicy "` + name + `", by which the API server checks who decides`)))
		Expect(checked).To(BeEmpty())
		Expect(why).To(BeEmpty())
	}, SpecTimeout(patience))
})

func asShipped(*admissionv1.ValidatingAdmissionPolicyBinding) {}

// counting counts requests.
type counting struct {
	next  http.RoundTripper
	count *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.count.Add(1)
	return c.next.RoundTrip(r)
}
