package mcp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestHeadersAreDropped checks that a response keeps only the headers that the client uses. The others would take
// memory while the body is read.
func TestHeadersAreDropped(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", eventsType)
		w.Header().Set(sessionHeader, "s1")
		w.Header().Set("X-Other", "x")
		w.Header().Set("Trailer", "X-A, X-B")
		w.Header().Set("X-A", "at the end")
		_, _ = io.WriteString(w, "data: 1\n\n") // the client reads it
	}))
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&wire{client: server.Client()}).do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // because it was read
	want := http.Header{"Content-Type": {eventsType}, sessionHeader: {"s1"}}
	if diff := cmp.Diff(want, resp.Header); diff != "" || len(resp.Trailer) > 0 {
		t.Errorf("the trailers are %v, and the headers -want +got:\n%s", resp.Trailer, diff)
	}
	if data, err := io.ReadAll(resp.Body); err != nil || string(data) != "data: 1\n\n" {
		t.Errorf("the body is %q: %v", data, err)
	}
}
