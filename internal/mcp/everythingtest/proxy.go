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

// InterceptingProxy is a reverse proxy in front of a server. It forwards all messages, but tests can use it in two
// ways to make the server change its list of tools:
//
// 1. Hold back the notification that a client is ready. When the server receives it, the server adds a tool.
// 2. Claim further capabilities for clients. The server has more tools for clients with these capabilities.
//
// It is safe for concurrent use.
type InterceptingProxy struct {
	// URL is the URL of the server's endpoint behind the door.
	URL string

	tb     testing.TB
	target *url.URL
	proxy  *httputil.ReverseProxy
	// transport connects to the server.
	transport *http.Transport

	mu sync.Mutex
	// closed is true while notifications are held back. kept holds these notifications.
	closed bool
	kept   []*http.Request
	// capabilities are claimed for each client. If it is nil, clients keep their own.
	capabilities map[string]any
	// listening holds an item for each stream of notifications that a client has opened.
	listening chan struct{}
	// taken holds the tool names of calls to which the server has begun to reply.
	taken chan string
}

// maxNoted is the maximum number of streams and calls that an InterceptingProxy records.
const maxNoted = 1000

// calledTool is the context key for the name of the called tool.
type calledTool struct{}

// Proxy returns a proxy in front of the server. It runs until the test ends.
func (s *Server) Proxy(tb testing.TB) *InterceptingProxy {
	tb.Helper()
	target, err := url.Parse(s.URL)
	if err != nil {
		tb.Fatal(err)
	}
	p := &InterceptingProxy{tb: tb, target: target, listening: make(chan struct{}, maxNoted), taken: make(chan string, maxNoted)}
	p.transport = &http.Transport{}
	tb.Cleanup(p.transport.CloseIdleConnections)
	p.proxy = &httputil.ReverseProxy{
		FlushInterval: -1, Transport: p.transport,
		ErrorLog: log.New(io.Discard, "", 0), // a killed server breaks its connections
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host}) },
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusOK {
				p.note(r.Request)
			}
			return nil
		},
		// An error closes the connection, as a stopped server does.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	web := httptest.NewServer(http.HandlerFunc(p.handle))
	tb.Cleanup(web.Close)
	tb.Cleanup(web.CloseClientConnections) // before Close, which waits for all requests
	p.URL = web.URL + target.Path
	return p
}

// Hold holds back the notifications of clients that are ready, from now on.
func (p *InterceptingProxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// ClaimCapabilities claims these capabilities for each client that connects from now on.
func (p *InterceptingProxy) ClaimCapabilities(capabilities map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.capabilities = capabilities
}

// Forward forwards the notifications that were held back. It first waits for a client to listen for the resulting
// change.
func (p *InterceptingProxy) Forward(ctx context.Context) {
	p.tb.Helper()
	select {
	case <-p.listening:
	case <-ctx.Done():
		p.tb.Fatalf("no client has opened a stream of notifications: %v", context.Cause(ctx))
	}
	p.mu.Lock()
	kept := p.kept
	p.closed, p.kept = false, nil
	p.mu.Unlock()
	if len(kept) == 0 {
		p.tb.Fatal("no client has sent the notification that it is ready")
	}
	for _, r := range kept {
		resp, err := p.transport.RoundTrip(r.WithContext(ctx))
		if err != nil {
			p.tb.Fatalf("failed to tell the server that a client is ready: %v", err)
		}
		_ = resp.Body.Close() // the body is empty
		if resp.StatusCode != http.StatusAccepted {
			p.tb.Fatalf("the server answers HTTP %d to a client that is ready, want 202", resp.StatusCode)
		}
	}
}

// AwaitCall waits until the server has begun to reply to another call of a tool. It discards earlier calls of other
// tools.
func (p *InterceptingProxy) AwaitCall(ctx context.Context, tool string) {
	p.tb.Helper()
	for {
		select {
		case name := <-p.taken:
			if name == tool {
				return
			}
		case <-ctx.Done():
			p.tb.Fatalf("no call of %q has arrived: %v", tool, context.Cause(ctx))
		}
	}
}

// note records a request to which the server replies. It drops records over maxNoted.
func (p *InterceptingProxy) note(r *http.Request) {
	if r.Method == http.MethodGet {
		select {
		case p.listening <- struct{}{}:
		default:
		}
	}
	if name, ok := r.Context().Value(calledTool{}).(string); ok {
		select {
		case p.taken <- name:
		default:
		}
	}
}

func (p *InterceptingProxy) handle(w http.ResponseWriter, r *http.Request) {
	var m map[string]any
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has closed the connection
	}
	if json.Unmarshal(body, &m) != nil {
		m = nil // a request without a message
	}
	p.mu.Lock()
	switch params, _ := m["params"].(map[string]any); {
	case m["method"] == "notifications/initialized" && p.closed:
		kept := r.Clone(context.WithoutCancel(r.Context())) // the copy outlives the request
		kept.RequestURI, kept.Host, kept.Body = "", "", io.NopCloser(bytes.NewReader(body))
		kept.URL = p.target
		p.kept = append(p.kept, kept)
		p.mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
		return
	case m["method"] == "tools/call":
		r = r.WithContext(context.WithValue(r.Context(), calledTool{}, params["name"]))
	case m["method"] == "initialize" && p.capabilities != nil && params != nil:
		params["capabilities"] = p.capabilities
		if changed, err := json.Marshal(m); err == nil {
			body = changed
		}
	}
	p.mu.Unlock()
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	p.proxy.ServeHTTP(w, r)
}
