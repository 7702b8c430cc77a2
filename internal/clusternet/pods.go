package clusternet

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

const (
	// maxPublic bounds the public addresses of Pods that are remembered, and maxSlices the EndpointSlices.
	maxPublic = 16_384
	maxSlices = 16_384
	// maxWitnesses bounds the Pods of an EndpointSlice that are remembered for their private addresses.
	maxWitnesses = 8
)

// ofController selects the EndpointSlices that Kubernetes' own controller writes from Pods.
const ofController = discoveryv1.LabelManagedBy + "=endpointslice-controller.k8s.io"

// podsOutside holds the Pods in EndpointSlices whose addresses are outside of the podCIDRs of their Nodes. Networks
// with their own address pools have such Pods. Other Pods, which may be very many, are not kept.
type podsOutside struct {
	knowledge
	// slices holds the EndpointSlices that have such Pods, by namespace and name; at most maxSlices.
	slices map[string]outside
	// public holds the public addresses of such Pods, with the number of EndpointSlices that name each address; at most
	// maxPublic.
	public map[netip.Addr]int
	// full is true once a bound was reached.
	full bool
}

// outside holds the Pods of an EndpointSlice whose addresses the podCIDRs of their Nodes did not contain.
type outside struct {
	// private holds up to maxWitnesses ready Pods with a private address. If the Node of such a Pod is known, all
	// private addresses count as the cluster's. The Pods are compared with their Nodes whenever the ranges are
	// computed, because a Node may change or become known.
	private []podAddress
	// public holds the public addresses. Each of them counts as an address of the cluster.
	public []netip.Addr
}

type podAddress struct {
	node string
	addr netip.Addr
}

func (o outside) empty() bool { return len(o.private)+len(o.public) == 0 }

// watchPods watches EndpointSlices until ctx ends, and updates n.pods. It begins when the Nodes are known, because it
// compares the Pods with them.
func (n *Network) watchPods(ctx context.Context) {
	select {
	case <-n.nodesKnown:
	case <-ctx.Done():
		return
	}
	const kind = "EndpointSlices"
	endpoints := n.clientset.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = ofController
			list, err := endpoints.List(ctx, o)
			if err != nil {
				n.recordFailure(kind, &n.pods.knowledge, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = ofController
			w, err := endpoints.Watch(ctx, o)
			if err != nil {
				n.recordFailure(kind, &n.pods.knowledge, err)
			}
			return w, err
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, n.clientset), &discoveryv1.EndpointSlice{},
		sliceStore{n}, cache.ReflectorOptions{Name: kind}).RunWithContext(ctx)
}

// privateOutside reports whether a Pod has a private address that the podCIDRs of its Node do not contain. The caller
// must hold n.mu.
func (n *Network) privateOutside() bool {
	for _, o := range n.pods.slices {
		for _, p := range o.private {
			if node, known := n.nodes.ranges[p.node]; known && netpolicy.Longest(node, p.addr) == nil {
				return true
			}
		}
	}
	return false
}

// outsideOf returns the Pods of an EndpointSlice that have addresses outside of the podCIDRs of their Nodes. The caller
// must hold n.mu.
func (n *Network) outsideOf(s *discoveryv1.EndpointSlice) outside {
	var o outside
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
			continue
		}
		name := ""
		if e.NodeName != nil {
			name = *e.NodeName
		}
		// A Pod that is not ready may be a remnant of an earlier Node with the same name.
		ready := e.Conditions.Ready == nil || *e.Conditions.Ready
		for _, addr := range parseAddrs(e.Addresses) {
			switch {
			case netpolicy.Longest(n.nodes.ranges[name], addr) != nil:
			case !isPrivate(addr):
				o.public = append(o.public, addr)
			case ready && len(o.private) < maxWitnesses:
				o.private = append(o.private, podAddress{node: strings.Clone(name), addr: addr})
			}
		}
	}
	return o
}

var privatePrefixes = func() []netip.Prefix {
	var prefixes []netip.Prefix
	for _, text := range Private() {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	return prefixes
}()

func isPrivate(addr netip.Addr) bool {
	return slices.ContainsFunc(privatePrefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// setOutside records the Pods of an EndpointSlice that are outside of podCIDRs. after is the zero value if the
// EndpointSlice was deleted. The caller must hold n.mu.
func (n *Network) setOutside(key string, after outside) {
	before := n.pods.slices[key]
	for _, addr := range before.public {
		if n.pods.public[addr]--; n.pods.public[addr] <= 0 {
			delete(n.pods.public, addr)
		}
	}
	if before.empty() && len(n.pods.slices) >= maxSlices {
		if !after.empty() {
			n.warnFull()
		}
		return
	}
	kept := after.public[:0:0]
	for _, addr := range after.public {
		if n.pods.public[addr] == 0 && len(n.pods.public) >= maxPublic {
			n.warnFull()
			continue
		}
		n.pods.public[addr]++
		kept = append(kept, addr)
	}
	after.public = kept
	if !slices.Equal(before.private, after.private) {
		n.ranges = nil
	}
	if after.empty() {
		delete(n.pods.slices, key)
		return
	}
	n.pods.slices[key] = after
}

// warnFull logs once that not all Pods outside of podCIDRs are remembered. The caller must hold n.mu.
func (n *Network) warnFull() {
	if !n.pods.full {
		n.pods.full = true
		n.log.Info("Too many Pods are outside of the podCIDRs of their Nodes to remember all of them: set --"+netpolicy.ClusterFlag,
			"addresses", maxPublic, "endpointSlices", maxSlices)
	}
}

// sliceStore receives the EndpointSlices of the reflector. It keeps only Pods outside of the podCIDRs of their Nodes.
type sliceStore struct{ *Network }

func sliceKey(s *discoveryv1.EndpointSlice) string { return s.Namespace + "/" + s.Name }

// Add receives an EndpointSlice.
func (s sliceStore) Add(o any) error {
	if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.setOutside(sliceKey(slice), s.outsideOf(slice))
	}
	return nil
}

// Update receives an EndpointSlice that has changed.
func (s sliceStore) Update(o any) error { return s.Add(o) }

// Delete receives an EndpointSlice that was deleted.
func (s sliceStore) Delete(o any) error {
	if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.setOutside(sliceKey(slice), outside{})
	}
	return nil
}

// Replace receives all EndpointSlices.
func (s sliceStore) Replace(all []any, _ string) error {
	s.mu.Lock()
	s.pods.slices, s.pods.public = map[string]outside{}, map[netip.Addr]int{}
	s.ranges = nil
	for _, o := range all {
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
			s.setOutside(sliceKey(slice), s.outsideOf(slice))
		}
	}
	s.mu.Unlock()
	s.recordAnswer("EndpointSlices", &s.pods.knowledge, "")
	return nil
}

// Resync does nothing: private addresses are compared with the current Nodes whenever the ranges are computed, and an
// EndpointSlice is updated when its Pods change.
func (s sliceStore) Resync() error { return nil }

// Transformer returns a function that removes the endpoints of an EndpointSlice without Pods outside of podCIDRs. This
// saves memory, because the reflector holds all EndpointSlices of the first list until that list is complete.
func (s sliceStore) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			return o, nil
		}
		kept := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: slice.Namespace, Name: slice.Name, UID: slice.UID, ResourceVersion: slice.ResourceVersion,
		}}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.outsideOf(slice).empty() {
			kept.Endpoints = slice.Endpoints
		}
		return kept, nil
	}
}
