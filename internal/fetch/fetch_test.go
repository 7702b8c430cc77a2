package fetch_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/capstan-dev/capstan/internal/fetch"
	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// serve starts a server with TLS, and returns its URL and a fetcher that trusts it.
func serve(t *testing.T, handle http.HandlerFunc) (string, *fetch.Fetcher) {
	t.Helper()
	web := httptest.NewTLSServer(handle)
	t.Cleanup(web.Close)
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	return web.URL, &fetch.Fetcher{
		Policy: netpolicy.NewLocalPolicy(), TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
}

// answer returns a handler that sends a content.
func answer(mediaType, content string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil // do not guess it
		if mediaType != "" {
			w.Header().Set("Content-Type", mediaType)
		}
		_, _ = w.Write([]byte(content)) // the test notices if the client is gone
	}
}

func TestFetch(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }
	}
	for name, tc := range map[string]struct {
		handle  http.HandlerFunc
		wantErr string
	}{
		"declared":                         {answer("image/png", "content"), ""},
		"with parameters":                  {answer("image/png; charset=binary", "content"), ""},
		"unknown type":                     {answer("application/octet-stream", "content"), ""},
		"no type":                          {answer("", "content"), ""},
		"another type":                     {answer("text/html", "content"), "does not declare its content as image/png"},
		"longer than allowed":              {answer("image/png", strings.Repeat("x", 200)), "may have at most 100 bytes"},
		"endless":                          {endless, "may have at most 100 bytes"},
		"not found":                        {status(http.StatusNotFound), "status 404"},
		"unauthorized":                     {status(http.StatusUnauthorized), "status 401"},
		"overloaded":                       {status(http.StatusServiceUnavailable), "status 503"},
		"redirect to the metadata service": {redirect("https://169.254.169.254/latest/meta-data"), "redirects to another server"},
		"redirect to HTTP":                 {redirect("http://localhost/"), "redirects to another server"},
		"loop":                             {redirect("/"), "redirects to another server"},
		"bomb":                             {compressed, "compressed response"},
		"broken off":                       {brokenOff, "cannot be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			url, f := serve(t, tc.handle)
			got, err := f.Fetch(t.Context(), url+"/a.png?token=secret", "image/png", 100)
			switch {
			case tc.wantErr == "" && (err != nil || string(got) != "content"):
				t.Errorf("got %q, %v; want the content", got, err)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)):
				t.Errorf("got %d bytes, %v; want an error with %q", len(got), err, tc.wantErr)
			case err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), url)):
				t.Errorf("error %q has the URL, which may contain a secret", err)
			}
		})
	}
}

// endless sends a content that does not end and has no length.
func endless(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "image/png")
	for r.Context().Err() == nil {
		if _, err := w.Write(bytes.Repeat([]byte("x"), 1<<10)); err != nil {
			return
		}
	}
}

// compressed sends a content that is large once it is decompressed.
func compressed(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	_, _ = z.Write(make([]byte, 1<<20)) // the test notices if the client is gone
	_ = z.Close()                       // likewise
}

func brokenOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("Content-Length", "50")
	_, _ = w.Write([]byte("x")) // the test notices if the client is gone
	panic(http.ErrAbortHandler)
}

// TestFetchTriesAgain checks that a request is repeated if the server fails, but not if the content has another type.
func TestFetchTriesAgain(t *testing.T) {
	var requests atomic.Int32
	url, f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		answer("image/png", "content")(w, r)
	})
	if got, err := f.Fetch(t.Context(), url, "image/png", 100); err != nil || string(got) != "content" || requests.Load() != 2 {
		t.Errorf("got %q, %v after %d requests; want the content after 2", got, err, requests.Load())
	}
	requests.Store(1)
	if _, err := f.Fetch(t.Context(), url, "image/gif", 100); err == nil || requests.Load() != 2 {
		t.Errorf("error %v after %d requests, want an error after one request", err, requests.Load()-1)
	}
}

// TestAddressPolicy checks that Fetch does not connect to an address that the policy refuses, and that a request whose
// context has ended fails.
func TestAddressPolicy(t *testing.T) {
	url, f := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Fetch(ctx, url, "image/png", 100); err == nil {
		t.Error("a request whose context has ended must fail")
	}
	f.Policy = nil
	if _, err := f.Fetch(t.Context(), url, "image/png", 100); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("error %v, want an error that names the refused address", err)
	}
	if _, err := fetch.For(f.Policy)("demo")(t.Context(), "https://169.254.169.254/", "image/png", 100); err == nil {
		t.Error("the metadata address must be refused")
	}
}

// learnedRanges is the network of a cluster whose ranges are known only after the first question.
type learnedRanges struct{ questions atomic.Int32 }

func (l *learnedRanges) Find(_ context.Context, addr netip.Addr) (*netpolicy.Range, error) {
	if l.questions.Add(1) > 1 {
		return nil, nil
	}
	return &netpolicy.Range{Prefix: netip.PrefixFrom(addr, addr.BitLen()), What: "a private address", Assumed: true}, nil
}

func (l *learnedRanges) Serves(context.Context, string, string, netip.Addr) (bool, error) {
	return false, nil
}

// TestAddressWhileRangesAreUnknown checks that a request is repeated if its address was refused because the ranges of
// the cluster were unknown.
func TestAddressWhileRangesAreUnknown(t *testing.T) {
	url, f := serve(t, answer("image/png", "content"))
	f.Policy = f.Policy.ForCluster(&learnedRanges{})
	if got, err := f.Fetch(t.Context(), url, "image/png", 100); err != nil || string(got) != "content" {
		t.Errorf("got %q, %v; want the content", got, err)
	}
}
