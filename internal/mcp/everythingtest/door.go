package everythingtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// Door stands before a server and passes on all that clients and the server say, but for two things that make the server's own list of
// tools change: it may keep back the word that a client is ready, upon which the server adds a tool, and it may say of clients
// that they can do more than they say, for which the server has further tools. It is safe for concurrent use.
type Door struct {
	// URL of the endpoint behind it.
	URL string

	tb     testing.TB
	target *url.URL
	proxy  *httputil.ReverseProxy
	// transport leads to the server.
	transport *http.Transport

	mu sync.Mutex
	// closed is true while the word is kept back, and kept is what was.
	closed bool
	kept   []*http.Request
	// capabilities that are said of clients; nil for their own.
	capabilities map[string]any
	// listening holds a token for each stream of notifications that a client has begun.
	listening chan struct{}
	// taken are the names of the tools of calls that the server has begun to answer.
	taken chan string
}

// maxNoted bounds how many streams and calls a Door notes.
const maxNoted = 1000

// calledTool is the key of the name of the tool that a request calls.
type calledTool struct{}

// Door puts a door before the server, which stands until the test ends.
func (s *Server) Door(tb testing.TB) *Door {
	tb.Helper()
	target, err := url.Parse(s.URL)
	if err != nil {
		tb.Fatal(err)
	}
	d := &Door{tb: tb, target: target, listening: make(chan struct{}, maxNoted), taken: make(chan string, maxNoted)}
	d.transport = &http.Transport{}
	tb.Cleanup(d.transport.CloseIdleConnections)
	d.proxy = &httputil.ReverseProxy{
		FlushInterval: -1, Transport: d.transport,
		ErrorLog: log.New(io.Discard, "", 0), // servers that are killed break their connections off
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host}) },
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusOK {
				d.note(r.Request)
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as the server that is away hangs up
	}
	web := httptest.NewServer(http.HandlerFunc(d.handle))
	tb.Cleanup(web.Close)
	tb.Cleanup(web.CloseClientConnections) // before Close, which waits for all requests
	d.URL = web.URL + target.Path
	return d
}

// KeepBack keeps back from now on that clients are ready.
func (d *Door) KeepBack() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// Say has the door say from now on of each client that connects that it has these capabilities.
func (d *Door) Say(capabilities map[string]any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capabilities = capabilities
}

// Pass passes on what was kept back, once a client listens for what that brings about.
func (d *Door) Pass(ctx context.Context) {
	d.tb.Helper()
	select {
	case <-d.listening:
	case <-ctx.Done():
		d.tb.Fatalf("no client has begun to listen for notifications: %v", context.Cause(ctx))
	}
	d.mu.Lock()
	kept := d.kept
	d.closed, d.kept = false, nil
	d.mu.Unlock()
	if len(kept) == 0 {
		d.tb.Fatal("no client has said that it is ready")
	}
	for _, r := range kept {
		resp, err := d.transport.RoundTrip(r.WithContext(ctx))
		if err != nil {
			d.tb.Fatalf("failed to tell the server that a client is ready: %v", err)
		}
		_ = resp.Body.Close() // there is none
		if resp.StatusCode != http.StatusAccepted {
			d.tb.Fatalf("the server answers HTTP %d to a client that is ready, want 202", resp.StatusCode)
		}
	}
}

// Taken waits until the server has begun to answer one more call of a tool. It forgets the calls of others before.
func (d *Door) Taken(ctx context.Context, tool string) {
	d.tb.Helper()
	for {
		select {
		case name := <-d.taken:
			if name == tool {
				return
			}
		case <-ctx.Done():
			d.tb.Fatalf("no call of %q has come: %v", tool, context.Cause(ctx))
		}
	}
}

// note notes a request that the server answers. What is too much is not noted.
func (d *Door) note(r *http.Request) {
	if r.Method == http.MethodGet {
		select {
		case d.listening <- struct{}{}:
		default:
		}
	}
	if name, ok := r.Context().Value(calledTool{}).(string); ok {
		select {
		case d.taken <- name:
		default:
		}
	}
}

func (d *Door) handle(w http.ResponseWriter, r *http.Request) {
	var m map[string]any
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	if json.Unmarshal(body, &m) != nil {
		m = nil // a request without a message
	}
	d.mu.Lock()
	switch params, _ := m["params"].(map[string]any); {
	case m["method"] == "notifications/initialized" && d.closed:
		kept := r.Clone(context.WithoutCancel(r.Context())) // which it outlives
		kept.RequestURI, kept.Host, kept.Body = "", "", io.NopCloser(bytes.NewReader(body))
		kept.URL = d.target
		d.kept = append(d.kept, kept)
		d.mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
		return
	case m["method"] == "tools/call":
		r = r.WithContext(context.WithValue(r.Context(), calledTool{}, params["name"]))
	case m["method"] == "initialize" && d.capabilities != nil && params != nil:
		params["capabilities"] = d.capabilities
		if changed, err := json.Marshal(m); err == nil {
			body = changed
		}
	}
	d.mu.Unlock()
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	d.proxy.ServeHTTP(w, r)
}
