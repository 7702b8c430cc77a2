package openai_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestCompressedReplies checks that a compressed reply is refused before it is read, because 1 MB can contain 1 GB.
func TestCompressedReplies(t *testing.T) {
	var zip bytes.Buffer
	z := gzip.NewWriter(&zip)
	for range 64 {
		if _, err := z.Write([]byte(strings.Repeat(events(delta(`"content":"word "`)), 1000))); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	const refused = `provider "demo": the server sends a compressed response (Content-Encoding: %s), which is ` +
		`refused: turn compression off there, or make it honor "Accept-Encoding: identity"`
	for name, tc := range map[string]struct {
		reason   string
		encoding string
		status   int
		want     errorParts
	}{
		"gzip": {
			"the answer could be inflated to much more than was received", "gzip", 200,
			errorParts{Kind: model.InvalidRequest, Message: fmt.Sprintf(refused, "gzip")},
		},
		"br":   {"no compression is accepted", "br", 200, errorParts{Kind: model.InvalidRequest, Message: fmt.Sprintf(refused, "br")}},
		"zstd": {"no compression is accepted", "zstd", 200, errorParts{Kind: model.InvalidRequest, Message: fmt.Sprintf(refused, "zstd")}},
		"deflate": {
			"the name may have any case", "Deflate", 200,
			errorParts{Kind: model.InvalidRequest, Message: fmt.Sprintf(refused, "deflate")},
		},
		"an error": {
			"the status is enough to classify the error", "gzip", 429,
			errorParts{Kind: model.RateLimited, Message: `provider "demo": the endpoint's rate limit is reached (HTTP 429)`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan string, 1)
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				asked <- r.Header.Get("Accept-Encoding")
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("Content-Encoding", tc.encoding)
				w.WriteHeader(tc.status)
				_, _ = w.Write(zip.Bytes()) // the test notices if the client is gone
			})
			p := provider(t, url, func(cfg *openai.Config) {
				cfg.Headers = []endpoint.Header{{Name: "Accept-Encoding", Value: "gzip"}} // set by a tenant
			})
			if diff := cmp.Diff(tc.want, partsOf(failure(t, p))); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if got := <-asked; got != "identity" {
				t.Errorf("Accept-Encoding %q was sent, want identity", got)
			}
		})
	}
}

// TestTooManyEvents checks that an answer with too many events is cut off, even if they are small: reading each event
// takes time.
func TestTooManyEvents(t *testing.T) {
	sent := make(chan int, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		piece, n := []byte(strings.Repeat("data: {}\n\n", 1024)), 0
		for ; r.Context().Err() == nil; n += 1024 {
			if _, err := w.Write(piece); err != nil {
				break
			}
		}
		sent <- n
	})
	want := errorParts{
		Kind:    model.ReplyTooLong,
		Message: fmt.Sprintf(`provider "demo": the answer exceeds %d events and was cut off`, endpoint.MaxEvents),
	}
	if diff := cmp.Diff(want, partsOf(failure(t, provider(t, url)))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n := <-sent; n > 8*endpoint.MaxEvents {
		t.Errorf("%d events were sent before the request ended, want at most %d", n, 8*endpoint.MaxEvents)
	}
}
