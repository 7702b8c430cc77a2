package openai_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
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
