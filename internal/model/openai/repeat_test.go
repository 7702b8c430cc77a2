package openai_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/http2test"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestRequestIsSentOnce checks that a request is not sent again if the connection breaks after the endpoint has
// received it. The endpoint may bill it.
func TestRequestIsSentOnce(t *testing.T) {
	for name, header := range map[string]endpoint.Header{
		"no such header": {Name: "X-Team", Value: "blue"}, "the header": {Name: "Idempotency-Key", Value: "k"},
		"older name of the header": {Name: "x-idempotency-key", Value: "k"},
		"empty header":             {Name: "Idempotency-Key"},
	} {
		t.Run(name, func(t *testing.T) {
			breaks, addresses := false, make(chan string, 10)
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // the whole request has arrived
				addresses <- r.RemoteAddr
				if breaks {
					panic(http.ErrAbortHandler)
				}
				respond(http.StatusOK, events(`{"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}`, "[DONE]"), stream)(w, r)
			})
			p := provider(t, url, func(cfg *openai.Config) { cfg.Headers = []endpoint.Header{header} })
			ask := func() error {
				_, err := p.Generate(t.Context(), &model.Request{
					Model: "m", Messages: []model.Message{{Role: model.RoleUser, Content: "Hello"}},
				})
				return err
			}
			// A connection can be reused only a moment after its response. Until then, a request gets a new connection.
			for t.Context().Err() == nil {
				breaks = false
				if err := ask(); err != nil {
					t.Fatal(err)
				}
				used := map[string]bool{<-addresses: true}
				breaks = true
				if err := ask(); err == nil || model.AsError(err).Kind != model.Network {
					t.Fatalf("Generate = %v, want the failure of the connection", err)
				}
				if n := len(addresses); n != 1 {
					t.Fatalf("the request was sent %d times, want once", n)
				}
				if used[<-addresses] {
					return
				}
			}
		})
	}
}

// TestRequestIsSentOnceOverHTTP2 checks that a request is not sent again if the endpoint resets its stream after it has
// received all of it. net/http would repeat such a request without limit.
func TestRequestIsSentOnceOverHTTP2(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeProtocol, http2.ErrCodeRefusedStream} {
		t.Run(code.String(), func(t *testing.T) {
			var received atomic.Int32
			url, certificate := http2test.Serve(t, func(string, []byte) http2test.Response {
				if received.Add(1) == 1 {
					return http2test.Response{Reset: code}
				}
				return http2test.Response{
					Status: http.StatusOK, ContentType: "text/event-stream",
					Body: events(`{"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}`, "[DONE]"),
				}
			})
			certificates, err := netpolicy.Certificates{Authorities: certificate}.TLS()
			if err != nil {
				t.Fatal(err)
			}
			p := provider(t, url+"/v1", func(cfg *openai.Config) { cfg.TLS = certificates })
			const want = `provider "demo": the connection to the endpoint failed: ` +
				"the server ended the HTTP/2 stream or connection after the whole request was sent"
			if e := failure(t, p); e.Kind != model.Network || e.Message != want || received.Load() != 1 {
				t.Errorf("%s %q, sent %d times; want %s %q, sent once", e.Kind, e.Message, received.Load(), model.Network, want)
			}
			if reply, err := generate(t.Context(), p, request("hello")); err != nil || reply.Text != "Hi" {
				t.Errorf("the next request: %q, %v; want its reply", reply.Text, err)
			}
		})
	}
}

// TestProbeIsSentTwiceOverHTTP2 checks that the request for the list of models is sent at most twice if the endpoint
// resets its stream. net/http would repeat it without limit and without a pause.
func TestProbeIsSentTwiceOverHTTP2(t *testing.T) {
	var received atomic.Int32
	url, certificate := http2test.Serve(t, func(string, []byte) http2test.Response {
		if received.Add(1) <= 2 {
			return http2test.Response{Reset: http2.ErrCodeProtocol}
		}
		return http2test.Response{Status: http.StatusOK, ContentType: "application/json", Body: `{"data":[{"id":"m"}]}`}
	})
	certificates, err := netpolicy.Certificates{Authorities: certificate}.TLS()
	if err != nil {
		t.Fatal(err)
	}
	p := provider(t, url+"/v1", func(cfg *openai.Config) { cfg.TLS = certificates })
	if _, err := p.Probe(t.Context()); err == nil || model.AsError(err).Kind != model.Network || received.Load() != 2 {
		t.Errorf("Probe = %v, sent %d times; want an error of the network, sent twice", err, received.Load())
	}
	if listing, err := p.Probe(t.Context()); err != nil || listing != endpoint.Listed {
		t.Errorf("the next Probe = %d, %v; want the list", listing, err)
	}
}
