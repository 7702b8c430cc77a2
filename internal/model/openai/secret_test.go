package openai_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const headerSecret = "Basic a+b/c==  <secret> & more"

func TestSecretsStayOutOfErrors(t *testing.T) {
	const message = `provider "demo": the endpoint failed (HTTP 500): `
	body := func(text string) http.HandlerFunc { return respond(500, text) }
	// An error repeats 900 characters of the endpoint. After the filler, there is room for the marker, but not for the
	// key: if the text were cut before the redaction, the part of the key would be too short to be found.
	filler := strings.Repeat("x", 900-1-len("[redacted]")) + " "
	for name, tc := range map[string]struct {
		reason string
		handle http.HandlerFunc
		want   string
	}{
		"key":     {"the key is not repeated", body("your key " + key + " is bad"), message + "your key [redacted] is bad"},
		"twice":   {"each occurrence is removed", body(key + " and " + key), message + "[redacted] and [redacted]"},
		"wrapped": {"a key across lines is removed", body(key[:20] + "\r\n " + key[20:] + " end"), message + "[redacted] end"},
		"hidden": {
			"a key with invisible characters is removed",
			body(key[:20] + "\u200b\x00" + key[20:] + " end"), message + "[redacted] end",
		},
		"cut by endpoint": {"a part of a key is removed", body("key: " + key[:25]), message + "key: [redacted]"},
		"cut by Capstan": {
			"a key that crosses the length bound is removed", body(filler + key + " end"),
			message + filler + "[redacted]...",
		},
		"masked": {"what the endpoint masked stays readable", body("key sk-demo***wxyz"), message + "key sk-demo***wxyz"},
		"header": {"values of headers are secrets too", body("got " + headerSecret + "!"), message + "got [redacted]!"},
		"header, folded": {
			"other white space does not matter",
			body("got " + strings.ReplaceAll(headerSecret, " ", "\n") + "!"), message + "got [redacted]!",
		},
		"header in JSON": {
			"escapes of JSON do not matter",
			body(`{"got":"Basic a+b/c==  \u003csecret\u003e \u0026 more"}`), message + `{"got":"[redacted]"}`,
		},
		"header in HTML": {
			"escapes of HTML do not matter", body("<p>Basic a+b/c==  &lt;secret&gt; &amp; more</p>"),
			message + "<p>[redacted]</p>",
		},
		"header in a URL": {
			"escapes of URLs do not matter", body("?h=Basic+a%2Bb%2Fc%3D%3D++%3Csecret%3E+%26+more"),
			message + "?h=[redacted]",
		},
		"as content type": {
			"the content type may contain a key", respond(200, "", "Content-Type: text/"+key),
			`provider "demo": the stream ended before the answer was finished (the endpoint sent another type, ` +
				`not text/event-stream: check baseURL)`,
		},
		"as finish reason": {
			"the finish reason may contain a key",
			respond(200, events(`{"choices":[{"index":0,"delta":{},"finish_reason":"`+key+`"}]}`), stream),
			`provider "demo": the answer ended for an unknown reason: [redacted]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := provider(t, serve(t, tc.handle), func(c *openai.Config) {
				c.Headers = []endpoint.Header{{Name: "X-Auth", Value: headerSecret, Secret: true}}
			})
			e := failure(t, p)
			got := e.Message
			if e.RemoteMessage != "" {
				got += ": " + e.RemoteMessage
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestEchoedAuthorizationIsRedacted(t *testing.T) {
	_, url := fakeModel(t, `rules: [{fault: {echoAuthorization: true}}]`)
	e := failure(t, provider(t, url))
	const want = `provider "demo": the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "demo"`
	const theirs = "Incorrect API key provided. The request was sent with Authorization: Bearer [redacted]"
	if diff := cmp.Diff(errorParts{Kind: model.Auth, Message: want, Said: theirs}, partsOf(e)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRedirectIsRefused(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		reached := make(chan http.Header, 1)
		elsewhere := serve(t, func(_ http.ResponseWriter, r *http.Request) { reached <- r.Header })
		p := provider(t, serve(t, respond(status, "", "Location: "+elsewhere)), func(c *openai.Config) {
			c.Headers = []endpoint.Header{{Name: "X-Auth", Value: headerSecret, Secret: true}}
		})
		want := errorParts{
			Kind:    model.InvalidRequest,
			Message: `provider "demo": the endpoint redirects to another address: set baseURL to the final one`,
		}
		if diff := cmp.Diff(want, partsOf(failure(t, p))); diff != "" {
			t.Errorf("HTTP %d: -want +got:\n%s", status, diff)
		}
		if _, err := p.Probe(t.Context()); err == nil {
			t.Errorf("HTTP %d: Probe took a redirect for an answer", status)
		}
		select {
		case h := <-reached:
			t.Errorf("HTTP %d: the other host was sent %v", status, h)
		default:
		}
	}
}
