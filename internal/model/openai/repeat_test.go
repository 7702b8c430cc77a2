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

// TestRepetitionsOverHTTP2 checks that a request is sent once more if the endpoint has refused it without processing
// it, and not at all if the endpoint may have processed it. net/http would repeat it without limit after
// PROTOCOL_ERROR.
func TestRepetitionsOverHTTP2(t *testing.T) {
	const unclear = "the server ended the HTTP/2 stream or connection after the whole request was sent"
	const unprocessed = "the server refused the HTTP/2 stream, or is closing the connection, without processing the request"
	for name, tc := range map[string]struct {
		refusal       http2test.Response
		refused, sent int32
		failure       string
	}{
		"PROTOCOL_ERROR":       {http2test.Response{Reset: http2.ErrCodeProtocol}, 1, 1, unclear},
		"REFUSED_STREAM":       {http2test.Response{Reset: http2.ErrCodeRefusedStream}, 1, 2, ""},
		"GOAWAY":               {http2test.Response{GoAway: true}, 1, 2, ""},
		"REFUSED_STREAM twice": {http2test.Response{Reset: http2.ErrCodeRefusedStream}, 2, 2, unprocessed},
		"GOAWAY twice":         {http2test.Response{GoAway: true}, 2, 2, unprocessed},
	} {
		t.Run(name, func(t *testing.T) {
			var received atomic.Int32 // not counting the first request, which shows that the endpoint uses HTTP/2
			received.Store(-1)
			var first atomic.Value
			url, certificate := http2test.Serve(t, func(_ string, body []byte) http2test.Response {
				if before := first.Swap(string(body)); before != nil && before != string(body) {
					t.Errorf("the request was %s, and then %s; want the same", before, body)
				}
				if n := received.Add(1); n > 0 && n <= tc.refused {
					return tc.refusal
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
			want := `provider "demo": the connection to the endpoint failed: ` + tc.failure
			if reply, err := generate(t.Context(), p, request("hello")); err != nil || reply.Text != "Hi" {
				t.Fatalf("the first request: %q, %v; want its reply", reply.Text, err)
			}
			reply, err := generate(t.Context(), p, request("hello"))
			switch {
			case tc.failure == "" && (err != nil || reply.Text != "Hi"):
				t.Errorf("Generate = %q, %v; want the reply", reply.Text, err)
			case tc.failure != "" && (err == nil || model.AsError(err).Kind != model.Network || model.AsError(err).Message != want):
				t.Errorf("Generate = %v, want %s %q", err, model.Network, want)
			}
			if received.Load() != tc.sent {
				t.Errorf("the request was sent %d times, want %d", received.Load(), tc.sent)
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
