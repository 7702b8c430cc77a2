package netpolicy_test

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

func TestCheckPlain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		headers []string
		want    string
	}{
		"none":         {"most servers send no header", nil, ""},
		"empty":        {"an empty header has no effect", []string{""}, ""},
		"identity":     {"as requested", []string{"identity"}, ""},
		"capitals":     {"names are case-insensitive", []string{"Identity, IDENTITY"}, ""},
		"gzip":         {"compression is refused", []string{"gzip"}, "gzip"},
		"x-gzip":       {"the old name of the same encoding", []string{"X-GZIP"}, "x-gzip"},
		"deflate":      {"compression is refused", []string{"deflate"}, "deflate"},
		"br":           {"compression is refused", []string{"br"}, "br"},
		"zstd":         {"compression is refused", []string{"zstd"}, "zstd"},
		"twice":        {"encodings may be nested", []string{"identity, gzip, br"}, "gzip"},
		"second line":  {"a header may occur more than once", []string{"identity", "gzip"}, "gzip"},
		"no encoding":  {"a text that is not a name is not repeated", []string{"sk-secret/" + strings.Repeat("x", 100)}, "unknown"},
		"a credential": {"an echo is not repeated", []string{"Bearer sk"}, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			err := netpolicy.CheckPlain(&http.Response{Header: http.Header{"Content-Encoding": tc.headers}})
			encoded, refused := errors.AsType[*netpolicy.EncodedError](err)
			if refused != (tc.want != "") || refused && encoded.Encoding != tc.want {
				t.Errorf("CheckPlain(%q) = %v, want encoding %q: %s", tc.headers, err, tc.want, tc.reason)
			}
		})
	}
}

// TestTransportDecompressesNothing checks that a response is not decompressed if the server compresses it unasked.
func TestTransportDecompressesNothing(t *testing.T) {
	asked := make(chan []string, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Values("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		zip := gzip.NewWriter(w)
		_, _ = zip.Write(make([]byte, 1<<20)) // errors of the client fail the test
		_ = zip.Close()
	}))
	t.Cleanup(web.Close)
	transport := netpolicy.Transport(netpolicy.NewLocalPolicy(), 5*time.Second, nil)
	t.Cleanup(transport.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	if err != nil || len(body) > 64<<10 || resp.Uncompressed || netpolicy.CheckPlain(resp) == nil {
		t.Errorf("%d bytes, uncompressed %t, %v; want the compressed bytes, and the response known as such", len(body),
			resp.Uncompressed, err)
	}
	if got := <-asked; len(got) > 0 {
		t.Errorf("Accept-Encoding %q was sent, want no compression asked for", got)
	}
}
