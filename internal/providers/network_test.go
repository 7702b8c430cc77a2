package providers_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// models starts an endpoint with an empty list of models over TLS, with its own certificate.
func models(t *testing.T) *httptest.Server {
	t.Helper()
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"data":[]}`)) // if the client is gone, the test fails anyway
	}))
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.StartTLS()
	t.Cleanup(web.Close)
	return web
}

func TestCABundle(t *testing.T) {
	web := models(t)
	w, c := newFakeCluster(t, secretValue)
	w.set(func(w *fakeCluster) {
		w.data["ca.crt"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	})
	o := object(web.URL + "/v1")
	probe := func() error {
		t.Helper()
		p, err := c.Fresh(t.Context(), o)
		if err != nil {
			return err
		}
		_, err = p.Probe(t.Context())
		return err
	}
	if err := probe(); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("without its authority: %v, want the certificate refused", err)
	}
	o.Spec.TLS = &v1alpha1.ClientTLS{CABundleRef: &v1alpha1.SecretKeyReference{Name: "openai", Key: "ca.crt"}}
	if err := probe(); err != nil {
		t.Errorf("with its authority: %v", err)
	}
	one, err := c.Fresh(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Fresh(t.Context(), o); err != nil || again != one {
		t.Errorf("the same bundle gives another provider (error %v), want the same provider with its connections", err)
	}
	w.set(func(w *fakeCluster) { w.data["ca.crt"] = []byte("not a certificate") })
	_, err = c.Fresh(t.Context(), o)
	const want = `key "ca.crt" of Secret "openai" in namespace "demo" has no certificate in PEM: put the ` +
		`certificates of the authorities there, as -----BEGIN CERTIFICATE-----`
	if e, ok := errors.AsType[*providers.SecretError](err); !ok || e.Error() != want || e.Key != "ca.crt" {
		t.Errorf("an invalid bundle: %v, want a *SecretError %q", err, want)
	}
}

// issue returns a certificate for a client, in PEM, and its private key.
func issue(t *testing.T, name string) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	inPEM := func(kind string, data []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}) }
	return inPEM("CERTIFICATE", der), inPEM("PRIVATE KEY", pkcs8)
}

// TestClientCertificate checks that a server that requires a client certificate receives the certificate of the Secret.
// Soon after the Secret has changed, it must receive the new certificate, although connections with the first are open.
func TestClientCertificate(t *testing.T) {
	var clients []string
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clients = append(clients, r.TLS.PeerCertificates[0].Subject.CommonName)
		_, _ = w.Write([]byte(`{"data":[]}`)) // if the client is gone, the test fails anyway
	}))
	// With TLS 1.3, a client learns only after its request whether its certificate was refused.
	web.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.EnableHTTP2 = true
	web.StartTLS()
	t.Cleanup(web.Close)
	w, c := newFakeCluster(t, secretValue)
	o := object(web.URL + "/v1")
	o.Spec.TLS = &v1alpha1.ClientTLS{CABundleRef: &v1alpha1.SecretKeyReference{Name: "openai", Key: "ca.crt"}}
	probe := func() error {
		t.Helper()
		p, err := c.Get(t.Context(), o)
		if err == nil {
			_, err = p.Probe(t.Context())
		}
		return err
	}
	first, firstKey := issue(t, "first")
	second, secondKey := issue(t, "second")
	w.set(func(w *fakeCluster) {
		w.data["ca.crt"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
		w.data["tls.crt"], w.data["tls.key"] = first, firstKey
	})
	if err := probe(); err == nil || !strings.Contains(err.Error(), "the connection to the endpoint failed: tls: handshake failure") {
		t.Errorf("without a certificate: %v, want the server's reason", err)
	}
	o.Generation++
	o.Spec.TLS.ClientCertificateRef = &v1alpha1.ObjectReference{Name: "openai"}
	for range 2 {
		if err := probe(); err != nil {
			t.Fatalf("with the first certificate: %v", err)
		}
	}
	w.set(func(w *fakeCluster) {
		w.data["tls.crt"], w.data["tls.key"] = second, secondKey
		w.now = w.now.Add(10 * time.Second)
	})
	if err := probe(); err != nil {
		t.Fatalf("with the second certificate: %v", err)
	}
	if got := strings.Join(clients, " "); got != "first first second" {
		t.Errorf("the server saw the clients %q, want the second certificate after 10 seconds", got)
	}
	for name, tc := range map[string]struct {
		change func(*fakeCluster)
		want   string
	}{
		"another key": {
			func(w *fakeCluster) { w.data["tls.key"] = firstKey },
			`key "tls.key" of Secret "openai" in namespace "demo" is not the private key of the certificate in tls.crt`,
		},
		"no key": {func(w *fakeCluster) { delete(w.data, "tls.key") }, `has no key "tls.key": add it`},
		"no certificate": {
			func(w *fakeCluster) { w.data["tls.crt"] = nil },
			`key "tls.crt" of Secret "openai" in namespace "demo" is empty`,
		},
		"another host": {
			func(w *fakeCluster) { w.hosts = "other.test" },
			`Secret "openai" in namespace "demo" must not be sent to ` + web.URL,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.set(func(w *fakeCluster) {
				w.data["tls.crt"], w.data["tls.key"], w.hosts = second, secondKey, ""
				tc.change(w)
				w.now = w.now.Add(10 * time.Second)
			})
			err := probe()
			if _, ok := errors.AsType[*providers.SecretError](err); !ok || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want a *SecretError %q", err, tc.want)
			}
		})
	}
}

func TestRefusedAddress(t *testing.T) {
	web := models(t)
	w, _ := newFakeCluster(t, secretValue)
	c := providers.NewCache(w.read, w.clock, nil, nil)
	t.Cleanup(c.Close)
	_, err := c.Lazy(object(web.URL+"/v1")).Generate(t.Context(), &model.Request{Model: "m"})
	e := model.AsError(err)
	const want = `provider "main": connections to 127.0.0.1 are refused: it is a loopback address; the ` +
		`manager's --tool-allow-cidrs=127.0.0.1/32 would allow it`
	if e.Kind != model.InvalidRequest || !e.Unsent || e.Message != want {
		t.Errorf("Generate = %s %q, unsent %t; want InvalidRequest %q, unsent: no retry will help", e.Kind, e.Message, e.Unsent, want)
	}
}

// unknownRanges is the network of a cluster whose ranges are not known.
type unknownRanges struct{}

func (unknownRanges) Find(_ context.Context, addr netip.Addr) (*netpolicy.Range, error) {
	return &netpolicy.Range{Prefix: netip.PrefixFrom(addr, addr.BitLen()), What: "a private address", Assumed: true}, nil
}

func (unknownRanges) Serves(context.Context, string, string, netip.Addr) (bool, error) {
	return false, nil
}

// TestAddressWhileRangesAreUnknown checks that an address that is refused because the ranges of the cluster are unknown
// for a moment may be tried again.
func TestAddressWhileRangesAreUnknown(t *testing.T) {
	web := models(t)
	w, _ := newFakeCluster(t, secretValue)
	c := providers.NewCache(w.read, w.clock, netpolicy.NewLocalPolicy().ForCluster(unknownRanges{}), nil)
	t.Cleanup(c.Close)
	_, err := c.Lazy(object(web.URL+"/v1")).Generate(t.Context(), &model.Request{Model: "m"})
	e := model.AsError(err)
	if _, refused := errors.AsType[*netpolicy.Refused](err); e.Kind != model.Network || !e.Unsent || !refused {
		t.Errorf("Generate = %s %q, unsent %t; want an unsent Network failure because of the address", e.Kind, e.Message, e.Unsent)
	}
}
