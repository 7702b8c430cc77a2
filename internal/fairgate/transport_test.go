package fairgate

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// stalledServer is a server that delays its answers until the test releases them.
type stalledServer struct {
	*httptest.Server
	arrived chan string
	release chan struct{}
}

func newStalledServer(t *testing.T) *stalledServer {
	t.Helper()
	h := &stalledServer{arrived: make(chan string, 100), release: make(chan struct{})}
	h.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		h.arrived <- r.Method + " " + r.URL.Path
		<-h.release
	}))
	t.Cleanup(h.Close)
	return h
}

func TestWritesOfANamespaceDoNotBlockOthers(t *testing.T) {
	server := newStalledServer(t)
	transport := &http.Transport{}
	client := &http.Client{Transport: NewWriteGate().Wrap(transport)}
	var group sync.WaitGroup
	send := func(ctx context.Context, method, path string) {
		group.Go(func() {
			r, err := http.NewRequestWithContext(ctx, method, server.URL+path, strings.NewReader("{}"))
			if err != nil {
				t.Error(err)
				return
			}
			if answer, err := client.Do(r); err == nil {
				_ = answer.Body.Close()
			} else if ctx.Err() == nil {
				t.Errorf("%s %s: %v", method, path, err)
			}
		})
	}
	const status = "/apis/capstan.dev/v1alpha1/namespaces/busy/turns/one/status"
	send(t.Context(), http.MethodPut, "/apis/capstan.dev/v1alpha1/namespaces/calm/turns/one/status")
	<-server.arrived // because another namespace uses the gate, too, the busy namespace gets half of it
	for range 2 * writesAtOnce {
		send(t.Context(), http.MethodPut, status)
	}
	for range writesAtOnce / 2 {
		<-server.arrived
	}
	// Each of these would wait forever if it waited for the busy namespace.
	for _, r := range []struct{ method, path string }{
		{http.MethodGet, "/apis/capstan.dev/v1alpha1/namespaces/busy/turns/one"},
		{http.MethodPut, "/apis/coordination.k8s.io/v1/namespaces/busy/leases/capstan"},
		{http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/busy/leases"},
		{http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews"},
		{http.MethodPut, "/apis/capstan.dev/v1alpha1/namespaces/calm/turns/one/status"},
		{http.MethodPost, "/api/v1/namespaces/other/events"},
		{http.MethodPatch, "/apis/events.k8s.io/v1/namespaces/other/events/one"},
	} {
		send(t.Context(), r.method, r.path)
		if got, want := <-server.arrived, r.method+" "+r.path; got != want {
			t.Errorf("%s arrived, want %s", got, want)
		}
	}
	// A request that is cancelled while it waits is not sent.
	ctx, cancel := context.WithCancel(t.Context())
	send(ctx, http.MethodDelete, "/apis/capstan.dev/v1alpha1/namespaces/busy/turns/one")
	cancel()
	close(server.release)
	group.Wait()
	close(server.arrived)
	for r := range server.arrived {
		if r != http.MethodPut+" "+status {
			t.Errorf("%s arrived, want only the waiting writes of the busy namespace", r)
		}
	}
	transport.CloseIdleConnections()
	server.Close()
}
