// Package netpolicy decides which addresses this process connects to for the objects of a cluster. A user who may
// write a ToolServer or a ModelProvider must not reach addresses that only the process may reach. Addresses are
// checked when a connection is made, after names were resolved, so that no name can hide an address.
package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// The flags of the manager by which the operator of a cluster adds rules.
const (
	// AllowFlag names the prefixes to which connections are allowed.
	AllowFlag = "tool-allow-cidrs"
	// DenyFlag names the prefixes to which connections are denied.
	DenyFlag = "tool-deny-cidrs"
	// ClusterFlag names the prefixes of the cluster's Services, Pods and nodes.
	ClusterFlag = "cluster-cidrs"
)

// maxRules bounds each of the operator's lists.
const maxRules = 1000

// Policy decides which IP addresses this process may connect to. The longest prefix that contains an address
// decides, as in a routing table. Among equal prefixes, the operator's denials come first, then the operator's
// permissions, then the built-in table. An IPv6 address that may represent IPv4 addresses must be allowed itself, and
// so must each of these. A Policy does not change and is safe for concurrent use. A nil Policy has only the built-in
// table.
//
// An address of the cluster is refused unless one of these holds: the operator allows it with a prefix that is at
// least as long as the cluster's prefix, or it belongs to a Service of the namespace for which the connection is made.
type Policy struct {
	entries []entry
	// cluster is nil if the process works for no cluster.
	cluster   Cluster
	namespace string
	// buffers bounds the receive buffers of connections, and idle bounds idle connections. They are nil if the process
	// works for no cluster.
	buffers *buffers
	idle    *idle
	// processors pace the data of connections. If it is nil, no connection waits.
	processors *fairgate.Processors
	// inPod is true if the process runs in a Pod.
	inPod bool
	// local is true if the process runs on a person's own machine, and has no flags that allow an address.
	local bool
}

// Cluster knows the addresses of the cluster of this process. It must be safe for concurrent use.
type Cluster interface {
	// Find returns the longest prefix that contains addr, among the prefixes of the cluster's Services, Pods and
	// nodes. It returns nil if none contains addr. It may wait for some seconds until the prefixes are known.
	Find(ctx context.Context, addr netip.Addr) (*Range, error)
	// Serves reports whether a host name is the name of a Service of a namespace, and an address is one of that
	// Service's addresses.
	Serves(ctx context.Context, namespace, host string, addr netip.Addr) (bool, error)
}

// Longest returns the longest of the ranges that contains addr, or nil if none does.
func Longest(ranges []Range, addr netip.Addr) *Range {
	var longest *Range
	for i := range ranges {
		if r := &ranges[i]; r.Prefix.Contains(addr) && (longest == nil || r.Prefix.Bits() > longest.Prefix.Bits()) {
			longest = r
		}
	}
	return longest
}

// Range is a prefix of addresses of a cluster.
type Range struct {
	Prefix netip.Prefix
	// What describes the addresses for messages, such as "an address of the cluster's Services".
	What string
	// Assumed is true if the addresses count as the cluster's only because not all of its ranges are known.
	Assumed bool
}

// ForCluster returns the policy of a process that works for a cluster.
func (p *Policy) ForCluster(cluster Cluster) *Policy {
	return &Policy{entries: p.rules(), cluster: cluster, buffers: &buffers{}, idle: &idle{}, inPod: p != nil && p.inPod}
}

// InPod returns the policy of a process that runs in a Pod. It allows the same addresses. Only its messages differ:
// there, a loopback address leads to the Pod itself, although the author of an object often means their own machine.
func (p *Policy) InPod() *Policy {
	policy := Policy{entries: p.rules()}
	if p != nil {
		policy = *p
	}
	policy.inPod = true
	return &policy
}

// ForNamespace returns the policy for connections for objects of a namespace.
func (p *Policy) ForNamespace(namespace string) *Policy {
	if p == nil || p.cluster == nil {
		return p
	}
	own := *p
	own.namespace = namespace
	return &own
}

// Paced returns the policy of a process in which namespaces take turns at the processors: the data of a connection then
// arrives no faster than its namespace may process it.
func (p *Policy) Paced(processors *fairgate.Processors) *Policy {
	paced := *p
	paced.processors = processors
	return &paced
}

func (p *Policy) rules() []entry {
	if p == nil {
		return builtInPolicy.entries
	}
	return p.entries
}

// entry is a prefix and its rule. Of two entries with the same length, the later one decides.
type entry struct {
	prefix netip.Prefix
	allow  bool
	// what describes the addresses for messages; empty for a prefix of the operator.
	what string
}

var builtInPolicy = &Policy{entries: builtInEntries()}

func builtInEntries() []entry {
	entries := make([]entry, 0, len(builtIn))
	for _, r := range builtIn {
		entries = append(entries, entry{prefix: netip.MustParsePrefix(r.prefix), allow: r.allow, what: r.what})
	}
	return entries
}

// Parse returns the policy of an operator's prefixes, such as 10.0.0.0/8, fd00::/8 or 127.0.0.1, at most 1,000 of
// each kind. The error names all invalid prefixes, each with its flag and value.
func Parse(allow, deny []string) (*Policy, error) {
	p := &Policy{entries: builtInEntries()}
	return p, errors.Join(p.add(AllowFlag, allow, true), p.add(DenyFlag, deny, false))
}

// NewLocalPolicy returns the policy for a program that runs on a person's own machine. The program may also connect to
// this machine, but not to a metadata service.
func NewLocalPolicy() *Policy {
	p := &Policy{entries: builtInEntries(), local: true}
	for _, r := range builtIn {
		if r.what == loopback {
			p.entries = append(p.entries, entry{prefix: netip.MustParsePrefix(r.prefix), allow: true})
		}
	}
	return p
}

// isLocal reports whether the policy is from NewLocalPolicy.
func (p *Policy) isLocal() bool { return p != nil && p.local }

func (p *Policy) add(flag string, values []string, allow bool) error {
	if len(values) > maxRules {
		return fmt.Errorf("--%s must name at most %d prefixes, not %d", flag, maxRules, len(values))
	}
	var errs []error
	for _, value := range values {
		prefix, err := parse(value)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %q %w", flag, value, err))
			continue
		}
		p.entries = append(p.entries, entry{prefix: prefix, allow: allow})
	}
	return errors.Join(errs...)
}

// parse parses a prefix, or a single address.
func parse(value string) (netip.Prefix, error) {
	text := strings.TrimSpace(value)
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		addr, addrErr := netip.ParseAddr(text)
		if addrErr != nil || addr.Zone() != "" {
			return prefix, errors.New("must be a prefix of IP addresses, such as 10.0.0.0/8 or fd00::/8")
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if prefix.Addr().Is4In6() {
		return prefix, errors.New("must be written as an IPv4 prefix: addresses of the form ::ffff:a.b.c.d are treated as a.b.c.d")
	}
	if prefix != prefix.Masked() {
		return prefix, fmt.Errorf("has bits beyond its length: write %s", prefix.Masked())
	}
	return prefix, nil
}

// ParseCluster returns the prefixes of the cluster that an operator names, at most 1,000. The error names all invalid
// prefixes, each with its flag and value.
func ParseCluster(values []string) ([]netip.Prefix, error) {
	p := &Policy{}
	if err := p.add(ClusterFlag, values, false); err != nil {
		return nil, err
	}
	prefixes := make([]netip.Prefix, 0, len(p.entries))
	for _, e := range p.entries {
		prefixes = append(prefixes, e.prefix)
	}
	return prefixes, nil
}

// Check checks an address that host resolves to. It returns nil if connections to the address are allowed, a *Refused
// if they are refused, and another error if the address cannot be checked now.
func (p *Policy) Check(ctx context.Context, host string, addr netip.Addr) error {
	addr = addr.WithZone("")
	for _, v4 := range embedded(addr) {
		if err := p.checkRules(ctx, host, addr, v4); err != nil {
			return err
		}
	}
	if mapped.Contains(addr) { // a connection to such an address is a connection over IPv4
		return nil
	}
	return p.checkRules(ctx, host, addr, addr)
}

// checkRules checks addr by the rules. original is the address for the error. It differs from addr if it is an IPv6
// address that represents addr.
func (p *Policy) checkRules(ctx context.Context, host string, original, addr netip.Addr) error {
	var best *entry
	rules := p.rules()
	for i := range rules {
		if e := &rules[i]; e.prefix.Contains(addr) && (best == nil || e.prefix.Bits() >= best.prefix.Bits()) {
			best = e
		}
	}
	switch {
	case best == nil:
		return &Refused{Addr: original, Reason: "it is not an IP address"}
	case !best.allow && best.what == "":
		return &Refused{Addr: original, Reason: fmt.Sprintf("the manager's --%s=%s denies it", DenyFlag, best.prefix)}
	case !best.allow && best.what == loopback && p != nil && p.inPod:
		return &Refused{Addr: original, Reason: fmt.Sprintf("it is %s, which leads to the manager's own Pod: run the server "+
			"as a Service in the cluster, and use its name; only for a container in the manager's Pod, allow it with --%s=%s",
			loopback, AllowFlag, netip.PrefixFrom(addr, addr.BitLen()))}
	case !best.allow && p.isLocal():
		return &Refused{Addr: original, Reason: fmt.Sprintf("it is %s, to which capstan does not connect on your machine", best.what)}
	case !best.allow:
		return refusal(original, addr, best.what)
	case p == nil || p.cluster == nil:
		return nil
	}
	return p.checkCluster(ctx, best, host, original, addr)
}

// checkCluster checks an address that a rule allows against the ranges of the cluster.
func (p *Policy) checkCluster(ctx context.Context, rule *entry, host string, original, addr netip.Addr) error {
	within, err := p.cluster.Find(ctx, addr)
	if err != nil {
		return fmt.Errorf("failed to find out which addresses belong to the cluster: %w", err)
	}
	isOperatorRule := rule.what == ""
	if within == nil || isOperatorRule && within.Prefix.Bits() <= rule.prefix.Bits() {
		return nil
	}
	isOwn, err := p.cluster.Serves(ctx, p.namespace, host, addr)
	switch {
	case err != nil:
		return fmt.Errorf("failed to find out whether %q is a Service of namespace %q: %w", host, p.namespace, err)
	case isOwn:
		return nil
	}
	refused := refusal(original, addr, fmt.Sprintf("%s, and %q is not a Service of namespace %q", within.What, host, p.namespace))
	refused.Temporary = within.Assumed
	return refused
}

func refusal(original, addr netip.Addr, what string) *Refused {
	return &Refused{Addr: original, Reason: fmt.Sprintf("it is %s; the manager's --%s=%s would allow it", what, AllowFlag,
		netip.PrefixFrom(addr, addr.BitLen()))}
}

// Refused means that the policy does not allow an address. Nothing was sent to that address.
type Refused struct {
	// Addr is the address. It is not set if a host was refused because of its form.
	Addr netip.Addr
	// Host is the host name if a proxy would have connected to the host, and otherwise empty.
	Host string
	// Reason describes the address, and names the manager's flag that decides.
	Reason string
	// Temporary is true if the address was refused because not all ranges of the cluster are known. They can become
	// known soon, for example when a new Node gets its podCIDR.
	Temporary bool
}

// Error returns the message.
func (r *Refused) Error() string {
	switch {
	case r.Host == "":
		return fmt.Sprintf("connections to %s are refused: %s", r.Addr, r.Reason)
	case !r.Addr.IsValid():
		return fmt.Sprintf("connections to %q through a proxy are refused: %s", r.Host, r.Reason)
	}
	return fmt.Sprintf("connections to %q through a proxy are refused because of its address %s: %s", r.Host, r.Addr, r.Reason)
}
