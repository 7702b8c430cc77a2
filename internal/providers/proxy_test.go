package providers_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Environment variables of the process that sends a request: the base URL, and the certificate of the authority.
const (
	proxiedURL = "CAPSTAN_TEST_PROXIED_URL"
	proxiedCA  = "CAPSTAN_TEST_PROXIED_CA"
)

const proxyPassword = "proxy-password-0123"

// outcome is the result of a request.
type outcome struct {
	Text  string
	Error *model.Error
}

// requestProxied sends a request for TestProxy. It runs in a process of its own, because net/http reads the environment
// variables for proxies only once.
func requestProxied(t *testing.T, url string) {
	t.Helper()
	w, _ := newFakeCluster(t, secretValue)
	w.data["ca.crt"] = []byte(os.Getenv(proxiedCA))
	policy, err := netpolicy.Parse([]string{"127.0.0.0/8"}, nil) // as of a manager, whose messages name it
	if err != nil {
		t.Fatal(err)
	}
	c := providers.NewCache(w.read, w.clock, policy, nil)
	t.Cleanup(c.Close)
	o := object(url)
	o.Spec.TLS = &v1alpha1.ClientTLS{CABundleRef: &v1alpha1.SecretKeyReference{Name: "openai", Key: "ca.crt"}}
	reply, err := mustGet(t, c, o).Generate(t.Context(), &model.Request{Model: "m"})
	var got outcome
	if err != nil {
		got.Error = model.AsError(err)
		got.Error.Err = nil
	} else {
		got.Text = reply.Text
	}
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		t.Fatal(err)
	}
}

// authority makes a certificate authority. It returns its certificate in PEM, and the same certificate with its key for
// a server.
func authority(t *testing.T, host string) (ca []byte, server tls.Certificate) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}

// connectProxy is a proxy with a password. It connects the client to a server of the test, whatever the host is. If
// status is not 0, it answers with this status instead.
type connectProxy struct {
	secure, plain string // addresses of the servers
	status        int    // or 0

	mu   sync.Mutex
	seen []string
}

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Method+" "+r.Host)
	p.mu.Unlock()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("ada:"+proxyPassword))
	switch given := r.Header.Get("Proxy-Authorization"); {
	case p.status != 0:
		w.WriteHeader(p.status)
	case given != want:
		w.Header().Set("Proxy-Authenticate", `Basic realm="demo"`)
		w.WriteHeader(http.StatusProxyAuthRequired)
		_, _ = io.WriteString(w, "not "+given) // the test notices if the client is gone
	case r.Method == http.MethodConnect:
		p.connect(w, r)
	default:
		r.Header.Del("Proxy-Authorization")
		out := r.Clone(r.Context())
		out.URL.Host, out.RequestURI = p.plain, ""
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()        //nolint:errcheck // because it was read
		w.WriteHeader(resp.StatusCode) // the client asks for no content type
		_, _ = io.Copy(w, resp.Body)   // the test notices if the client is gone
	}
}

// connect connects the client to the server.
func (p *connectProxy) connect(w http.ResponseWriter, r *http.Request) {
	server, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", p.secure)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer server.Close() //nolint:errcheck // because the test ends
	w.WriteHeader(http.StatusOK)
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close() //nolint:errcheck // because the test ends
	go func() {
		_, _ = io.Copy(server, buffered) // the other direction ends, too
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server) // the client notices an error
}

// TestProxy sends requests through a real proxy, to a server with a certificate of its own authority and to a server
// without TLS. Errors must name the proxy, because otherwise users look for the mistake at the endpoint. They must not
// contain a password.
func TestProxy(t *testing.T) {
	if url := os.Getenv(proxiedURL); url != "" {
		requestProxied(t, url)
		return
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secretValue || r.Header.Get("Proxy-Authorization") != "" {
			t.Errorf("the endpoint received the headers %v, want its key alone", r.Header)
		}
		// The test notices if the client is gone.
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}`)
	}
	ca, certificate := authority(t, "model.test")
	secure := httptest.NewUnstartedServer(http.HandlerFunc(answer))
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	plain := httptest.NewServer(http.HandlerFunc(answer))
	t.Cleanup(plain.Close)
	const credentials = "ada:" + proxyPassword
	for name, tc := range map[string]struct {
		user, url string
		status    int
		noProxy   string
		isDown    bool
		text      string
		kind      model.ErrorKind
		message   string // {proxy} stands for the address of the proxy
		seen      string
	}{
		"TLS":    {user: credentials, url: "https://model.test/v1", text: "yes", seen: "CONNECT model.test:443"},
		"no TLS": {user: credentials, url: "http://model.test/v1", text: "yes", seen: "POST model.test"},
		"an invalid password": {
			user: "ada:wrong-" + proxyPassword, url: "https://model.test/v1", kind: model.Auth, seen: "CONNECT model.test:443",
			message: `provider "main": the proxy {proxy} requires valid credentials (HTTP 407): check the user and the password in the ` +
				"manager's HTTPS_PROXY or HTTP_PROXY",
		},
		"an invalid password without TLS": {
			user: "ada:wrong-" + proxyPassword, url: "http://model.test/v1", kind: model.Auth, seen: "POST model.test",
			message: `provider "main": the proxy {proxy} requires valid credentials (HTTP 407): check the user and the password in the ` +
				"manager's HTTPS_PROXY or HTTP_PROXY",
		},
		"a forbidden host": {
			user: credentials, url: "https://model.test/v1", status: http.StatusForbidden, kind: model.InvalidRequest,
			message: `provider "main": the proxy {proxy} refused the connection to model.test:443 (HTTP 403): allow it there, or add the ` +
				"host to the manager's NO_PROXY",
			seen: "CONNECT model.test:443",
		},
		"a host that the proxy cannot reach": {
			user: credentials, url: "https://model.test/v1", status: http.StatusBadGateway, kind: model.Network,
			message: `provider "main": the proxy {proxy} could not connect to model.test:443 (HTTP 502)`, seen: "CONNECT model.test:443",
		},
		"a proxy that is down": {
			user: credentials, url: "https://model.test/v1", isDown: true, kind: model.Network,
			message: `provider "main": the connection to the proxy {proxy} failed: connection refused`,
		},
		"no proxy": {
			user: credentials, url: "https://model.test/v1", noProxy: "other.test,model.test", kind: model.Network,
			message: `provider "main": the connection to the endpoint failed: lookup model.test`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := &connectProxy{secure: secure.Listener.Addr().String(), plain: plain.Listener.Addr().String(), status: tc.status}
			web := httptest.NewServer(proxy)
			t.Cleanup(web.Close)
			address := web.Listener.Addr().String()
			if tc.isDown {
				address = "127.0.0.1:1"
			}
			got := sendProxied(t.Context(), t,
				"HTTPS_PROXY=http://"+tc.user+"@"+address, "HTTP_PROXY=http://"+tc.user+"@"+address, "NO_PROXY="+tc.noProxy,
				proxiedURL+"="+tc.url, proxiedCA+"="+string(ca))
			if got.Error == nil {
				got.Error = &model.Error{}
			}
			want := strings.ReplaceAll(tc.message, "{proxy}", address)
			isCut := tc.noProxy != "" && strings.HasPrefix(got.Error.Message, want) // the rest depends on the resolver
			if got.Text != tc.text || got.Error.Kind != tc.kind || got.Error.Message != want && !isCut {
				t.Errorf("got %q, %s %q, want %q, %s %q", got.Text, got.Error.Kind, got.Error.Message, tc.text, tc.kind, want)
			}
			if seen := strings.Join(proxy.seen, ", "); seen != tc.seen {
				t.Errorf("the proxy received %q, want %q", seen, tc.seen)
			}
		})
	}
}

// sendProxied runs requestProxied in a process of its own, and checks that the process prints no password.
func sendProxied(ctx context.Context, t *testing.T, environment ...string) (got outcome) {
	t.Helper()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestProxy$", "-test.v")
	cmd.Env = append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	encoded := base64.StdEncoding.EncodeToString([]byte("ada:"))[:4]
	if text := string(out); strings.Contains(text, proxyPassword) || strings.Contains(text, "Basic "+encoded) {
		t.Errorf("the output has the password of the proxy: %s", out)
	}
	i := bytes.IndexByte(out, '{')
	if err != nil || i < 0 || json.NewDecoder(bytes.NewReader(out[i:])).Decode(&got) != nil {
		t.Fatalf("the process failed (%v): %s", err, out)
	}
	return got
}
