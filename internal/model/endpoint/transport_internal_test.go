package endpoint

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// plain is a protocol whose body is the engine's request as JSON.
type plain struct{ Protocol }

func (plain) Body(req *model.Request, _ *Contents) ([]byte, error) { return json.Marshal(req) }

func (plain) SetHeaders(http.Header, string, string) {}

// TestHeadersAreDropped checks that the headers of a response are not in memory while its body is read.
func TestHeadersAreDropped(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", eventStream)
		w.Header().Set("Trailer", "X-A, X-B")
		w.Header().Set("X-A", "at the end")
		_, _ = io.WriteString(w, "data: 1\n\n") // the client reads it
	}))
	defer server.Close()
	p := New(Config{
		Name: "demo", BaseURL: server.URL, ConnectTimeout: time.Minute, IdleTimeout: time.Minute, Policy: netpolicy.NewLocalPolicy(),
	}, plain{})
	defer p.Close()
	x := p.newExchange(t.Context(), eventStream)
	if x.open(t.Context(), http.MethodGet, "/"); x.err != nil {
		t.Fatal(x.err)
	}
	x.resp, x.err = p.transport.RoundTrip(x.out) //nolint:bodyclose // because the body of accept closes it
	body, err := x.accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close() //nolint:errcheck // because it was read
	if len(x.resp.Header)+len(x.resp.Trailer) > 0 || x.contentType != eventStream || x.date == "" {
		t.Errorf("the headers are kept: %v, %v; want only the type %q and the date %q", x.resp.Header, x.resp.Trailer,
			x.contentType, x.date)
	}
	if data, err := io.ReadAll(body); err != nil || string(data) != "data: 1\n\n" {
		t.Errorf("the body is %q: %v", data, err)
	}
}

// TestSentBodyIsReleased checks that the body is released once it was sent, because an answer may take long, and
// that the body can be made again for another connection.
func TestSentBodyIsReleased(t *testing.T) {
	req := &model.Request{
		Model: "m", Messages: []model.Message{{Role: model.RoleUser, Content: strings.Repeat("hello ", 1000)}},
		Tools: []model.Tool{{Name: "find", Description: strings.Repeat("It finds. ", 100)}},
	}
	s, err := encode(t.Context(), req, plain{})
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	out, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://localhost", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	s.apply(out)
	sent, err := io.ReadAll(out.Body)
	if err != nil || int64(len(sent)) != out.ContentLength || !strings.Contains(string(sent), "hello hello") {
		t.Fatalf("%d bytes were sent, and %d announced (error %v)", len(sent), out.ContentLength, err)
	}
	if c, ok := out.Body.(*requestBody); !ok || c.rest != nil || s.body != nil {
		t.Error("the body is still held after it was sent")
	}
	again, err := out.GetBody()
	if err != nil {
		t.Fatalf("GetBody: %v", err)
	}
	if second, err := io.ReadAll(again); err != nil || string(second) != string(sent) {
		t.Errorf("the body for another connection is %q (error %v), want the same body", second, err)
	}
}

// TestLargeRequestWaitsForOthers checks that a large request waits for large work of other namespaces.
func TestLargeRequestWaitsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		processors := fairgate.NewProcessors(1)
		done := fairgate.AcquireProcessor(processors.With(t.Context(), "other"), 1<<20)
		ctx, encoded := processors.With(t.Context(), "mine"), make(chan error, 1)
		request := func(size int) *model.Request {
			return &model.Request{Messages: []model.Message{{Role: model.RoleUser, Content: strings.Repeat("x", size)}}}
		}
		if _, err := encode(ctx, request(1000), plain{}); err != nil {
			t.Errorf("encode of a small request: %v", err)
		}
		go func() {
			_, err := encode(ctx, request(1<<20), plain{})
			encoded <- err
		}()
		synctest.Wait()
		if len(encoded) != 0 {
			t.Error("a large request does not wait for the other namespace")
		}
		done()
		if err := <-encoded; err != nil {
			t.Errorf("encode of a large request: %v", err)
		}
	})
}
