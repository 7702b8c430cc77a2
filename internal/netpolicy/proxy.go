package netpolicy

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// lookupTimeout bounds the resolution of a name that the proxy will resolve itself.
const lookupTimeout = 2 * time.Second

// invalidProxyError means that the proxy of the environment is not a valid URL.
type invalidProxyError struct{ isLocal bool }

// Error returns the message for people. It does not contain the URL, which may have a password.
func (e *invalidProxyError) Error() string {
	return ofManager(e.isLocal) + "HTTPS_PROXY or HTTP_PROXY is not the URL of a proxy: correct it"
}

// Proxy returns a function for http.Transport.Proxy that takes the proxy from the environment (HTTPS_PROXY and
// similar variables). The dialer checks the proxy's own address. A target is refused in these cases:
//
//  1. It is an address that the policy refuses, or has a form that only some programs read as an address.
//  2. It is localhost, which would be the proxy's own machine.
//  3. It is a name that resolves in this process to an address that the policy refuses.
//  4. It has other characters than ASCII. A proxy receives such a name in a form that differs from the form to which a
//     program without a proxy connects. The proxy may read this form as an address.
//  5. It is a name under .internal, where clouds name their metadata services, that does not resolve in this process.
//     For other names that do not resolve, the proxy decides: many clusters cannot resolve names of other networks.
//
// The error is from Check, is a *Refused, or means that the environment variable is invalid.
func (p *Policy) Proxy() func(*http.Request) (*url.URL, error) {
	return p.proxy(http.ProxyFromEnvironment)
}

// proxy is Proxy with a given environment.
func (p *Policy) proxy(environment func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	return func(req *http.Request) (*url.URL, error) {
		proxy, err := environment(req)
		if err != nil {
			return nil, &invalidProxyError{p.isLocal()} // the original error may contain a password
		}
		if proxy == nil {
			return nil, nil //nolint:nilnil // because for net/http this means that there is no proxy
		}
		if err := p.checkHost(req.Context(), req.URL.Hostname(), net.DefaultResolver.LookupNetIP); err != nil {
			return nil, err
		}
		return proxy, nil
	}
}

// ProxyHost returns the host of the proxy of the environment for a request, or an empty text.
func ProxyHost(req *http.Request) string {
	proxy, err := http.ProxyFromEnvironment(req)
	if err != nil || proxy == nil {
		return ""
	}
	return proxy.Host
}

// ProxySecrets returns the passwords of the proxies of the environment, both plain and in the form that requests carry.
func ProxySecrets() (secrets []string) {
	for _, scheme := range []string{"http", "https"} {
		proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: scheme, Host: "host.invalid"}})
		if err != nil || proxy == nil {
			continue
		}
		if password, ok := proxy.User.Password(); ok && password != "" {
			secrets = append(secrets, password, base64.StdEncoding.EncodeToString([]byte(proxy.User.Username()+":"+password)))
		}
	}
	return secrets
}

// checkHost checks a target of a proxy.
func (p *Policy) checkHost(
	ctx context.Context, host string, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error),
) error {
	if !isASCII(host) {
		example := "such as xn--bcher-kva.example"
		if ascii, err := ASCIIHost(host); err == nil {
			example = "as " + ascii
		}
		return &Refused{Host: host, Reason: "write the host in ASCII, " + example}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return p.Check(ctx, host, addr)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case isNumber(last):
		return &Refused{Host: host, Reason: "write it as an IPv4 address of four decimal numbers"}
	case last == "localhost":
		return &Refused{Host: host, Reason: "it is the proxy's own machine"}
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := lookup(ctx, "ip", name)
	if err != nil && last == "internal" {
		resolver := "the manager"
		if p.isLocal() {
			resolver = "this machine"
		}
		return &Refused{Host: host, Reason: "it is an internal name that " + resolver + " cannot resolve; add the " +
			"host to NO_PROXY to connect without the proxy"}
	}
	for _, addr := range addrs {
		err := p.Check(ctx, name, addr.Unmap())
		if refused, ok := errors.AsType[*Refused](err); ok {
			refused.Host = host
			return refused
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isNumber reports whether some programs read a host with this last label as an IPv4 address, such as 127.1,
// 0x7f000001 or 017700000001.
func isNumber(label string) bool {
	digits, set := label, "0123456789"
	if strings.HasPrefix(label, "0x") {
		digits, set = label[2:], "0123456789abcdef"
	}
	return label != "" && strings.Trim(digits, set) == ""
}
