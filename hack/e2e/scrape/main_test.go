package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestRun checks that the token is sent to a server whose certificate the authority has issued, that the status is
// printed, and that a server that is not available yet is asked again.
func TestRun(t *testing.T) {
	requests := 0
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, "%s with %s", r.URL.Path, r.Header.Get("Authorization"))
	}))
	t.Cleanup(web.Close)
	account := t.TempDir()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	for name, content := range map[string][]byte{"token": []byte("secret\n"), "ca.crt": authority} {
		if err := os.WriteFile(filepath.Join(account, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), account, []string{web.URL + "/metrics"}, &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "HTTP 403\n/metrics with Bearer secret"; got != want {
		t.Errorf("output = %q, want %q", got, want)
	}
}
