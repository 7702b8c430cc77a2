package netpolicy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// TestInvalidProxyIsNotQuoted checks that the error does not repeat an invalid proxy URL: it may contain a
// password, and the error appears in a status.
func TestInvalidProxyIsNotQuoted(t *testing.T) {
	_, err := NewLocalPolicy().proxy(func(*http.Request) (*url.URL, error) {
		return nil, errors.New(`invalid proxy address "http://ada:sk-secret@proxy:port"`)
	})(httptest.NewRequest(http.MethodGet, "https://api.example", http.NoBody))
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.HasPrefix(err.Error(), "HTTPS_PROXY") {
		t.Errorf("the error is %v, want an error that names the variable without its value", err)
	}
	if cause := Cause(err); cause != err.Error() {
		t.Errorf("the cause is %q, want the error %q", cause, err)
	}
}

func TestTargetsOfAProxy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		host   string
		addrs  []string // the addresses of the name in this process
		want   string
	}{
		"outside": {"the address is allowed", "api.example", []string{"93.184.216.34"}, ""},
		"unknown": {"only the proxy resolves the name", "api.example", nil, ""},
		"one of many": {
			"the proxy may use any of the addresses", "api.example",
			[]string{"93.184.216.34", "::ffff:169.254.169.254"},
			`connections to "api.example" through a proxy are refused because of its address 169.254.169.254: ` +
				`it is an address of a cloud's metadata service; the manager's --tool-allow-cidrs=169.254.169.254/32 would allow it`,
		},
		"internal, known": {"the address decides", "models.internal", []string{"10.0.0.1"}, ""},
		"internal, unknown": {
			"the name may be that of a service of the proxy's cloud", "Metadata.google.internal.", nil,
			`connections to "Metadata.google.internal." through a proxy are refused: it is an internal name ` +
				`that the manager cannot resolve; add the host to NO_PROXY to connect without the proxy`,
		},
		"localhost": {
			"it is the proxy's own machine", "localhost",
			[]string{"93.184.216.34"},
			`connections to "localhost" through a proxy are refused: it is the proxy's own machine`,
		},
		"decimal": {
			"the proxy may read it as an address", "2130706433", nil,
			`connections to "2130706433" through a proxy are refused: write it as an IPv4 address of four decimal numbers`,
		},
		"full-width digits": {
			"net/http connects to 169.254.169.254", "１６９.254.169.254", nil,
			`connections to "１６９.254.169.254" through a proxy are refused: write the host in ASCII, as 169.254.169.254`,
		},
		"circled digits": {
			"net/http connects to 127.1", "①②⑦.①", nil,
			`connections to "①②⑦.①" through a proxy are refused: write the host in ASCII, as 127.1`,
		},
		"full-width dots": {
			"net/http connects to metadata.google.internal", "metadata。google。internal", nil,
			`connections to "metadata。google。internal" through a proxy are refused: write the host in ASCII, as metadata.google.internal`,
		},
		"full-width letters": {
			"net/http connects to localhost", "ｌocalhost", nil,
			`connections to "ｌocalhost" through a proxy are refused: write the host in ASCII, as localhost`,
		},
		"an international name": {
			"the proxy could resolve another name than this process", "Bücher.example",
			[]string{"93.184.216.34"},
			`connections to "Bücher.example" through a proxy are refused: write the host in ASCII, as xn--bcher-kva.example`,
		},
		"no name": {
			"no program can convert it", "a\u2028b.example", nil,
			`connections to "a\u2028b.example" through a proxy are refused: write the host in ASCII, such as xn--bcher-kva.example`,
		},
		"a number in front": {"no program reads it as an address", "1.example", nil, ""},
		"hex in a name":     {"no program reads it as an address", "0xcafe-g", nil, ""},
		"an address": {
			"the policy refuses the address", "169.254.169.254", nil,
			"connections to 169.254.169.254 are refused: it is an address of a cloud's metadata service; the " +
				"manager's --tool-allow-cidrs=169.254.169.254/32 would allow it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := (*Policy)(nil).checkHost(t.Context(), tc.host, func(context.Context, string, string) (found []netip.Addr, err error) {
				for _, addr := range tc.addrs {
					found = append(found, netip.MustParseAddr(addr))
				}
				if found == nil {
					err = &net.DNSError{Err: "no such host", IsNotFound: true}
				}
				return found, err
			})
			got := ""
			if refused, ok := errors.AsType[*Refused](err); ok {
				got = refused.Error()
			}
			if got != tc.want || (err == nil) != (tc.want == "") {
				t.Errorf("%s: %v, want %q: %s", tc.host, err, tc.want, tc.reason)
			}
		})
	}
}
