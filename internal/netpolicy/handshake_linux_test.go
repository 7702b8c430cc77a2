package netpolicy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// certificateOf returns a certificate of a server with about this number of bytes.
func certificateOf(t *testing.T, bytes int) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: make([]byte, bytes)}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// connect is a handler of a proxy.
func connect(w http.ResponseWriter, r *http.Request) {
	far, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer far.Close() //nolint:errcheck // because it was only copied
	near, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer near.Close() //nolint:errcheck // likewise
	if _, err := io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(far, near) // it ends with either connection
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
}

// TestLongHandshakes checks that a connection fails if its server sends too much during the TLS handshake, and that
// only the handshake is limited.
func TestLongHandshakes(t *testing.T) {
	const answer = 4 * maxHandshake
	for name, tc := range map[string]struct {
		settings       *tls.Config
		isHTTP2, proxy bool
	}{
		"TLS 1.2":               {settings: &tls.Config{MaxVersion: tls.VersionTLS12}},
		"TLS 1.3":               {settings: &tls.Config{MinVersion: tls.VersionTLS13}},
		"TLS 1.3, two attempts": {settings: &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}}},
		"HTTP/2":                {settings: &tls.Config{}, isHTTP2: true},
		"through a proxy":       {settings: &tls.Config{}, proxy: true},
	} {
		for bytes, refused := range map[int]bool{maxHandshake * 3 / 4: false, maxHandshake: true} {
			t.Run(name, func(t *testing.T) {
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = w.Write(make([]byte, answer)) // the client counts the bytes
				}))
				server.TLS, server.EnableHTTP2 = tc.settings.Clone(), tc.isHTTP2
				server.TLS.Certificates = []tls.Certificate{certificateOf(t, bytes)}
				server.Config.ErrorLog = log.New(io.Discard, "", 0)
				server.StartTLS()
				defer server.Close()
				roots := x509.NewCertPool()
				roots.AddCert(server.Certificate())
				transport := Transport(NewLocalPolicy(), time.Minute, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
				if tc.proxy {
					proxy := httptest.NewServer(http.HandlerFunc(connect))
					defer proxy.Close()
					address, err := url.Parse(proxy.URL)
					if err != nil {
						t.Fatal(err)
					}
					transport.Proxy = http.ProxyURL(address)
				}
				defer transport.CloseIdleConnections()
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := transport.RoundTrip(req)
				if refused {
					if err == nil {
						_ = resp.Body.Close()
					}
					if !errors.Is(err, errHandshake) || !strings.Contains(Cause(err), "more than 64 KiB during the TLS handshake") {
						t.Errorf("a certificate of %d bytes: %v, want it refused", bytes, err)
					}
					return
				}
				if err != nil {
					t.Fatalf("a certificate of %d bytes: %v", bytes, err)
				}
				defer resp.Body.Close() //nolint:errcheck // because it was read
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != answer || (resp.ProtoMajor == 2) != tc.isHTTP2 {
					t.Errorf("%d bytes of the answer over %s arrived, want %d: %v", n, resp.Proto, answer, err)
				}
			})
		}
	}
}
