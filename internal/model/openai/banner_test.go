package openai_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/openai"
)

// TestServerTextStaysOutOfMessages sends requests to servers that do not belong to the author of the ModelProvider.
// Messages become part of a status, which the author may read, so they must not contain answers of the servers.
func TestServerTextStaysOutOfMessages(t *testing.T) {
	const secret = "hunter2"
	banner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil { // an unread body would reset the connection
			t.Error(err)
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Write([]byte("SSH-2.0-" + secret + "\r\n")) // the client checks whether this arrived
		_ = conn.Close()
	}))
	t.Cleanup(banner.Close)
	other := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	for name, tc := range map[string]struct{ url, want, remote string }{
		"a banner": {banner.URL, `provider "demo": the connection to the endpoint failed`, secret},
		"a page":   {serve(t, respond(500, secret)), `provider "demo": the endpoint failed (HTTP 500)`, secret},
		"a type": {
			serve(t, respond(200, "", "Content-Type: text/"+secret)),
			`provider "demo": the stream ended before the answer was finished (the endpoint sent another type, ` +
				`not text/event-stream: check baseURL)`, "",
		},
		"a reason": {
			serve(t, respond(200, events(`{"choices":[{"index":0,"delta":{},"finish_reason":"`+secret+`"}]}`), stream)),
			`provider "demo": the answer ended for an unknown reason`, secret,
		},
		"a certificate": {other.URL, `provider "demo": the connection to the endpoint failed: x509: certificate ` +
			`signed by unknown authority`, ""},
		"another host's cert": {
			strings.Replace(other.URL, "127.0.0.1", "localhost", 1),
			`provider "demo": the connection to the endpoint failed: x509: certificate is for another host`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := failure(t, provider(t, tc.url, func(c *openai.Config) {
				if name == "another host's cert" {
					//nolint:forcetypeassert // because the test knows the type
					c.TLS = other.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
				}
			}))
			if e.Message != tc.want || !strings.Contains(e.RemoteMessage, tc.remote) {
				t.Errorf("message %q, remote message %q; want %q and %q", e.Message, e.RemoteMessage, tc.want, tc.remote)
			}
		})
	}
}
