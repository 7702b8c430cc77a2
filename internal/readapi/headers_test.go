package readapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/readapi"
)

// TestLongHeaders checks the bound of the headers of a request, which are read before the user is known.
func TestLongHeaders(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	s, err := readapi.Listen(ctx, readapi.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Start(ctx) }()
	defer func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("Start: %v", err)
		}
	}()
	transport := &http.Transport{DisableKeepAlives: true}
	for bytes, want := range map[int]int{12 << 10: http.StatusNotFound, 24 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL(), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.Repeat("x", bytes))
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("headers of %d bytes: %v", bytes, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("headers of %d bytes: status %d, want %d", bytes, resp.StatusCode, want)
		}
	}
}
