// Package clusternet provides the addresses of the manager's cluster: the ranges of its Services, Pods and nodes, and
// the addresses of each Service. It implements netpolicy.Cluster.
package clusternet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// firstAnswerTimeout bounds the wait for the first answer of the API server. It is shorter than the default timeouts of
// connections.
const firstAnswerTimeout = 4 * time.Second

// Private returns the prefixes that count as the cluster's while its own prefixes are unknown. They are the private
// networks, from which clusters take their addresses.
func Private() []string {
	return []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"}
}

// Network is the network of a cluster. It is empty until Start runs. It is safe for concurrent use.
type Network struct {
	clientset kubernetes.Interface
	now       func() time.Time
	log       logr.Logger
	// configured holds the ranges that the operator has set; if it is empty, the API server is asked.
	configured []netpolicy.Range

	mu sync.Mutex
	// nodes and services hold the ranges by the names of their objects, and why these ranges may be incomplete.
	nodes, services knowledge
	// ranges caches all ranges together; it is nil after a change.
	ranges []netpolicy.Range
	// known is closed when the API server has answered for all kinds, and nodesKnown when it has answered for Nodes.
	known, nodesKnown chan struct{}
	pods              podsOutside

	names names
}

// knowledge holds the API server's answers about one kind of objects.
type knowledge struct {
	ranges map[string][]netpolicy.Range
	// answered is true once the API server has answered.
	answered bool
	// unknown says why the ranges are incomplete; empty if they are complete. In messages it follows the word
	// "because".
	unknown string
}

// New returns the network of a cluster. given holds the ranges that the operator has set; if it is not empty, the API
// server is not asked for them. now returns the current time.
func New(clientset kubernetes.Interface, given []netip.Prefix, now func() time.Time, log logr.Logger) *Network {
	n := &Network{
		clientset: clientset, now: now, log: log, known: make(chan struct{}), nodesKnown: make(chan struct{}),
		nodes: knowledge{ranges: map[string][]netpolicy.Range{}}, services: knowledge{ranges: map[string][]netpolicy.Range{}},
		pods:  podsOutside{slices: map[string]outside{}, public: map[netip.Addr]int{}},
		names: names{known: map[[2]string]*service{}},
	}
	for _, prefix := range given {
		n.configured = append(n.configured, netpolicy.Range{
			Prefix: prefix,
			What:   "an address of the cluster, by the manager's --" + netpolicy.ClusterFlag,
		})
	}
	return n
}

// NeedLeaderElection returns false: every process that connects to endpoints needs the ranges.
func (n *Network) NeedLeaderElection() bool { return false }

// Start watches Nodes, ServiceCIDRs and EndpointSlices until ctx ends, unless the operator has set the ranges. It
// implements manager.Runnable.
func (n *Network) Start(ctx context.Context) error {
	if len(n.configured) > 0 {
		<-ctx.Done()
		return nil
	}
	nodes, services := n.clientset.CoreV1().Nodes(), n.clientset.NetworkingV1().ServiceCIDRs()
	var all sync.WaitGroup
	all.Go(func() {
		n.watchKind(ctx, "Nodes", &n.nodes, &corev1.Node{}, &cache.ListWatch{
			ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
			WatchFuncWithContext: nodes.Watch,
		}, rangesOfNode)
	})
	all.Go(func() {
		n.watchKind(ctx, "ServiceCIDRs", &n.services, &networkingv1.ServiceCIDR{}, &cache.ListWatch{
			ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return services.List(ctx, o) },
			WatchFuncWithContext: services.Watch,
		}, rangesOfServiceCIDR)
	})
	all.Go(func() { n.watchPods(ctx) })
	all.Wait()
	return nil
}

// watchKind watches one kind and updates its ranges.
func (n *Network) watchKind(
	ctx context.Context, kind string, about *knowledge, object runtime.Object, source *cache.ListWatch, of func(any) []netpolicy.Range,
) {
	open, synced := source.WatchFuncWithContext, func() bool { return false }
	source.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := open(ctx, o)
		if err == nil && synced() {
			n.recordAnswer(kind, about, "") // the API server may have refused the kind for a while
		}
		return w, err
	}
	informer := cache.NewSharedInformer(cache.ToListWatcherWithWatchListSemantics(source, n.clientset), object, 0)
	put := func(o any) {
		if m, ok := o.(metav1.Object); ok {
			n.setRanges(about, m.GetName(), of(o))
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: put, UpdateFunc: func(_, o any) { put(o) },
		DeleteFunc: func(o any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				n.deleteRanges(about, key)
			}
		},
	})
	failed := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		n.recordFailure(kind, about, err)
	})
	trimmed := informer.SetTransform(trim)
	if err != nil || failed != nil || trimmed != nil {
		// Impossible: these calls fail only after the informer was started or stopped.
		n.recordAnswer(kind, about, fmt.Sprintf("%s cannot be watched", kind))
		return
	}
	synced = registration.HasSynced
	var both sync.WaitGroup
	both.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) { // the handler has received all objects
			n.recordAnswer(kind, about, "")
		}
	})
	informer.RunWithContext(ctx)
	both.Wait()
}

// recordFailure logs that one kind cannot be watched now. If the manager cannot list the kind at all, recordFailure
// also records this as the answer of the API server.
func (n *Network) recordFailure(kind string, about *knowledge, err error) {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		n.recordAnswer(kind, about, fmt.Sprintf("the manager cannot list %s", kind))
	}
	n.log.V(1).Info("Failed to watch the network of the cluster; retrying", "kind", kind, "reason", err.Error())
}

// recordAnswer records that the API server has listed one kind, or refuses to list it.
func (n *Network) recordAnswer(kind string, about *knowledge, unknown string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if unknown != "" && about.unknown != unknown {
		n.log.Info("Refusing private addresses to ModelProviders and ToolServers unless --"+netpolicy.AllowFlag+
			" contains them, because the ranges of the cluster are unknown: set them with --"+
			netpolicy.ClusterFlag, "kind", kind, "reason", unknown)
	}
	about.answered, about.unknown, n.ranges = true, unknown, nil
	if n.nodes.answered {
		closeOnce(n.nodesKnown)
	}
	if n.nodes.answered && n.services.answered && n.pods.answered {
		closeOnce(n.known)
	}
}

// closeOnce closes a channel that may be closed already. The caller holds the lock that protects it.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// setRanges records the ranges of one object, which may have none yet.
func (n *Network) setRanges(about *knowledge, name string, ranges []netpolicy.Range) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old, has := about.ranges[name]
	if has && slices.Equal(old, ranges) {
		return // most updates of a Node change no range
	}
	about.ranges[name], n.ranges = ranges, nil
}

// deleteRanges forgets the ranges of an object that was deleted.
func (n *Network) deleteRanges(about *knowledge, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(about.ranges, name)
	n.ranges = nil
}

// Find returns the longest prefix of the cluster that contains addr, or nil if there is none. If the API server does
// not report all prefixes of the cluster, all private networks count as the cluster's. Find waits for the first answer
// of the API server, for up to firstAnswerTimeout.
func (n *Network) Find(ctx context.Context, addr netip.Addr) (*netpolicy.Range, error) {
	if len(n.configured) > 0 {
		return netpolicy.Longest(n.configured, addr), nil
	}
	timer := time.NewTimer(firstAnswerTimeout)
	defer timer.Stop()
	select {
	case <-n.known:
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods.public[addr] > 0 {
		return &netpolicy.Range{Prefix: netip.PrefixFrom(addr, addr.BitLen()), What: ofPods}, nil
	}
	if n.ranges == nil {
		n.ranges = n.all()
	}
	return netpolicy.Longest(n.ranges, addr), nil
}

func (n *Network) all() []netpolicy.Range {
	all := []netpolicy.Range{}
	for _, about := range []*knowledge{&n.nodes, &n.services} {
		for _, name := range slices.Sorted(maps.Keys(about.ranges)) {
			all = append(all, about.ranges[name]...)
		}
	}
	if why := n.unknownReason(); why != "" {
		what := "a private address, and the ranges of the cluster are not known, because " + why + " (the manager's --" +
			netpolicy.ClusterFlag + " would name them)"
		for _, prefix := range Private() {
			all = append(all, netpolicy.Range{Prefix: netip.MustParsePrefix(prefix), What: what, Assumed: true})
		}
	}
	return all
}

// unknownReason returns why the ranges may be incomplete; empty if they are complete.
func (n *Network) unknownReason() string {
	switch {
	case !n.nodes.answered || !n.services.answered || !n.pods.answered:
		return "the API server has not answered yet"
	case n.nodes.unknown != "":
		return n.nodes.unknown
	case n.services.unknown != "":
		return n.services.unknown
	case n.pods.unknown != "":
		return n.pods.unknown
	}
	for _, ranges := range n.nodes.ranges {
		if !slices.ContainsFunc(ranges, func(r netpolicy.Range) bool { return r.What == ofPods }) {
			return "Nodes have no podCIDRs"
		}
	}
	if n.privateOutside() {
		return "Pods have addresses outside of the podCIDRs of their Nodes"
	}
	return ""
}

const (
	ofServices = "an address of the cluster's Services"
	ofPods     = "an address of the cluster's Pods"
	ofNodes    = "an address of the cluster's nodes"
)

// rangesOfNode returns the addresses of a Node and of its Pods.
func rangesOfNode(o any) []netpolicy.Range {
	node, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	ranges := []netpolicy.Range{}
	for _, cidr := range append(slices.Clone(node.Spec.PodCIDRs), node.Spec.PodCIDR) {
		ranges = add(ranges, cidr, ofPods)
	}
	for _, address := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(address.Address); err == nil {
			ranges = add(ranges, netip.PrefixFrom(addr, addr.BitLen()).String(), ofNodes)
		}
	}
	return ranges
}

func rangesOfServiceCIDR(o any) []netpolicy.Range {
	ranges := []netpolicy.Range{}
	if s, ok := o.(*networkingv1.ServiceCIDR); ok {
		for _, cidr := range s.Spec.CIDRs {
			ranges = add(ranges, cidr, ofServices)
		}
	}
	return ranges
}

func add(ranges []netpolicy.Range, cidr, what string) []netpolicy.Range {
	prefix, err := netip.ParsePrefix(cidr)
	if r := (netpolicy.Range{Prefix: prefix.Masked(), What: what}); err == nil && !slices.Contains(ranges, r) {
		ranges = append(ranges, r)
	}
	return ranges
}

// trim removes the fields of a Node that are not needed here, because a cluster may have thousands of Nodes.
func trim(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion, UID: node.UID},
		Spec:       corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: node.Status.Addresses},
	}, nil
}

// serviceOf returns the names of the Services in a namespace that a host name may refer to. It accepts NAME.NAMESPACE,
// NAME.NAMESPACE.svc and longer names with the latter prefix, each also with the name of a Pod in front. A host name
// without a namespace refers to no Service here: it would be resolved in the manager's own namespace.
func serviceOf(namespace, host string) []string {
	labels := strings.Split(strings.ToLower(strings.TrimSuffix(host, ".")), ".")
	var all []string
	for i := 1; i < min(3, len(labels)); i++ {
		if labels[i] == namespace && labels[i-1] != "" && (i+1 == len(labels) || labels[i+1] == "svc") {
			all = append(all, labels[i-1])
		}
	}
	return all
}
