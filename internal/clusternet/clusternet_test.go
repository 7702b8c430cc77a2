package clusternet_test

import (
	"context"
	"errors"
	"net/netip"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/capstan-dev/capstan/internal/clusternet"
	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// startNetwork watches a cluster until the end of the test.
func startNetwork(t *testing.T, clientset *fake.Clientset, given ...netip.Prefix) *clusternet.Network {
	t.Helper()
	n := clusternet.New(clientset, given, time.Now, logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
	return n
}

// reason returns why an address is refused; empty if it is not refused. It checks that a refusal counts as temporary
// exactly if the ranges of the cluster are unknown.
func reason(t *testing.T, n *clusternet.Network, addr string) string {
	t.Helper()
	err := (*netpolicy.Policy)(nil).ForCluster(n).ForNamespace("mine").Check(t.Context(), "x.example", netip.MustParseAddr(addr))
	if refused, ok := errors.AsType[*netpolicy.Refused](err); ok {
		if unknown := strings.Contains(refused.Reason, "the ranges of the cluster are not known"); refused.Temporary != unknown {
			t.Errorf("%s: temporary %t: %v", addr, refused.Temporary, refused)
		}
		return refused.Reason
	}
	if err != nil {
		t.Fatal(err)
	}
	return ""
}

func cluster(podCIDRs ...string) []runtime.Object {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.202.7.7"}, {Type: corev1.NodeHostName, Address: "n1"}},
	}}
	return []runtime.Object{node, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
	}}
}

// pods returns the EndpointSlice of a Service whose Pods run on a Node.
func pods(node string, addrs ...string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "theirs", Name: "tickets-abc",
			Labels: map[string]string{discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
		},
		Endpoints: []discoveryv1.Endpoint{{Addresses: addrs, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod"}}},
	}
}

func TestClusterRanges(t *testing.T) {
	forbid := func(resource string) func(*fake.Clientset) {
		return func(c *fake.Clientset) {
			c.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
			})
		}
	}
	for name, tc := range map[string]struct {
		reason  string
		objects []runtime.Object
		given   []netip.Prefix
		set     func(*fake.Clientset)
		want    map[string]string // the message about each address; empty if it may be reached
	}{
		"all known": {"", cluster("10.201.7.0/24"), nil, nil, map[string]string{
			"10.201.7.9": "the cluster's Pods", "10.202.7.7": "the cluster's nodes",
			"10.96.3.4": "the cluster's Services", "10.203.0.1": "", "93.184.216.34": "",
		}},
		"Pods unknown": {"the range of the Pods may be any private range", cluster(), nil, nil, map[string]string{
			"10.203.0.1": "because Nodes have no podCIDRs", "fd12::1": "because Nodes have no podCIDRs",
			"10.96.3.4": "the cluster's Services", "93.184.216.34": "",
		}},
		"Pods of another pool": {
			"the network does not use podCIDRs", append(cluster("10.201.7.0/24"), pods("n1", "10.201.7.9", "172.20.0.4")),
			nil, nil,
			map[string]string{
				"10.203.0.1": "because Pods have addresses outside of the podCIDRs of their Nodes", "10.201.7.9": "the cluster's Pods",
				"172.20.0.4": "Pods have addresses outside", "93.184.216.34": "",
			},
		},
		"Pods inside of podCIDRs and of the network of their Node": {
			"the ranges are complete", append(cluster("10.201.7.0/24"), pods("n1", "10.201.7.9", "10.202.7.7")),
			nil, nil,
			map[string]string{"10.203.0.1": "", "10.201.7.9": "the cluster's Pods"},
		},
		"Pods with public addresses": {
			"only these addresses count as the cluster's", append(cluster("10.201.7.0/24"), pods("n1", "2001:db8:7::9", "93.184.216.34")),
			nil, nil,
			map[string]string{
				"93.184.216.34": "the cluster's Pods", "93.184.216.35": "", "2001:db8:7::a": "", "10.203.0.1": "",
			},
		},
		"Pods of a Node that is gone": {
			"they may have been inside of its podCIDRs", append(cluster("10.201.7.0/24"), pods("n2", "10.201.8.9")),
			nil, nil,
			map[string]string{"10.203.0.1": ""},
		},
		"addresses that another controller wrote": {
			"they do not belong to Pods", append(cluster("10.201.7.0/24"), func() *discoveryv1.EndpointSlice {
				s := pods("n1", "172.20.0.4", "93.184.216.34")
				s.Endpoints[0].TargetRef = nil
				return s
			}()),
			nil, nil,
			map[string]string{"10.203.0.1": "", "93.184.216.34": ""},
		},
		"no permission for EndpointSlices": {
			"", cluster("10.201.7.0/24"), nil, forbid("endpointslices"),
			map[string]string{"10.203.0.1": "because the manager cannot list EndpointSlices", "93.184.216.34": ""},
		},
		"no permission for Nodes": {
			"", cluster("10.201.7.0/24"), nil, forbid("nodes"),
			map[string]string{"10.203.0.1": "because the manager cannot list Nodes", "93.184.216.34": ""},
		},
		"no ServiceCIDRs": {
			"clusters before Kubernetes 1.33 have none", cluster("10.201.7.0/24"), nil, forbid("servicecidrs"),
			map[string]string{"10.203.0.1": "because the manager cannot list ServiceCIDRs"},
		},
		"set by the operator": {
			"only the operator's ranges apply", cluster(),
			[]netip.Prefix{netip.MustParsePrefix("10.203.0.0/16")},
			nil,
			map[string]string{
				"10.203.0.1": "by the manager's --cluster-cidrs", "10.204.0.1": "", "10.96.3.4": "",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			clientset := fake.NewClientset(tc.objects...)
			if tc.set != nil {
				tc.set(clientset)
			}
			n := startNetwork(t, clientset, tc.given...)
			for addr, want := range tc.want {
				if got := reason(t, n, addr); (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("%s: %q, want %q: %s", addr, got, want, tc.reason)
				}
			}
		})
	}
}

// TestRangesFollowPods checks that the ranges change with the Pods and their Nodes.
func TestRangesFollowPods(t *testing.T) {
	clientset := fake.NewClientset(cluster("10.201.7.0/24")...)
	n := startNetwork(t, clientset)
	await := func(addr string, refused bool, _ string) {
		t.Helper()
		for t.Context().Err() == nil {
			if (reason(t, n, addr) != "") == refused {
				return
			}
			goruntime.Gosched()
		}
	}
	await("10.203.0.1", false, "the ranges are complete")
	ctx, slices := t.Context(), clientset.DiscoveryV1().EndpointSlices("theirs")
	if _, err := slices.Create(ctx, pods("n2", "10.201.8.9", "93.184.216.34"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("93.184.216.34", true, "it is the address of a Pod")
	await("10.203.0.1", false, "the Pod's Node is not known yet")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.201.9.0/24"}}}
	if _, err := clientset.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("10.203.0.1", true, "the Pod is outside of the podCIDRs of its Node")
	node.Spec.PodCIDRs = []string{"10.201.8.0/24"}
	if _, err := clientset.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("10.203.0.1", false, "the Pod is now inside")
	if err := slices.Delete(ctx, "tickets-abc", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("93.184.216.34", false, "the Pod is gone")

	// A Node whose addresses and podCIDRs are not set yet, as when it has just registered.
	node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}}
	if _, err := clientset.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("10.203.0.1", true, "the podCIDRs of a Node are unknown")
	if err := clientset.CoreV1().Nodes().Delete(ctx, "n3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("10.203.0.1", false, "the Node is gone")
}

// TestRangesAreKnownAgain checks that the ranges are complete again after the API server has refused a kind for a
// while, as it does while its roles are not loaded yet.
func TestRangesAreKnownAgain(t *testing.T) {
	for _, resource := range []string{"nodes", "servicecidrs"} {
		t.Run(resource, func(t *testing.T) {
			clientset := fake.NewClientset(cluster("10.201.7.0/24")...)
			var watches atomic.Int32
			first, refused := watch.NewFake(), make(chan struct{})
			clientset.PrependWatchReactor(resource, func(clienttesting.Action) (bool, watch.Interface, error) {
				switch watches.Add(1) {
				case 1:
					return true, first, nil
				case 2:
					defer close(refused)
					return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("not loaded"))
				default:
					return false, nil, nil
				}
			})
			n := startNetwork(t, clientset)
			for reason(t, n, "10.203.0.1") != "" && t.Context().Err() == nil {
				goruntime.Gosched()
			}
			first.Stop()
			<-refused
			for reason(t, n, "10.203.0.1") == "" && watches.Load() < 3 && t.Context().Err() == nil {
				goruntime.Gosched()
			}
			for reason(t, n, "10.203.0.1") != "" && t.Context().Err() == nil {
				goruntime.Gosched()
			}
		})
	}
}

// TestUnknownCluster checks that private addresses are refused until the API server has answered, because they may
// belong to the cluster.
func TestUnknownCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := clusternet.New(fake.NewClientset(), nil, time.Now, logr.Discard())
		if got := reason(t, n, "10.203.0.1"); !strings.Contains(got, "the API server has not answered yet") {
			t.Errorf("got %q, want private addresses refused", got)
		}
	})
}

// TestServicesWhileAPIServerIsUnreachable checks that the last known addresses are used.
func TestServicesWhileAPIServerIsUnreachable(t *testing.T) {
	clientset := fake.NewClientset(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "tickets"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.3.4", ClusterIPs: []string{"10.96.3.4"}},
	})
	now := time.Now()
	n := clusternet.New(clientset, nil, func() time.Time { return now }, logr.Discard())
	serves := func(host string) (bool, error) {
		return n.Serves(t.Context(), "mine", host, netip.MustParseAddr("10.96.3.4"))
	}
	if ok, err := serves("tickets.mine.svc"); !ok || err != nil {
		t.Fatalf("Serves = %t, %v; want the Service's own address", ok, err)
	}
	clientset.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("away")
	})
	now = now.Add(time.Hour)
	if ok, err := serves("tickets.mine.svc"); !ok || err != nil {
		t.Errorf("Serves = %t, %v; want the last known addresses", ok, err)
	}
	if ok, err := serves("other.mine.svc"); ok || err == nil {
		t.Errorf("Serves = %t, %v; want a temporary error", ok, err)
	}
}

// TestServicesWhileForbidden checks that the last known addresses are used for a while if the API server forbids to
// read a Service, as it does while its roles are not loaded yet. Later, the permission counts as withdrawn.
func TestServicesWhileForbidden(t *testing.T) {
	clientset := fake.NewClientset(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "tickets"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.3.4", ClusterIPs: []string{"10.96.3.4"}},
	})
	now, forbidden, away := time.Now(), false, false
	clientset.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		if away {
			return true, nil, errors.New("connection refused")
		}
		return forbidden, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "tickets", errors.New("not loaded"))
	})
	n := clusternet.New(clientset, nil, func() time.Time { return now }, logr.Discard())
	for _, step := range []struct {
		after           time.Duration
		forbidden, want bool
		why             string
	}{
		{0, true, false, "the permission is missing from the beginning"},
		{0, false, true, "the permission was added"},
		{4 * time.Minute, true, true, "the API server may only be loading its roles"},
		{2 * time.Minute, true, true, "it began to forbid this two minutes ago"},
		{4 * time.Minute, true, false, "the permission was withdrawn"},
		{0, false, true, "the permission was added again"},
	} {
		now, forbidden = now.Add(step.after), step.forbidden
		ok, err := n.Serves(t.Context(), "mine", "tickets.mine.svc", netip.MustParseAddr("10.96.3.4"))
		if ok != step.want || err != nil {
			t.Errorf("%s: Serves = %t, %v; want %t", step.why, ok, err, step.want)
		}
	}
	away, now = true, now.Add(time.Hour)
	for _, why := range []string{"the API server is away", "it starts after an hour"} {
		ok, err := n.Serves(t.Context(), "mine", "tickets.mine.svc", netip.MustParseAddr("10.96.3.4"))
		if !ok || err != nil {
			t.Errorf("%s: Serves = %t, %v; want true", why, ok, err)
		}
		away, forbidden, now = false, true, now.Add(time.Minute)
	}
}
