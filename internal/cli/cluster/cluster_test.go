package cluster_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/internal/cli/cluster"
)

// TestInterruptedDiscovery checks that the end of the context, such as Ctrl-C, ends the requests for the kinds of an
// API server that does not answer.
func TestInterruptedDiscovery(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		interrupt()
		<-r.Context().Done()
	}))
	defer web.Close()
	api, err := cluster.NewClient(ctx, &rest.Config{Host: web.URL, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.GetTurn(ctx, api, "default", "first"); err == nil {
		t.Error("want an error")
	}
	if ctx.Err() == nil {
		t.Error("the server has received no request")
	}
}
