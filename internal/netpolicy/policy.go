// Package netpolicy says which addresses this process connects to on behalf of the objects of a cluster: whoever may write a
// ToolServer or a ModelProvider must not reach what only the process may reach. Addresses are judged when a connection is
// made, after names were resolved, so that no name hides one.
package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// The flags of the manager that the operator of a cluster adds rules with.
const (
	// AllowFlag takes prefixes that may be connected to.
	AllowFlag = "tool-allow-cidrs"
	// DenyFlag takes prefixes that may not.
	DenyFlag = "tool-deny-cidrs"
	// ClusterFlag takes the prefixes of the cluster's Services, Pods and nodes.
	ClusterFlag = "cluster-cidrs"
)

// maxRules bounds each of the operator's lists.
const maxRules = 1000

// Policy says which IP addresses may be connected to. Of all prefixes that hold an address the longest decides, as in a routing
// table; among equal ones, what the operator denies goes before what the operator allows, and that before the built-in table.
// An IPv6 address that stands for an IPv4 address must be allowed as both. A Policy does not change and is safe for concurrent use; nil is the
// built-in table alone.
//
// The addresses of a cluster come after that: one that only a shorter prefix allows is refused, unless it is that of a Service of the
// namespace on whose behalf the connection is made.
type Policy struct {
	entries []entry
	// cluster may be nil: there is none then.
	cluster   Cluster
	namespace string
}

// Cluster knows the addresses of the cluster that a process works for. It is safe for concurrent use.
type Cluster interface {
	// Ranges returns the prefixes of its Services, Pods and nodes. It waits until they are known, for as long as ctx lives.
	Ranges(ctx context.Context) ([]Range, error)
	// Serves reports whether a host name is that of a Service of a namespace, and an address is one that the Service has.
	Serves(ctx context.Context, namespace, host string, addr netip.Addr) (bool, error)
}

// Range is a prefix of addresses of a cluster.
type Range struct {
	Prefix netip.Prefix
	// What says what its addresses are, for messages, such as "an address of the cluster's Services".
	What string
}

// Of returns the policy of a process that works for a cluster.
func (p *Policy) Of(cluster Cluster) *Policy {
	return &Policy{entries: p.rules(), cluster: cluster}
}

// In returns the policy for connections on behalf of objects of a namespace.
func (p *Policy) In(namespace string) *Policy {
	if p == nil || p.cluster == nil {
		return p
	}
	return &Policy{entries: p.entries, cluster: p.cluster, namespace: namespace}
}

func (p *Policy) rules() []entry {
	if p == nil {
		return builtInPolicy.entries
	}
	return p.entries
}

// entry is a prefix with what it says; of two of the same length the later one wins.
type entry struct {
	prefix netip.Prefix
	allow  bool
	// what the addresses are, for messages; empty where the operator has named them.
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

// Parse returns the policy of an operator's prefixes, such as 10.0.0.0/8, fd00::/8 or 127.0.0.1, at most 1,000 each. The error
// says all that is wrong with them, each with its flag and value.
func Parse(allow, deny []string) (*Policy, error) {
	p := &Policy{entries: builtInEntries()}
	return p, errors.Join(p.add(AllowFlag, allow, true), p.add(DenyFlag, deny, false))
}

// Permissive is for a program that one person runs for themselves: it may connect to the machine itself, too, and still to no
// metadata service.
func Permissive() *Policy {
	p := &Policy{entries: builtInEntries()}
	for _, r := range builtIn {
		if r.what == "a loopback address" {
			p.entries = append(p.entries, entry{prefix: netip.MustParsePrefix(r.prefix), allow: true})
		}
	}
	return p
}

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

// parse reads a prefix, or an address alone.
func parse(value string) (netip.Prefix, error) {
	text := strings.TrimSpace(value)
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		addr, ofAddress := netip.ParseAddr(text)
		if ofAddress != nil || addr.Zone() != "" {
			return prefix, errors.New("must be a prefix of IP addresses, such as 10.0.0.0/8 or fd00::/8")
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if prefix.Addr().Is4In6() {
		return prefix, errors.New("must be written as an IPv4 prefix: addresses of the form ::ffff:a.b.c.d are judged as a.b.c.d")
	}
	if prefix != prefix.Masked() {
		return prefix, fmt.Errorf("has bits beyond its length: write %s", prefix.Masked())
	}
	return prefix, nil
}

// ParseCluster returns the prefixes that an operator names as those of the cluster, at most 1,000. The error says all that is wrong with
// them, each with its flag and value.
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

// Check returns nil for an address that may be connected to because a host was named, and else a *Refused, or why the address cannot
// be judged now.
func (p *Policy) Check(ctx context.Context, host string, addr netip.Addr) error {
	addr = addr.WithZone("")
	if v4, ok := embedded(addr); ok {
		if err := p.judge(ctx, host, addr, v4); err != nil || mapped.Contains(addr) {
			return err
		}
	}
	return p.judge(ctx, host, addr, addr)
}

// judge looks an address up, on behalf of one that may stand for it.
func (p *Policy) judge(ctx context.Context, host string, asked, addr netip.Addr) error {
	var best *entry
	rules := p.rules()
	for i := range rules {
		if e := &rules[i]; e.prefix.Contains(addr) && (best == nil || e.prefix.Bits() >= best.prefix.Bits()) {
			best = e
		}
	}
	switch {
	case best == nil:
		return &Refused{Addr: asked, Reason: "it is no IP address"}
	case !best.allow && best.what == "":
		return &Refused{Addr: asked, Reason: fmt.Sprintf("the manager's --%s=%s denies it", DenyFlag, best.prefix)}
	case !best.allow:
		return refuse(asked, addr, best.what)
	case p == nil || p.cluster == nil:
		return nil
	}
	return p.judgeWithin(ctx, best, host, asked, addr)
}

// judgeWithin judges an address that a rule allows, by the ranges of the cluster.
func (p *Policy) judgeWithin(ctx context.Context, rule *entry, host string, asked, addr netip.Addr) error {
	ranges, err := p.cluster.Ranges(ctx)
	if err != nil {
		return fmt.Errorf("failed to find out which addresses belong to the cluster: %w", err)
	}
	var within *Range
	for i := range ranges {
		if r := &ranges[i]; r.Prefix.Contains(addr) && (within == nil || r.Prefix.Bits() > within.Prefix.Bits()) {
			within = r
		}
	}
	named := rule.what == "" // by the operator
	if within == nil || named && within.Prefix.Bits() <= rule.prefix.Bits() {
		return nil
	}
	own, err := p.cluster.Serves(ctx, p.namespace, host, addr)
	switch {
	case err != nil:
		return fmt.Errorf("failed to find out whether %q is a Service of namespace %q: %w", host, p.namespace, err)
	case own:
		return nil
	}
	return refuse(asked, addr, fmt.Sprintf("%s, and %q is no Service of namespace %q", within.What, host, p.namespace))
}

func refuse(asked, addr netip.Addr, what string) *Refused {
	return &Refused{Addr: asked, Reason: fmt.Sprintf("it is %s; the manager's --%s=%s would allow it", what, AllowFlag, netip.PrefixFrom(addr, addr.BitLen()))}
}

// Refused says that an address is not connected to. Nothing was sent to it.
type Refused struct {
	// Addr is the address; none where a host was refused as it is written.
	Addr netip.Addr
	// Host is what stands for the address where a proxy would have connected to it; empty otherwise.
	Host string
	// Reason says what it is, and which flag of the manager decides about it.
	Reason string
}

// Error says so.
func (r *Refused) Error() string {
	switch {
	case r.Host == "":
		return fmt.Sprintf("connections to %s are refused: %s", r.Addr, r.Reason)
	case !r.Addr.IsValid():
		return fmt.Sprintf("connections to %q by way of a proxy are refused: %s", r.Host, r.Reason)
	}
	return fmt.Sprintf("connections to %q by way of a proxy are refused: of its address %s, %s", r.Host, r.Addr, r.Reason)
}
