package manager

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// TestOtherMachinesSeeNoDetailsOfChecks checks that the names of checks, and causes with paths and addresses,
// are not visible from other machines.
func TestOtherMachinesSeeNoDetailsOfChecks(t *testing.T) {
	const secret = "failed to dial db.internal"
	broken := map[string]healthz.Checker{
		"store": func(*http.Request) error { return errors.New(secret) },
		"cache": func(*http.Request) error { return nil },
	}
	well := map[string]healthz.Checker{"store": func(*http.Request) error { return nil }, "cache": func(*http.Request) error { return nil }}
	for name, tc := range map[string]struct {
		checks     map[string]healthz.Checker
		from, path string
		status     int
		body       string // the whole body, or "*" and a part of the body
	}{
		"alive, from this machine":                 {broken, "127.0.0.1:1", "/healthz", 200, "ok"},
		"alive, from another machine":              {broken, "10.0.0.1:1", "/healthz", 200, "ok"},
		"ready, from another machine":              {well, "10.0.0.1:1", "/readyz", 200, "ok"},
		"not ready, from another machine":          {broken, "10.0.0.1:1", "/readyz", 503, "not ready\n"},
		"not ready, verbose, from another machine": {broken, "10.0.0.1:1", "/readyz?verbose=1", 503, "not ready\n"},
		"not ready, from another machine by IPv6":  {broken, "[2001:db8::1]:1", "/readyz", 503, "not ready\n"},
		"a failed check, from another machine":     {broken, "10.0.0.1:1", "/readyz/store", 404, "404 page not found\n"},
		"a check that works, from another machine": {broken, "10.0.0.1:1", "/readyz/cache", 404, "404 page not found\n"},
		"an unknown check, from another machine":   {broken, "10.0.0.1:1", "/readyz/other", 404, "404 page not found\n"},
		"an invalid address":                       {broken, "", "/readyz", 503, "not ready\n"},
		"ready, from this machine":                 {well, "127.0.0.1:1", "/readyz", 200, "ok"},
		"not ready, from this machine":             {broken, "127.0.0.1:1", "/readyz", 500, "*[-]store failed"},
		"not ready, from this machine by IPv6":     {broken, "[::1]:1", "/readyz", 500, "*[-]store failed"},
		"a failed check, from this machine":        {broken, "127.0.0.1:1", "/readyz/store", 500, "*" + secret},
		"a check that works, from this machine":    {broken, "127.0.0.1:1", "/readyz/cache", 200, "ok"},
		"another path":                             {well, "127.0.0.1:1", "/metrics", 404, "404 page not found\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tc.path, http.NoBody)
			r.RemoteAddr = tc.from
			r.Header.Set("X-Forwarded-For", "127.0.0.1") // any client may set this header
			w := httptest.NewRecorder()
			(&probes{checks: tc.checks}).handler().ServeHTTP(w, r)
			got := w.Body.String()
			matches := got == tc.body
			if part, isPart := strings.CutPrefix(tc.body, "*"); isPart {
				matches = strings.Contains(got, part)
			}
			if w.Code != tc.status || !matches {
				t.Errorf("got %d %q, want %d %q", w.Code, got, tc.status, tc.body)
			}
		})
	}
}

// TestProbesAreServedBeforeTheStoreIsOpen checks that a migration of the store may take longer than the liveness probe
// allows.
func TestProbesAreServedBeforeTheStoreIsOpen(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	get := func(path string) (status int, body string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close() //nolint:errcheck // because the body was read
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Error(err)
		}
		return response.StatusCode, string(text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waited atomic.Bool
	log := funcr.New(func(_, args string) {
		if !strings.Contains(args, "Waiting for the store") || waited.Swap(true) {
			return
		}
		defer cancel()
		if status, body := get("/healthz"); status != http.StatusOK {
			t.Errorf("/healthz while the process waits for the store: %d %q, want 200", status, body)
		}
		if status, body := get("/readyz"); status != http.StatusInternalServerError || !strings.Contains(body, "start failed") {
			t.Errorf("/readyz while the process waits for the store: %d %q, want 500 with the reason", status, body)
		}
	}, funcr.Options{})
	o := Options{
		Store: "postgres://nobody@127.0.0.1:1/none", HealthProbeBindAddress: address, MetricsBindAddress: "0", ExecutorName: "a",
		Namespace: "capstan-system",
	}
	if err := Run(ctx, o, &rest.Config{Host: "http://127.0.0.1:1"}, log); err != nil || !waited.Load() {
		t.Errorf("Run: %v, want it to wait for the store until it is stopped", err)
	}
	if status, body := get("/healthz"); status != 0 {
		t.Errorf("/healthz after the end: %d %q, want no answer", status, body)
	}
}

func TestNoProbesWithoutAnAddress(t *testing.T) {
	for _, address := range []string{"", "0"} {
		p, err := newProbes(t.Context(), address, logr.Discard())
		if err != nil || p.listener != nil {
			t.Errorf("%q: got %v, %v; want no listener", address, p.listener, err)
		}
		p.Close()
	}
	p, err := newProbes(t.Context(), "127.0.0.1:0", logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := newProbes(t.Context(), p.listener.Addr().String(), logr.Discard()); err == nil ||
		!strings.Contains(err.Error(), "--health-probe-bind-address") {
		t.Errorf("got %v, want an error that names the flag", err)
	}
}
