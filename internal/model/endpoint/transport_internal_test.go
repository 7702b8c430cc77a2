package endpoint

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// plain is a protocol whose body is the engine's request as JSON.
type plain struct{ Protocol }

func (plain) Body(req *model.Request, _ *Contents) ([]byte, error) { return json.Marshal(req) }

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
