package providers_test

import (
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// models serves an empty list of models over TLS, with its own certificate.
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
	o.Spec.TLS = &v1alpha1.ClientTLS{CABundleRef: v1alpha1.SecretKeyReference{Name: "openai", Key: "ca.crt"}}
	if err := probe(); err != nil {
		t.Errorf("with its authority: %v", err)
	}
	one, err := c.Fresh(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Fresh(t.Context(), o); err != nil || again != one {
		t.Errorf("the same bundle again made another provider (%v), want its connections kept", err)
	}
	w.set(func(w *fakeCluster) { w.data["ca.crt"] = []byte("not a certificate") })
	_, err = c.Fresh(t.Context(), o)
	const want = `key "ca.crt" of Secret "openai" in namespace "demo" has no certificate in PEM: put the ` +
		`certificates of the authorities there, as -----BEGIN CERTIFICATE-----`
	if e, ok := errors.AsType[*providers.SecretError](err); !ok || e.Error() != want || e.Key != "ca.crt" {
		t.Errorf("an invalid bundle: %v, want a *SecretError %q", err, want)
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
