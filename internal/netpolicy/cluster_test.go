package netpolicy_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// cluster is a netpolicy.Cluster with Services of some namespaces.
type cluster struct {
	services map[string]string // the address of each Service, by namespace and host
	err      error
}

func (c cluster) Find(_ context.Context, addr netip.Addr) (*netpolicy.Range, error) {
	return netpolicy.Longest([]netpolicy.Range{
		{Prefix: netip.MustParsePrefix("10.96.0.0/12"), What: "an address of the cluster's Services"},
		{Prefix: netip.MustParsePrefix("192.168.7.5/32"), What: "an address of the cluster's nodes"},
		{Prefix: netip.MustParsePrefix("fd00:5::/112"), What: "an address of the cluster's Services"},
	}, addr), c.err
}

func (c cluster) Serves(_ context.Context, namespace, host string, addr netip.Addr) (bool, error) {
	return c.services[namespace+" "+host] == addr.String(), nil
}

func TestAddressesOfTheCluster(t *testing.T) {
	mine := cluster{services: map[string]string{
		"mine tickets.mine.svc":     "10.96.0.7",
		"theirs secrets.theirs.svc": "10.96.0.8", "mine wild.mine.svc": "169.254.169.254",
	}}
	for name, tc := range map[string]struct {
		allow, deny []string
		namespace   string
		host, addr  string
		want        string // a part of the message, or empty if the address is allowed
	}{
		"a Service of the same namespace": {nil, nil, "mine", "tickets.mine.svc", "10.96.0.7", ""},
		"a Service of another namespace": {
			nil, nil, "mine", "secrets.theirs.svc", "10.96.0.8",
			`it is an address of the cluster's Services, and "secrets.theirs.svc" is not a Service of namespace ` +
				`"mine"; the manager's --tool-allow-cidrs=10.96.0.8/32 would allow it`,
		},
		"a Service of the same namespace, by a rebound name": {
			nil, nil, "mine", "tickets.mine.svc", "10.96.0.8",
			"of the cluster's Services",
		},
		"another form of an address": {
			nil, nil, "mine", "x.example", "::ffff:10.96.0.8",
			"of the cluster's Services",
		},
		"NAT64": {
			nil, nil, "mine", "x.example", "64:ff9b::a60:8",
			"of the cluster's Services",
		},
		"IPv6":                  {nil, nil, "mine", "x.example", "fd00:5::9", "of the cluster's Services"},
		"a node":                {nil, nil, "mine", "x.example", "192.168.7.5", "of the cluster's nodes"},
		"another machine":       {nil, nil, "mine", "x.example", "192.168.7.6", ""},
		"outside":               {nil, nil, "mine", "x.example", "93.184.216.34", ""},
		"metadata as a Service": {nil, nil, "mine", "wild.mine.svc", "169.254.169.254", "metadata service"},
		"the range, by name":    {[]string{"10.96.0.0/12"}, nil, "mine", "x.example", "10.96.0.8", ""},
		"one address, by name":  {[]string{"10.96.0.8"}, nil, "mine", "x.example", "10.96.0.8", ""},
		"a wide rule": {
			[]string{"10.0.0.0/8", "0.0.0.0/0"},
			nil, "mine",
			"x.example", "10.96.0.8", "of the cluster's Services",
		},
		"a Service of the same namespace, but Services are denied": {
			nil,
			[]string{"10.96.0.0/12"},
			"mine",
			"tickets.mine.svc", "10.96.0.7", "--tool-deny-cidrs=10.96.0.0/12 denies it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := netpolicy.Parse(tc.allow, tc.deny)
			if err != nil {
				t.Fatal(err)
			}
			err = p.ForCluster(mine).ForNamespace(tc.namespace).Check(t.Context(), tc.host, netip.MustParseAddr(tc.addr))
			_, refused := errors.AsType[*netpolicy.Refused](err)
			if refused != (tc.want != "") || refused && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s at %s: %v, want %q", tc.host, tc.addr, err, tc.want)
			}
		})
	}
	away := (*netpolicy.Policy)(nil).ForCluster(cluster{err: errors.New("away")}).ForNamespace("mine").Check(t.Context(), "x.example",
		netip.MustParseAddr("10.96.0.8"))
	if _, refused := errors.AsType[*netpolicy.Refused](away); refused || away == nil {
		t.Errorf("while the cluster is not known: %v, want an error that is not a *Refused", away)
	}
}

// TestRebinding connects to a host that had the address of a Service of its own namespace when it was checked before,
// and has another address now. The host is an IP address, because this test has no DNS server.
func TestRebinding(t *testing.T) {
	services := map[string]string{"mine 192.168.7.5": "10.96.0.7"}
	dial := (*netpolicy.Policy)(nil).ForCluster(cluster{services: services}).ForNamespace("mine").DialContext(0)
	_, err := dial(t.Context(), "tcp", "192.168.7.5:80")
	if _, refused := errors.AsType[*netpolicy.Refused](err); !refused {
		t.Errorf("%v, want a *Refused: the address must be checked when the connection is made", err)
	}
}

func TestReservedHeaders(t *testing.T) {
	for name, want := range map[string]bool{
		"Cookie": true, "host": true, "X-Forwarded-For": true, "X_Real_IP": true, "Impersonate-Extra-Scopes": true, "x-remote-user": true,
		"Transfer-Encoding": true, "Keep-Alive": true, "Accept-Encoding": true, "Forwarded": true, "X-Forwarded": true,
		"Proxy-Connection": true,
		"X-Api-Key":        false, "X-Team": false, "Hosted-By": false, "X-Forward": false, "Cookies": false,
		"Accept-Language": false, "Mcp-Tenant": false,
	} {
		if got := netpolicy.CheckHeader(name) != nil; got != want {
			t.Errorf("%s is refused: %t, want %t", name, got, want)
		}
	}
}
