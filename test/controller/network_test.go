package controller_test

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/clusternet"
	"github.com/capstan-dev/capstan/internal/netpolicy"
)

var _ = Describe("The addresses of the cluster", func() {
	// policyFor watches the cluster with the permissions of a user, and returns the network policy of a namespace.
	policyFor := func(user *rest.Config, namespace string, given ...netip.Prefix) *netpolicy.Policy {
		GinkgoHelper()
		clientset, err := kubernetes.NewForConfig(user)
		Expect(err).NotTo(HaveOccurred())
		network := clusternet.New(clientset, given, time.Now, logr.Discard())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = network.Start(ctx) // it ends with ctx
		}()
		DeferCleanup(func() {
			cancel()
			Eventually(done).WithTimeout(patience).Should(BeClosed())
		})
		return (*netpolicy.Policy)(nil).ForCluster(network).ForNamespace(namespace)
	}
	node := func(ctx context.Context, name string, cidrs []string, addresses ...string) {
		GinkgoHelper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
		if len(cidrs) > 0 {
			n.Spec.PodCIDR = cidrs[0]
		}
		Expect(apiClient.Create(ctx, n)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(apiClient.Delete(ctx, n))).To(Succeed()) })
		for _, address := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
		Expect(apiClient.Status().Update(ctx, n)).To(Succeed())
	}
	service := func(ctx context.Context, s *testEnv, name string, change ...func(*corev1.Service)) *corev1.Service {
		GinkgoHelper()
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		for _, f := range change {
			f(o)
		}
		s.create(ctx, o)
		return o
	}
	// refusalReason returns why the policy refuses an address, or an empty string if the policy allows the address.
	refusalReason := func(ctx context.Context, p *netpolicy.Policy, host, addr string) string {
		GinkgoHelper()
		err := p.Check(ctx, host, netip.MustParseAddr(addr))
		refused, ok := errors.AsType[*netpolicy.Refused](err)
		if !ok {
			Expect(err).NotTo(HaveOccurred())
			return ""
		}
		return refused.Reason
	}

	It("are refused, except for Services of the same namespace", func(ctx SpecContext) {
		s, other := newTestEnv(ctx, ``), newTestEnv(ctx, ``)
		node(ctx, s.namespace, []string{"10.201.7.0/24", "fd00:201:7::/64"}, "10.202.7.7")
		mine, theirs := service(ctx, s, "tickets"), service(ctx, other, "tickets")
		headless := service(ctx, s, "pods", func(o *corev1.Service) { o.Spec.ClusterIP = corev1.ClusterIPNone })
		service(ctx, s, "forged", func(o *corev1.Service) { o.Spec.ClusterIP, o.Spec.Selector = corev1.ClusterIPNone, nil })
		service(ctx, s, "elsewhere", func(o *corev1.Service) {
			o.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "tickets." + other.namespace + ".svc"}
		})
		for name, addr := range map[string]string{headless.Name: "10.201.7.9", "forged": "10.201.7.10"} {
			s.create(ctx, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
					discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{
					{Addresses: []string{addr}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "a"}},
				},
			})
		}
		p := policyFor(apiConfig, s.namespace)
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "10.201.7.9") }).WithTimeout(patience).Should(
			ContainSubstring("an address of the cluster's Pods"))
		Expect(refusalReason(ctx, p, "x.example", "fd00:201:7::9")).To(ContainSubstring("an address of the cluster's Pods"))
		Expect(refusalReason(ctx, p, "x.example", "10.202.7.7")).To(ContainSubstring("an address of the cluster's nodes"))
		Expect(refusalReason(ctx, p, "x.example", theirs.Spec.ClusterIP)).To(ContainSubstring("an address of the cluster's Services"))
		Expect(refusalReason(ctx, p, "kubernetes.default.svc", "10.0.0.1")).To(ContainSubstring("an address of the cluster's Services"),
			"the address of the API server")

		for _, host := range []string{
			"tickets." + s.namespace, "tickets." + s.namespace + ".svc",
			"Tickets." + s.namespace + ".svc.cluster.local.",
		} {
			Expect(refusalReason(ctx, p, host, mine.Spec.ClusterIP)).To(BeEmpty(), host)
		}
		Expect(refusalReason(ctx, p, "pods."+s.namespace+".svc", "10.201.7.9")).To(BeEmpty(),
			"the Pods of a headless Service of the same namespace")
		Expect(refusalReason(ctx, p, "a.pods."+s.namespace+".svc", "10.201.7.9")).To(BeEmpty(),
			"a Pod of the headless Service, by the name of the Pod")
		for reason, host := range map[string]string{
			"the name is resolved in the manager's namespace": "tickets",
			"the Service is of another namespace":             "tickets." + other.namespace + ".svc",
			"the name only looks like a Service":              "tickets." + s.namespace + ".example",
			"there is no such Service":                        "none." + s.namespace + ".svc",
			"it is an address, not a name":                    mine.Spec.ClusterIP,
			"it leads elsewhere":                              "elsewhere." + s.namespace + ".svc",
		} {
			Expect(refusalReason(ctx, p, host, theirs.Spec.ClusterIP)).To(ContainSubstring("is not a Service of namespace"), reason)
		}
		Expect(refusalReason(ctx, p, "tickets."+s.namespace+".svc", theirs.Spec.ClusterIP)).NotTo(BeEmpty(), "its address decides")
		Expect(refusalReason(ctx, p, "forged."+s.namespace+".svc", "10.201.7.10")).NotTo(BeEmpty(), "its endpoints were written by hand")
		Expect(refusalReason(ctx, p, "x.example", "10.203.0.1")).To(BeEmpty(), "a private address that is not the cluster's")
	}, SpecTimeout(2*patience))

	// Serial, because the Node changes what managers of other specs know about the cluster.
	It("include all private addresses while a Node does not publish the range of its Pods", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		p := policyFor(apiConfig, s.namespace)
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "10.203.0.1") }).WithTimeout(patience).Should(BeEmpty())
		node(ctx, s.namespace, nil, "10.202.7.8")
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "10.203.0.1") }).WithTimeout(patience).
			Should(And(ContainSubstring("Nodes have no podCIDRs"), ContainSubstring("--cluster-cidrs")))
		Expect(refusalReason(ctx, p, "x.example", "93.184.216.34")).To(BeEmpty())

		named := policyFor(apiConfig, s.namespace, netip.MustParsePrefix("10.203.0.0/16"))
		Expect(refusalReason(ctx, named, "x.example", "10.203.0.1")).To(ContainSubstring("by the manager's --cluster-cidrs"))
		Expect(refusalReason(ctx, named, "x.example", "10.204.0.1")).To(BeEmpty(), "the operator has named the ranges of the cluster")

		Expect(apiClient.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})).To(Succeed())
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "10.203.0.1") }).WithTimeout(patience).Should(BeEmpty())
		Expect(refusalReason(ctx, p, "x.example", "10.202.7.8")).To(BeEmpty(), "the Node is gone")
	}, SpecTimeout(2*patience))

	// Serial, because the Pod changes what managers of other specs know about the cluster.
	It("include all private addresses while a Pod has an address outside of the podCIDRs of its Node", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		node(ctx, s.namespace, []string{"10.201.11.0/24"}, "10.202.7.11")
		p := policyFor(apiConfig, s.namespace)
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "10.203.0.1") }).WithTimeout(patience).Should(BeEmpty())
		endpointSlice := func(name string, kind discoveryv1.AddressType, addr string) *discoveryv1.EndpointSlice {
			GinkgoHelper()
			o := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
					discoveryv1.LabelServiceName: "tickets", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				}},
				AddressType: kind,
				Endpoints: []discoveryv1.Endpoint{{
					Addresses: []string{addr}, NodeName: &s.namespace, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "a"},
				}},
			}
			s.create(ctx, o)
			return o
		}
		outside := endpointSlice("outside", discoveryv1.AddressTypeIPv4, "172.20.0.4")
		endpointSlice("public", discoveryv1.AddressTypeIPv6, "2001:db8:7::9")
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "10.203.0.1") }).WithTimeout(patience).Should(And(
			ContainSubstring("Pods have addresses outside of the podCIDRs of their Nodes"), ContainSubstring("--cluster-cidrs")))
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "2001:db8:7::9") }).WithTimeout(patience).
			Should(ContainSubstring("an address of the cluster's Pods"))
		Expect(refusalReason(ctx, p, "x.example", "2001:db8:7::a")).To(BeEmpty(), "no Pod has this address")

		Expect(apiClient.Delete(ctx, outside)).To(Succeed())
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "10.203.0.1") }).WithTimeout(patience).Should(BeEmpty())
	}, SpecTimeout(2*patience))

	It("include all private addresses for a manager that may not list Nodes", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		p := policyFor(s.userWithoutConfigMaps(ctx), s.namespace) // it has only a Role, so it cannot list Nodes
		Eventually(func() string { return refusalReason(ctx, p, "x.example", "10.203.0.1") }).WithTimeout(patience).
			Should(ContainSubstring("because the manager cannot list Nodes"))
		mine := service(ctx, s, "tickets")
		Expect(refusalReason(ctx, p, "tickets."+s.namespace+".svc", mine.Spec.ClusterIP)).To(BeEmpty(),
			"Services of the same namespace need no permission on Nodes")
	}, SpecTimeout(2*patience))

	It("are refused in the conditions of ModelProviders and ToolServers", func(ctx SpecContext) {
		s, other := newTestEnv(ctx, ``), newTestEnv(ctx, ``)
		theirs := service(ctx, other, "secrets")
		s.run()
		s.create(ctx, newToolServer("tickets", "http://"+theirs.Spec.ClusterIP+"/mcp"))
		s.create(ctx, &v1alpha1.ModelProvider{
			ObjectMeta: metav1.ObjectMeta{Name: "models"},
			Spec:       v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI, BaseURL: "http://" + theirs.Spec.ClusterIP + "/v1"},
		})
		want := And(HavePrefix("AddressRefused: "),
			ContainSubstring("an address of the cluster's Services, and \""+theirs.Spec.ClusterIP+"\" is not a Service of namespace"))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness, want)
		awaitText(ctx, s, &v1alpha1.ModelProvider{}, "models", providerReadiness, want)
	}, SpecTimeout(2*patience))
})
