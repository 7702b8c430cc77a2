package readapi_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/readapi"
)

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, address, cert, key, want string }{
		"off":        {"there is no server", "0", "", "", ""},
		"empty":      {"there is no server", "", "", "", ""},
		"loopback":   {"other machines cannot read it", "127.0.0.1:8082", "", "", ""},
		"another":    {"all addresses of 127/8 are loopback addresses", "127.0.0.9:0", "", "", ""},
		"IPv6":       {"it is a loopback address", "[::1]:8082", "", "", ""},
		"by name":    {"localhost is a loopback address", "localhost:8082", "", "", ""},
		"everywhere": {"a token would cross a network", ":8082", "", "", "is reachable from other machines"},
		"one address": {
			"a single address is reachable, too", "192.0.2.1:8082", "", "",
			"set --read-tls-cert-file and --read-tls-key-file",
		},
		"other name":  {"the name may have any address", "manager:8082", "", "", "is reachable from other machines"},
		"unspecified": {"it means every address", "0.0.0.0:8082", "", "", "is reachable from other machines"},
		"with TLS":    {"a certificate keeps tokens secret", ":8443", "tls.crt", "tls.key", ""},
		"half":        {"a certificate needs its key", "127.0.0.1:8082", "tls.crt", "", "must be set together"},
		"other half":  {"a key needs its certificate", "0", "", "tls.key", "must be set together"},
		"no port":     {"the port is required", "127.0.0.1", "", "", "must be host:port"},
		"lookalike":   {"a name may begin with an address", "127.0.0.1.example.com:80", "", "", "is reachable from other machines"},
		"two ports":   {"it is not an address", "127.0.0.1:1:2", "", "", "must be host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted(t, readapi.CheckAddress(tc.address, "", tc.cert, tc.key), tc.want, tc.reason)
		})
	}
}

func TestCheckAddressForTLS(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, address, tls, cert, want string }{
		"loopback and TLS": {"the chart uses TLS for people and the loopback for forwarded ports", "127.0.0.1:8082", ":8444", "tls", ""},
		"only TLS":         {"a server may have only the TLS address", "0", ":8444", "tls", ""},
		"no certificate":   {"TLS needs a certificate", "127.0.0.1:8082", ":8444", "", "needs a certificate"},
		"no port":          {"the port is required", "0", "capstan", "tls", "--read-tls-bind-address \"capstan\" must be host:port"},
		"open without TLS": {
			"with an address for TLS, the other address has no TLS", ":8082", ":8444", "tls", "is reachable from other machines",
		},
		"off": {"without an address for TLS, the other address has TLS", ":8082", "0", "tls", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted(t, readapi.CheckAddress(tc.address, tc.tls, tc.cert, tc.cert), tc.want, tc.reason)
		})
	}
}

func TestCheckServer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, server, want string }{
		"here":       {"other machines cannot read it", "http://127.0.0.1:8082", ""},
		"elsewhere":  {"a certificate keeps tokens secret", "https://capstan.example", ""},
		"plain HTTP": {"a token would cross a network", "http://capstan.example", "must begin with https"},
		"user info":  {"the text before @ is not the host", "http://127.0.0.1@capstan.example", "must begin with https"},
		"no scheme":  {"a URL has a scheme", "127.0.0.1:8082", "must be a URL"},
		"a file":     {"no server listens there", "file:///etc/passwd", "must be a URL"},
		"invalid":    {"it is not a URL", "http://[", "must be a URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted(t, readapi.CheckServer(tc.server), tc.want, tc.reason)
		})
	}
}

// wanted fails the test unless the error contains the text want, or is nil if want is empty.
func wanted(t *testing.T, err error, want, reason string) {
	t.Helper()
	if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: error = %v, want %q", reason, err, want)
	}
}
