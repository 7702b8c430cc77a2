package mcp_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// zipped returns a handler that responds with a compressed body.
func zipped(t *testing.T, status int, contentType, encoding string) func(http.ResponseWriter, *http.Request) {
	t.Helper()
	var zip bytes.Buffer
	z := gzip.NewWriter(&zip)
	if _, err := z.Write(make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept-Encoding"); got != "identity" {
			t.Errorf("Accept-Encoding %q was sent, want identity", got)
		}
		w.Header().Set("Content-Encoding", encoding)
		answer(status, contentType, zip.String())(w, r)
	}
}

// TestCompressedResponses checks that compressed responses are refused, and that for a refusal of the credentials the
// status is enough.
func TestCompressedResponses(t *testing.T) {
	const want = `the server sends a compressed response (Content-Encoding: gzip), which is refused: turn compression off there`
	for name, tc := range map[string]struct {
		reason      string
		status      int
		contentType string
		class       tool.Class
		message     string
		kind        mcp.Kind
		discovery   string
	}{
		"JSON":   {"the call may have been made", 200, jsonType, tool.OutcomeUnknown, want, mcp.Protocol, want},
		"events": {"the content type does not matter", 200, events, tool.OutcomeUnknown, want, mcp.Protocol, want},
		"401": {
			"the status alone tells the reason", 401, jsonType, tool.Denied, "the server refused the credentials (HTTP 401)",
			mcp.Refused, "the server refused the credentials (HTTP 401)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("hello", "hi"))
			handle := zipped(t, tc.status, tc.contentType, "gzip")
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method == "tools/call" {
					handle(w, r)
				}
				return m.Method == "tools/call"
			})
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Headers = []mcp.Header{{Name: "Accept-Encoding", Value: "gzip"}} })
			if e := failure(t, c, "hello"); e.Class != tc.class || !strings.Contains(e.Error(), tc.message) {
				t.Errorf("Call = %s %q, want %s %q: %s", e.Class, e.Error(), tc.class, tc.message, tc.reason)
			}
			web := httptest.NewServer(http.HandlerFunc(handle))
			t.Cleanup(web.Close)
			_, err := client(t, web.URL).Discover(patient(t))
			if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Kind != tc.kind || !strings.HasPrefix(e.Error(), tc.discovery) {
				t.Errorf("Discover = %v, want %s %q", err, tc.kind, tc.discovery)
			}
		})
	}
}
