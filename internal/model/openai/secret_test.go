package openai_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const headerSecret = "Basic a+b/c==  <secret> & more"

func TestSecretsStayOutOfErrors(t *testing.T) {
	const message = `provider "demo": the endpoint failed (HTTP 500): `
	body := func(text string) http.HandlerFunc { return respond(500, text) }
	for name, tc := range map[string]struct {
		reason string
		handle http.HandlerFunc
		want   string
	}{
		"key":              {"the key is not repeated", body("your key " + key + " is bad"), message + "your key [redacted] is bad"},
		"twice":            {"at no place", body(key + " and " + key), message + "[redacted] and [redacted]"},
		"wrapped":          {"also where it was broken into lines", body(key[:20] + "\r\n " + key[20:] + " end"), message + "[redacted] end"},
		"hidden":           {"or has invisible characters in it", body(key[:20] + "\u200b\x00" + key[20:] + " end"), message + "[redacted] end"},
		"cut by endpoint":  {"or is cut", body("key: " + key[:25]), message + "key: [redacted]"},
		"cut by us":        {"or would be, by shortening", body(strings.Repeat("x", 280) + " " + key), message + strings.Repeat("x", 280) + " [redacted]"},
		"masked":           {"what the endpoint masked stays readable", body("key sk-demo***wxyz"), message + "key sk-demo***wxyz"},
		"header":           {"values of headers are secrets too", body("got " + headerSecret + "!"), message + "got [redacted]!"},
		"header, folded":   {"with other white space", body("got " + strings.ReplaceAll(headerSecret, " ", "\n") + "!"), message + "got [redacted]!"},
		"header in JSON":   {"or escaped for JSON", body(`{"got":"Basic a+b/c==  \u003csecret\u003e \u0026 more"}`), message + `{"got":"[redacted]"}`},
		"header in HTML":   {"or for HTML", body("<p>Basic a+b/c==  &lt;secret&gt; &amp; more</p>"), message + "<p>[redacted]</p>"},
		"header in a URL":  {"or for a URL", body("?h=Basic+a%2Bb%2Fc%3D%3D++%3Csecret%3E+%26+more"), message + "?h=[redacted]"},
		"as content type":  {"also where no message is expected", respond(200, "", "Content-Type: text/"+key), `provider "demo": the stream ended before the answer was finished (the endpoint sent another type, not text/event-stream: check baseURL)`},
		"as finish reason": {"anywhere", respond(200, events(`{"choices":[{"index":0,"delta":{},"finish_reason":"`+key+`"}]}`), stream), `provider "demo": the answer ended for an unknown reason: [redacted]`},
	} {
		t.Run(name, func(t *testing.T) {
			p := provider(t, raw(t, tc.handle), func(c *openai.Config) {
				c.Headers = []openai.Header{{Name: "X-Auth", Value: headerSecret, Secret: true}}
			})
			e := failure(t, p)
			got := e.Message
			if e.Said != "" {
				got += ": " + e.Said
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestEchoedAuthorizationIsRedacted(t *testing.T) {
	_, url := fake(t, `rules: [{fault: {echoAuthorization: true}}]`)
	e := failure(t, provider(t, url))
	const want = `provider "demo": the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "demo"`
	const theirs = "Incorrect API key provided. The request was sent with Authorization: Bearer [redacted]"
	if diff := cmp.Diff(said{Kind: model.Auth, Message: want, Said: theirs}, saidOf(e)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRedirectIsRefused(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		reached := make(chan http.Header, 1)
		elsewhere := raw(t, func(_ http.ResponseWriter, r *http.Request) { reached <- r.Header })
		p := provider(t, raw(t, respond(status, "", "Location: "+elsewhere)), func(c *openai.Config) {
			c.Headers = []openai.Header{{Name: "X-Auth", Value: headerSecret, Secret: true}}
		})
		want := said{Kind: model.InvalidRequest, Message: `provider "demo": redirects to another address: set baseURL to the final one`}
		if diff := cmp.Diff(want, saidOf(failure(t, p))); diff != "" {
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
