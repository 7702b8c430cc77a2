package readapi_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// slowRules are the rules of a model that fails the first request, and does not answer a message that contains "wait".
const slowRules = `rules:
- {times: 1, fault: {status: 503, message: busy}}
- {when: {contains: wait}, fault: {hang: BeforeHeaders}}
- {reply: {text: "All is well."}}
`

var _ = Describe("A manager", func() {
	It("serves the journals of its Turns to the command line, which finds it by the Lease of the executor", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		fake := s.createAgent(ctx)
		s.run()
		token := s.user(ctx, "reader", logRule,
			rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"get"}},
			rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"list"}})
		flags := []string{"--manager-namespace", s.namespace, "--kubeconfig", s.kubeconfig(clientcmdapi.AuthInfo{Token: token})}

		By("following a Turn that has not begun, to its end")
		s.turn(ctx, "first")
		var lease coordinationv1.Lease
		Eventually(func(g Gomega) {
			key := client.ObjectKey{Namespace: s.namespace, Name: executor.LeasePrefix + s.namespace + "-0"}
			g.Expect(apiClient.Get(ctx, key, &lease)).To(Succeed())
			g.Expect(lease.Annotations[readapi.AddressAnnotation]).To(HavePrefix("http://127.0.0.1:"))
		}).Should(Succeed())
		first := capstan(ctx, append([]string{"logs", "-f", "first"}, flags...)...).must(ctx, exit.OK)
		Expect(first.out.String()).To(And(
			HavePrefix("Turn "+s.namespace+"/first\n  run 1    executor "+s.namespace+"-0, epoch 1, "),
			ContainSubstring("  profile  house (house 1.0.0)\n"), ContainSubstring("user\n| What is new?\n"),
			ContainSubstring("the request failed: Overloaded: "), ContainSubstring("asking small of ModelProvider demo (attempt 2)\n"),
			ContainSubstring("| All is well.\n"), ContainSubstring("Completed: the model answered\n"),
		))

		By("exporting it")
		exported := capstan(ctx, append([]string{"export", "turn", "first"}, flags...)...).must(ctx, exit.OK)
		Expect(exported.out.String()).To(And(ContainSubstring(`"kind":"finalized"`), Not(ContainSubstring("All is well"))))

		By("following a Turn that is cancelled during a request to the model")
		waiting := &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "second"},
			Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: "support"}, Message: "wait"},
		}
		Expect(apiClient.Create(ctx, waiting)).To(Succeed())
		second := capstan(ctx, append([]string{"logs", "-f", "second"}, flags...)...)
		Expect(fake.Wait(ctx, func(st server.Stats) bool { return st.InFlight == 1 })).To(Succeed())
		Eventually(second.out.String).Should(ContainSubstring("asking small of ModelProvider demo\n"))
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"desiredState":"Cancelled"}}`))
		Expect(apiClient.Patch(ctx, waiting, patch)).To(Succeed())
		second.must(ctx, exit.OK)
		Expect(second.out.String()).To(ContainSubstring("Cancelled: the turn was cancelled"))

		By("reporting a Turn that does not exist, and a namespace without a manager")
		absent := capstan(ctx, append([]string{"logs", "absent"}, flags...)...).must(ctx, exit.Failed)
		Expect(absent.err.String()).To(ContainSubstring("there is no Turn " + s.namespace + "/absent"))
		flags[1] = "default"
		refused := capstan(ctx, append([]string{"logs", "first"}, flags...)...).must(ctx, exit.Failed)
		Expect(refused.err.String()).To(ContainSubstring(`--manager-namespace "default"`))
	})
})

// createAgent serves a model and creates an Agent that uses it.
func (s *testEnv) createAgent(ctx context.Context) *server.Server {
	GinkgoHelper()
	cfg, err := server.ParseConfig([]byte(slowRules))
	Expect(err).NotTo(HaveOccurred())
	fake, baseURL := harnesstest.Model(GinkgoTB(), cfg)
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: s.namespace, Name: name} }
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: in("model-key"), StringData: map[string]string{"apiKey": "k"}},
		&v1alpha1.ModelProvider{ObjectMeta: in("demo"), Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: baseURL,
			CredentialsRef: &v1alpha1.SecretKeyReference{Name: "model-key", Key: "apiKey"},
			Retry:          v1alpha1.RetryPolicy{MaxAttempts: 2, InitialBackoffMilliseconds: 10, MaxBackoffSeconds: 1},
			Models:         []v1alpha1.Model{{Name: "small"}},
		}},
		&v1alpha1.PromptProfile{
			ObjectMeta: in("house"),
			Spec:       v1alpha1.PromptProfileSpec{ID: "house", Version: "1.0.0", Instructions: "Answer briefly."},
		},
		&v1alpha1.Agent{ObjectMeta: in("support"), Spec: v1alpha1.AgentSpec{
			PromptProfileRef: v1alpha1.SharedReference{Name: "house"},
			Models:           []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: "demo"}, Model: "small"}},
		}},
	} {
		Expect(apiClient.Create(ctx, o)).To(Succeed(), "%T must be created", o)
	}
	return fake
}

// run starts a manager of the namespace. The end of the spec stops it.
func (s *testEnv) run() {
	GinkgoHelper()
	o := harnesstest.Options(GinkgoTB(), s.namespace)
	o.ReadBindAddress = "127.0.0.1:0"
	harnesstest.RunManager(GinkgoTB(), apiConfig, o, GinkgoLogr)
}
