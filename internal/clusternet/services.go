package clusternet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capstan-dev/capstan/internal/grace"
)

const (
	// serviceTTL is how long the addresses of a Service are used before they are read again.
	serviceTTL = 10 * time.Second
	// maxNames bounds the number of cached Services of all namespaces.
	maxNames = 4096
	// maxSlicesOfService bounds the EndpointSlices that are read for a headless Service.
	maxSlicesOfService = 100
)

// names caches the addresses of Services.
type names struct {
	mu    sync.Mutex
	known map[[2]string]*service
}

// service holds the last known addresses of one Service.
type service struct {
	addrs []netip.Addr
	read  time.Time
	// refusal holds whether the API server has forbidden to read the Service since the time read. The lock of names
	// guards it.
	refusal grace.Refusal
}

// Serves reports whether a host name refers to a Service of the namespace and addr is an address of that Service, or of
// its Pods if it is headless. While the API server is unreachable, the last known addresses apply. While it forbids to
// read the Service, they apply for up to grace.Period.
func (n *Network) Serves(ctx context.Context, namespace, host string, addr netip.Addr) (bool, error) {
	if namespace == "" {
		return false, nil
	}
	for _, name := range serviceOf(namespace, host) {
		addrs, err := n.addresses(ctx, namespace, name)
		if err != nil {
			return false, err
		}
		if slices.Contains(addrs, addr.Unmap()) {
			return true, nil
		}
	}
	return false, nil
}

// addresses returns the addresses of a Service, or nil if it does not exist.
func (n *Network) addresses(ctx context.Context, namespace, name string) ([]netip.Addr, error) {
	key := [2]string{namespace, name}
	n.names.mu.Lock()
	before := n.names.known[key]
	n.names.mu.Unlock()
	if before != nil && n.now().Sub(before.read) < serviceTTL {
		return before.addrs, nil
	}
	addrs, err := n.read(ctx, namespace, name)
	switch {
	case err == nil:
	case before != nil && n.names.bridges(before, err, n.now()):
		return before.addrs, nil
	case apierrors.IsForbidden(err):
		// Without the permission to read Services, no address counts as one of a Service. The message about the refused
		// address says how to allow the address in another way.
		return nil, nil
	default:
		return nil, err
	}
	n.names.mu.Lock()
	defer n.names.mu.Unlock()
	if len(n.names.known) >= maxNames {
		clear(n.names.known)
	}
	n.names.known[key] = &service{addrs: addrs, read: n.now()}
	return addrs, nil
}

// bridges reports whether the last known addresses apply although the Service could not be read again.
func (n *names) bridges(s *service, err error, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return s.refusal.Bridges(err, now)
}

func (n *Network) read(ctx context.Context, namespace, name string) ([]netip.Addr, error) {
	if len(validation.IsDNS1035Label(name)) > 0 && len(validation.IsDNS1123Label(name)) > 0 {
		return nil, nil
	}
	s, err := n.clientset.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get Service %q: %w", name, err)
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, nil // it refers to another host, whose addresses are checked as if the URL named that host
	}
	if s.Spec.ClusterIP != corev1.ClusterIPNone {
		return parseAddrs(s.Spec.ClusterIPs), nil
	}
	if len(s.Spec.Selector) == 0 {
		return nil, nil // its endpoints were written by hand, and may be any addresses
	}
	slices, err := n.clientset.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + name + "," + discoveryv1.LabelManagedBy + "=endpointslice-controller.k8s.io",
		Limit:         maxSlicesOfService,
	})
	if err != nil {
		return nil, fmt.Errorf("failed to list the EndpointSlices of Service %q: %w", name, err)
	}
	var addrs []netip.Addr
	for i := range slices.Items {
		for _, e := range slices.Items[i].Endpoints {
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
				addrs = append(addrs, parseAddrs(e.Addresses)...)
			}
		}
	}
	return addrs, nil
}

func parseAddrs(texts []string) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
