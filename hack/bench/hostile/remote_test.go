package hostile_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/hack/bench/hostile"
)

// serveArgument is the argument with which the test executable serves the endpoints instead of running tests.
const serveArgument = "serve"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serveArgument {
		if err := hostile.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestServerInASeparateProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := hostile.Start(t.Context(), self, serveArgument)
	if err != nil {
		t.Fatal(err)
	}
	request := strings.NewReader(`{"model":"m","messages":[]}`)
	resp, err := http.Post(r.Answering(0)+"/chat/completions", "application/json", request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK { //nolint:errcheck // because it was read
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	if requests, sent, err := r.Stats(t.Context()); err != nil || requests != 1 || sent != int64(len(body)) {
		t.Errorf("Stats = %d requests, %d bytes, %v; want 1 and %d", requests, sent, err, len(body))
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if _, _, err := r.Stats(t.Context()); err == nil {
		t.Error("the process still answers after Close")
	}
}

func TestStartOfAProgramThatDoesNotServe(t *testing.T) {
	_, err := hostile.Start(t.Context(), "/bin/true")
	if err == nil || !strings.Contains(err.Error(), "failed to start the hostile server") {
		t.Errorf("Start = %v, want an error", err)
	}
}
