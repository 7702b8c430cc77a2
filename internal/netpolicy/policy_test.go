package netpolicy_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		reason      string
		allow, deny []string
		allowed     []string
		refused     []string
	}{
		"built in": {
			"the machine itself and a cloud's credentials are not reachable", nil, nil,
			[]string{
				"10.0.0.1", "192.168.1.1", "93.184.216.34", "100.64.0.1", "fd00::1", "2606:2800::1", "::ffff:10.0.0.1",
				"64:ff9b::a00:1", "2002:a00:1::1", "64:ff9b:1::a00:1", "::ffff:0:10.0.0.1", "2001::f5ff:fffe", "2001:4860::1",
				"64:ff9b:1:a00:0:100::", "64:ff9b:1:a:0:1::", "64:ff9b:1:0:a:0:100:0", "2002:808:808::5efe:a00:1",
			},
			[]string{
				"127.0.0.1", "127.255.255.255", "::1", "0.0.0.0", "0.1.2.3", "::", "::7f00:1", "169.254.1.1", "fe80::1",
				"fe80::1%eth0", "224.0.0.1", "ff02::1",
				"255.255.255.255", "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1", "fd00:42::42", "fd12:3456::5efe:a9fe:a9fe",
				"2001:db8::200:5efe:7f00:1", "169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200",
				"192.0.0.192", "168.63.129.16",
				"169.254.170.23", "fd00:ec2::23", "fd20:ce::254", "64:ff9b:1::7f00:1", "64:ff9b:1:ffff::a9fe:a9fe",
				"::ffff:0:127.0.0.1", "::ffff:0:a9fe:a9fe",
				"2001:0:4136:e378:8000:63bf:80ff:fffe", "2001::5601:5601",
				"::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1",
				"2002:808:808::5efe:a9fe:a9fe", "2001:0:4136:e378:0:5efe:5601:5601", "2001:0:4136:e378:0:5efe:a9fe:a9fe",
				"64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1:0:a9:fea9:fe00:0", "64:ff9b:1:a9fe:a9:fe00:a00:1",
				"64:ff9b:1::",
			},
		},
		"loopback": {
			"a rule allows only its addresses, in all their forms",
			[]string{"127.0.0.0/8", "::1"},
			nil,
			[]string{"127.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"},
			[]string{"169.254.169.254", "0.0.0.0", "::"},
		},
		"wide": {
			"a wide rule does not allow a single metadata address",
			[]string{"169.254.0.0/16", "0.0.0.0/0", "::/0", "100.64.0.0/10"},
			nil,
			[]string{"169.254.1.1", "100.100.100.201"},
			[]string{"169.254.169.254", "100.100.100.200", "127.0.0.1", "::1"},
		},
		"metadata, by name": {
			"a rule for exactly this address allows it",
			[]string{"169.254.169.254"},
			nil,
			[]string{"169.254.169.254", "::ffff:169.254.169.254"},
			[]string{"169.254.170.2"},
		},
		"one network": {"the longest prefix decides", []string{"10.0.0.0/8", "10.1.2.3"}, []string{
			"0.0.0.0/0",
			"::/0", "10.1.0.0/16",
		}, []string{"10.0.0.1", "10.1.2.3"}, []string{"93.184.216.34", "10.1.0.1", "fd00::1"}},
		"both": {
			"of equal prefixes, the denial decides",
			[]string{"10.0.0.0/8"},
			[]string{"10.0.0.0/8"},
			nil,
			[]string{"10.0.0.1", "::ffff:10.0.0.1"},
		},
		"a form denied": {
			"the IPv6 form must be allowed as well", nil,
			[]string{"64:ff9b::/96"},
			[]string{"10.0.0.1"},
			[]string{"64:ff9b::a00:1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := netpolicy.Parse(tc.allow, tc.deny)
			if err != nil {
				t.Fatal(err)
			}
			for _, addr := range tc.allowed {
				if err := p.Check(t.Context(), "", netip.MustParseAddr(addr)); err != nil {
					t.Errorf("%s: %v, want it allowed: %s", addr, err, tc.reason)
				}
			}
			for _, addr := range tc.refused {
				err := p.Check(t.Context(), "", netip.MustParseAddr(addr))
				refused, ok := errors.AsType[*netpolicy.Refused](err)
				if !ok || !strings.Contains(err.Error(), refused.Addr.String()) || !strings.Contains(err.Error(), "--tool-") {
					t.Errorf("%s: %v, want it refused with the address and the flag: %s", addr, err, tc.reason)
				}
			}
		})
	}
	if err := (*netpolicy.Policy)(nil).Check(t.Context(), "", netip.MustParseAddr("127.0.0.1")); err == nil {
		t.Error("no policy allows loopback, want the built-in table")
	}
	permissive := netpolicy.NewLocalPolicy()
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "10.0.0.1": true, "169.254.169.254": false,
		"fd00:ec2::254": false,
	} {
		if err := permissive.Check(t.Context(), "", netip.MustParseAddr(addr)); (err == nil) != want {
			t.Errorf("local policy, %s: %v, want allowed: %t", addr, err, want)
		}
	}
}

func TestMessages(t *testing.T) {
	p, err := netpolicy.Parse(nil, []string{"10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"127.0.0.1": "connections to 127.0.0.1 are refused: it is a loopback address; the manager's " +
			"--tool-allow-cidrs=127.0.0.1/32 would allow it",
		"::ffff:127.0.0.1": "connections to ::ffff:127.0.0.1 are refused: it is a loopback address; the " +
			"manager's --tool-allow-cidrs=127.0.0.1/32 would allow it",
		"169.254.169.254": "connections to 169.254.169.254 are refused: it is an address of a cloud's metadata " +
			"service; the manager's --tool-allow-cidrs=169.254.169.254/32 would allow it",
		"10.1.2.3": "connections to 10.1.2.3 are refused: the manager's --tool-deny-cidrs=10.0.0.0/8 denies it",
		"0.0.0.0": "connections to 0.0.0.0 are refused: it is the unspecified address; the manager's " +
			"--tool-allow-cidrs=0.0.0.0/32 would allow it",
		"0.1.2.3": "connections to 0.1.2.3 are refused: it is an address of \"this network\" (RFC 791); the manager's " +
			"--tool-allow-cidrs=0.1.2.3/32 would allow it",
		"::": "connections to :: are refused: it is the unspecified address; the manager's --tool-allow-cidrs=::/128 would allow it",
		"::7f00:1": "connections to ::7f00:1 are refused: it is an IPv4-compatible address, a form that RFC 4291 deprecates; " +
			"the manager's --tool-allow-cidrs=::7f00:1/128 would allow it",
	} {
		if err := p.Check(t.Context(), "", netip.MustParseAddr(addr)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
	// capstan has no flag that allows an address.
	const want = "connections to 169.254.169.254 are refused: it is an address of a cloud's metadata service, to which capstan does not " +
		"connect on your machine"
	if err := netpolicy.NewLocalPolicy().Check(t.Context(), "", netip.MustParseAddr("169.254.169.254")); err == nil || err.Error() != want {
		t.Errorf("local policy: %v, want %q", err, want)
	}
}

// TestLoopbackInAPod checks the message of a process in a Pod. A loopback address is then no address of the user's
// machine, so the flag alone would not help.
func TestLoopbackInAPod(t *testing.T) {
	const hint = "which leads to the manager's own Pod: run the server as a Service in the cluster, and use its name; " +
		"only for a container in the manager's Pod, allow it with --tool-allow-cidrs="
	pod := (*netpolicy.Policy)(nil).InPod().ForCluster(cluster{}).ForNamespace("mine")
	for addr, want := range map[string]string{
		"127.0.0.1":        "connections to 127.0.0.1 are refused: it is a loopback address, " + hint + "127.0.0.1/32",
		"::1":              "connections to ::1 are refused: it is a loopback address, " + hint + "::1/128",
		"::ffff:127.0.0.1": "connections to ::ffff:127.0.0.1 are refused: it is a loopback address, " + hint + "127.0.0.1/32",
		"169.254.169.254": "connections to 169.254.169.254 are refused: it is an address of a cloud's metadata " +
			"service; the manager's --tool-allow-cidrs=169.254.169.254/32 would allow it",
	} {
		if err := pod.Check(t.Context(), "x.example", netip.MustParseAddr(addr)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
	p, err := netpolicy.Parse([]string{"127.0.0.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.ForCluster(cluster{}).InPod().Check(t.Context(), "", netip.MustParseAddr("127.0.0.1")); err != nil {
		t.Errorf("with a rule that allows it: %v, want it allowed", err)
	}
}

func TestParseErrors(t *testing.T) {
	for value, want := range map[string]string{
		"":             `--tool-deny-cidrs: "" must be a prefix of IP addresses, such as 10.0.0.0/8 or fd00::/8`,
		"localhost":    `--tool-deny-cidrs: "localhost" must be a prefix of IP addresses, such as 10.0.0.0/8 or fd00::/8`,
		"10.0.0.0/33":  `--tool-deny-cidrs: "10.0.0.0/33" must be a prefix of IP addresses, such as 10.0.0.0/8 or fd00::/8`,
		"fe80::1%eth0": `--tool-deny-cidrs: "fe80::1%eth0" must be a prefix of IP addresses, such as 10.0.0.0/8 or fd00::/8`,
		"10.1.2.3/8":   `--tool-deny-cidrs: "10.1.2.3/8" has bits beyond its length: write 10.0.0.0/8`,
		"::ffff:10.0.0.1": `--tool-deny-cidrs: "::ffff:10.0.0.1" must be written as an IPv4 prefix: addresses ` +
			`of the form ::ffff:a.b.c.d are treated as a.b.c.d`,
		"::ffff:10.0.0.0/8": `--tool-deny-cidrs: "::ffff:10.0.0.0/8" must be written as an IPv4 prefix: ` +
			`addresses of the form ::ffff:a.b.c.d are treated as a.b.c.d`,
	} {
		if _, err := netpolicy.Parse(nil, []string{value}); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", value, err, want)
		}
	}
	_, err := netpolicy.Parse([]string{"x"}, []string{"y"})
	if err == nil || !strings.Contains(err.Error(), `--tool-allow-cidrs: "x"`) || !strings.Contains(err.Error(), `--tool-deny-cidrs: "y"`) {
		t.Errorf("Parse = %v, want all invalid prefixes", err)
	}
	if _, err := netpolicy.Parse(make([]string, 1001), nil); err == nil || !strings.Contains(err.Error(), "at most 1000") {
		t.Errorf("Parse of 1,001 = %v, want a bound", err)
	}
}

// TestNamesHideNothing connects by names that resolve to a refused address. The address is known only when the
// connection is made.
func TestNamesHideNothing(t *testing.T) {
	reached := make(chan struct{}, 1)
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	t.Cleanup(web.Close)
	_, port, err := net.SplitHostPort(web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	transport := netpolicy.Transport(nil, 5*time.Second, nil)
	t.Cleanup(transport.CloseIdleConnections)
	for _, host := range []string{"localhost", "127.0.0.1", "127.1.2.3", "[::ffff:127.0.0.1]"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://"+net.JoinHostPort(strings.Trim(host, "[]"), port), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if _, ok := errors.AsType[*netpolicy.Refused](err); !ok {
			t.Errorf("%s: %v, want it refused", host, err)
		}
	}
	select {
	case <-reached:
		t.Error("the server was reached")
	default:
	}
	if _, err := netpolicy.NewLocalPolicy().DialContext(time.Second)(t.Context(), "unix", "/tmp/none.sock"); err == nil ||
		!strings.Contains(err.Error(), "are not supported") {
		t.Errorf("a Unix socket: %v, want it refused", err)
	}
}

func TestCheckRedirect(t *testing.T) {
	request := func(method, url string) *http.Request { return httptest.NewRequest(method, url, http.NoBody) }
	for name, tc := range map[string]struct {
		from, to *http.Request
		followed bool
	}{
		"same place":   {request("GET", "https://a.example/x"), request("GET", "https://A.example/y"), true},
		"other form":   {request("GET", "https://bücher.example/x"), request("GET", "https://xn--bcher-kva.example/y"), true},
		"other letter": {request("GET", "https://straße.example/x"), request("GET", "https://straẞe.example/x"), false},
		"other host":   {request("GET", "https://a.example/x"), request("GET", "https://b.example/x"), false},
		"other port":   {request("GET", "https://a.example/x"), request("GET", "https://a.example:8443/x"), false},
		"other scheme": {request("GET", "https://a.example/x"), request("GET", "http://a.example/x"), false},
		"a POST":       {request("POST", "https://a.example/x"), request("POST", "https://a.example/y"), false},
		"POST to GET":  {request("POST", "https://a.example/x"), request("GET", "https://a.example/y"), false},
		"a user":       {request("GET", "https://a.example/x"), request("GET", "https://u:p@a.example/x"), false},
	} {
		if err := netpolicy.CheckRedirect(tc.to, []*http.Request{tc.from}); (err == nil) != tc.followed {
			t.Errorf("%s: %v, want it followed: %t", name, err, tc.followed)
		}
	}
	last := request("GET", "https://a.example/")
	if err := netpolicy.CheckRedirect(last, []*http.Request{last, last, last, last, last, last}); !errors.Is(err, netpolicy.ErrRedirect) {
		t.Errorf("the sixth redirect: %v, want an end", err)
	}
}

func TestProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	proxy := netpolicy.NewLocalPolicy().Proxy()
	for target, want := range map[string]string{
		"https://api.example": "http://proxy.example:3128", "https://169.254.169.254": "refused",
		"https://8.8.8.8":   "http://proxy.example:3128",
		"https://localhost": "", "https://a.LocalHost.": "refused", "https://metadata.google.internal": "refused", "https://[::1]": "",
		"https://2852039166": "refused", "https://0xa9fea9fe": "refused", "https://169.254.43518": "refused",
		"https://0251.0376.0251.0376": "refused", "https://0xa9.254.169.0xfe": "refused", "https://169.254.169.254.": "refused",
		"https://a1.example": "http://proxy.example:3128",
	} {
		got, err := proxy(httptest.NewRequest(http.MethodGet, target, http.NoBody))
		if (err != nil) != (want == "refused") || err == nil && (got == nil) != (want == "") || got != nil && got.String() != want {
			t.Errorf("%s: proxy %v, error %v; want %q: a proxy must not reach addresses that the manager must not reach", target, got,
				err, want)
		}
	}
	if netpolicy.Transport(nil, time.Second, nil).Proxy != nil {
		t.Error("a transport has a proxy without UseProxy")
	}
}

func TestUnusableCertificates(t *testing.T) {
	const broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	for want, c := range map[error]netpolicy.Certificates{
		netpolicy.ErrAuthorities: {Authorities: broken},
		netpolicy.ErrOwn:         {Own: broken, Key: broken},
	} {
		if _, err := c.TLS(); !errors.Is(err, want) {
			t.Errorf("TLS of %+v: %v, want %v", c, err, want)
		}
	}
}
