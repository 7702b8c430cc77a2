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

// InterceptingProxy is a reverse proxy in front of a server. It forwards all messages unchanged, with two exceptions,
// which tests use to make the server change its list of tools:
//
//  1. Hold makes the proxy hold back the notifications by which clients say that they are ready. The server adds a tool
//     when it receives such a notification.
//  2. ClaimCapabilities makes the proxy claim further capabilities for clients. The server has more tools for clients
//     with these capabilities.
//
// It is safe for concurrent use.
type InterceptingProxy struct {
	// URL is the URL of the proxy. Requests to it reach the server's endpoint.
	URL string

	tb     testing.TB
	target *url.URL
	proxy  *httputil.ReverseProxy
	// transport connects to the server.
	transport *http.Transport

	mu sync.Mutex
	// holding is true while notifications are held back. held holds these notifications.
	holding bool
	held    []*http.Request
	// capabilities replace those of each client. If capabilities is nil, clients keep their own.
	capabilities map[string]any
	// listening holds an item for each stream of notifications that a client has opened.
	listening chan struct{}
	// answeredCalls holds the tool names of calls to which the server has begun to reply.
	answeredCalls chan string
}

// maxRecorded is the maximum number of streams, and also of calls, that an InterceptingProxy records.
const maxRecorded = 1000

// calledTool is the context key for the name of the called tool.
type calledTool struct{}

// Proxy returns a proxy in front of the server. It runs until the test ends.
func (s *Server) Proxy(tb testing.TB) *InterceptingProxy {
	tb.Helper()
	target, err := url.Parse(s.URL)
	if err != nil {
		tb.Fatal(err)
	}
	p := &InterceptingProxy{
		tb: tb, target: target, listening: make(chan struct{}, maxRecorded), answeredCalls: make(chan string, maxRecorded),
	}
	p.transport = &http.Transport{}
	tb.Cleanup(p.transport.CloseIdleConnections)
	p.proxy = &httputil.ReverseProxy{
		FlushInterval: -1, Transport: p.transport,
		ErrorLog: log.New(io.Discard, "", 0), // a killed server breaks its connections
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host}) },
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusOK {
				p.record(r.Request)
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

// Hold holds back the notifications by which clients say that they are ready, from now on.
func (p *InterceptingProxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = true
}

// ClaimCapabilities claims these capabilities for each client that connects from now on.
func (p *InterceptingProxy) ClaimCapabilities(capabilities map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.capabilities = capabilities
}

// Forward forwards the notifications that were held back, and ends Hold. The server then changes its tools. So Forward
// first waits until a client has opened a stream of notifications, and can notice the change.
func (p *InterceptingProxy) Forward(ctx context.Context) {
	p.tb.Helper()
	select {
	case <-p.listening:
	case <-ctx.Done():
		p.tb.Fatalf("no client has opened a stream of notifications: %v", context.Cause(ctx))
	}
	p.mu.Lock()
	held := p.held
	p.holding, p.held = false, nil
	p.mu.Unlock()
	if len(held) == 0 {
		p.tb.Fatal("no client has sent the notification that it is ready")
	}
	for _, r := range held {
		resp, err := p.transport.RoundTrip(r.WithContext(ctx))
		if err != nil {
			p.tb.Fatalf("failed to forward the notification that a client is ready: %v", err)
		}
		_ = resp.Body.Close() // the body is empty
		if resp.StatusCode != http.StatusAccepted {
			p.tb.Fatalf("the server answers the notification that a client is ready with HTTP %d, want 202", resp.StatusCode)
		}
	}
}

// AwaitCall waits until the server has begun to reply to a call of a tool. Each recorded call counts once. AwaitCall
// discards the calls of other tools that were recorded before it.
func (p *InterceptingProxy) AwaitCall(ctx context.Context, tool string) {
	p.tb.Helper()
	for {
		select {
		case name := <-p.answeredCalls:
			if name == tool {
				return
			}
		case <-ctx.Done():
			p.tb.Fatalf("the server has not replied to a call of %q: %v", tool, context.Cause(ctx))
		}
	}
}

// record records a request to which the server has begun to reply. If maxRecorded requests of the same kind are already
// recorded, it does nothing.
func (p *InterceptingProxy) record(r *http.Request) {
	if r.Method == http.MethodGet {
		select {
		case p.listening <- struct{}{}:
		default:
		}
	}
	if name, ok := r.Context().Value(calledTool{}).(string); ok {
		select {
		case p.answeredCalls <- name:
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
	case m["method"] == "notifications/initialized" && p.holding:
		held := r.Clone(context.WithoutCancel(r.Context())) // the copy is used after the request has ended
		held.RequestURI, held.Host, held.Body = "", "", io.NopCloser(bytes.NewReader(body))
		held.URL = p.target
		p.held = append(p.held, held)
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
