// Package mcp calls the tools of MCP servers over streamable HTTP, on top of
// github.com/modelcontextprotocol/go-sdk.
//
// The SDK implements the protocol. The HTTP traffic goes through this package (wire and stream), which adds the
// following:
//
//   - It limits the size of responses.
//   - It knows whether a call may have reached its server.
//   - It keeps one failed request from ending the others.
//   - It replies to requests of the server.
package mcp

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
)

const (
	// DefaultIdle is how long an unused connection is kept.
	DefaultIdle = 10 * time.Minute
	// firstBackoff and maxBackoff limit the pause after a failed connection attempt.
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// settle is the pause after a server has reported a change of its tools, because it may report the change of each
	// tool separately. While reports keep arriving, the pause doubles up to maxSettle.
	settle    = 300 * time.Millisecond
	maxSettle = 30 * time.Second
	// idleConnection is how long an idle TCP connection is kept. Many servers close idle connections after 5 s. If that
	// happens while a call is being written, the outcome of the call is unknown. So the client closes them earlier.
	idleConnection = 4 * time.Second
)

// Config configures a Client.
type Config struct {
	// Name is the name of the server in messages.
	Name string
	// URL is the URL of the server's endpoint.
	URL string
	// Token is sent as a bearer token unless it is empty.
	Token string
	// CredentialsFrom names the source of the token in messages, such as `key "token" of Secret "tickets"`.
	CredentialsFrom string
	// Headers are sent with each request, except those that belong to the protocol.
	Headers []Header
	// Earlier holds the secrets that were sent in earlier requests. They are redacted from texts, as the current ones
	// are.
	Earlier []string
	// ConnectTimeout limits the time from the first packet to the list of tools.
	ConnectTimeout time.Duration
	// Policy decides which addresses may be connected to. If it is nil, the built-in table applies.
	Policy *netpolicy.Policy
	// TLS is from netpolicy.Certificates. If it is nil, the certificate authorities of the system are trusted.
	TLS *tls.Config
	// Memory is the budget for responses. All clients with the zero value share 32 MiB for large responses, and 16 MiB
	// for small ones.
	Memory bytebudget.Account
	// Listings is the budget for lists of tools. The zero value has no limit.
	Listings bytebudget.Account
	// Processors limits how many large responses are processed at the same time. Namespaces take turns; this client
	// belongs to Namespace. If Processors is nil, there is no limit.
	Processors *fairgate.Processors
	Namespace  string
	// Idle is how long an unused connection is kept. If it is 0, DefaultIdle applies.
	Idle time.Duration
	// Now returns the current time. It must not be nil.
	Now func() time.Time
	// Log receives failures that no caller waits for.
	Log logr.Logger
	// OnChange is called when the tools of the server have changed. It must return quickly. If it is nil, changes
	// are not reported.
	OnChange func()
	// OnIdle is called when the session has ended because the client was unused for the time of Idle. It must
	// return quickly. If it is nil, the end is not reported.
	OnIdle func()
}

// Header is an HTTP header that is sent with each request.
type Header struct {
	Name, Value string
	// Secret means that the value is redacted from messages and results.
	Secret bool
}

// Secrets returns the credentials in a token, which may be empty, and in headers.
func Secrets(token string, headers []Header) []string {
	var secrets []string
	if token != "" {
		secrets = append(secrets, token)
	}
	for _, h := range headers {
		if h.Secret {
			secrets = append(secrets, h.Value)
		}
	}
	return secrets
}

// Client is a connection to one server, which all calls share. It connects when it is first used, and again after the
// connection was lost. After a failed attempt it pauses for up to 30 s, during which calls fail immediately. It is safe
// for concurrent use.
type Client struct {
	cfg       Config
	transport *http.Transport
	http      *http.Client
	redactor  *redact.Redactor
	budget    *serverBudget
	// deniesPings is true while the server refuses pings even in new sessions, with a status that may be about the
	// session. Such a status then says nothing.
	deniesPings atomic.Bool
	// life ends all requests of the client, except for the last request of each session, which ends the session on the
	// server.
	life context.Context //nolint:containedctx // because it is the life of the connection, not of a call
	end  context.CancelFunc
	// changed holds an item if the server has reported a change of its tools.
	changed  chan struct{}
	watching sync.Once
	// running counts the goroutines of the client.
	running sync.WaitGroup

	mu         sync.Mutex
	session    *session
	connecting *connectAttempt
	failed     error     // the reason for the current pause
	retryAt    time.Time // the end of the current pause
	pause      *backoff.ExponentialBackOff
	listing    *Listing
	listed     time.Time // time of the last list, or zero if the tools have changed since
	asking     int       // number of callers that are listing the tools
	uses       int
	idle       *time.Timer
	retired    bool
	closed     bool
	ended      bool
}

// New returns a client. It sends nothing before its first use. The caller must call Close or Retire.
func New(cfg Config) *Client {
	if cfg.Idle == 0 {
		cfg.Idle = DefaultIdle
	}
	if cfg.Memory.MaxReservation() == 0 {
		cfg.Memory = processAccount
	}
	c := &Client{
		cfg: cfg, transport: netpolicy.Transport(cfg.Policy, cfg.ConnectTimeout, cfg.TLS),
		changed: make(chan struct{}, 1), pause: newPause(), budget: newServerBudget(),
	}
	c.transport.IdleConnTimeout = idleConnection
	c.http = &http.Client{Transport: &headers{base: netpolicy.NewBounded(c.transport), cfg: &c.cfg}, CheckRedirect: netpolicy.CheckRedirect}
	c.redactor = redact.New(append(Secrets(cfg.Token, cfg.Headers), cfg.Earlier...)...)
	c.life, c.end = context.WithCancel(c.withProcessors(context.Background()))
	return c
}

// withProcessors returns a context in which Config.Processors limits the processing of large responses.
func (c *Client) withProcessors(ctx context.Context) context.Context {
	return c.cfg.Processors.With(ctx, c.cfg.Namespace)
}

func newPause() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = firstBackoff, maxBackoff
	b.Reset()
	return b
}

// nextPause returns the pause after another failure.
func nextPause(b *backoff.ExponentialBackOff) time.Duration { return min(b.NextBackOff(), maxBackoff) }

// use marks the client as used until the returned function is called. It returns an error if the client was closed.
func (c *Client) use() (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.idle != nil {
		c.idle.Stop()
	}
	c.uses++
	return c.unuse, nil
}

func (c *Client) unuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.uses--; c.uses > 0 || c.closed {
		return
	}
	if c.retired {
		c.running.Go(c.finish)
		c.closed = true
		return
	}
	c.idle = time.AfterFunc(c.cfg.Idle, c.becomeIdle)
}

// becomeIdle ends the session of an unused client. The list of tools is kept.
func (c *Client) becomeIdle() {
	c.mu.Lock()
	unused := c.uses == 0 && !c.closed
	if unused {
		c.dropLocked(c.session)
	}
	c.mu.Unlock()
	if unused && c.cfg.OnIdle != nil {
		c.cfg.OnIdle()
	}
}

// Retire ends the client as soon as its current work is done. Retire itself does not wait.
func (c *Client) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired = true; c.uses == 0 && !c.closed {
		c.closed = true
		c.running.Go(c.finish)
	}
}

// Close cancels all work of the client and returns when the work has ended.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.finish()
	c.running.Wait()
}

// Ended reports whether a retired or closed client has released all its resources.
func (c *Client) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// finish releases the resources of a closed client.
func (c *Client) finish() {
	c.end()
	c.mu.Lock()
	if c.idle != nil {
		c.idle.Stop()
	}
	s := c.session
	c.session = nil
	c.mu.Unlock()
	if s != nil {
		s.close()
	}
	c.transport.CloseIdleConnections()
	c.mu.Lock()
	c.ended, c.listing = true, nil // a reference to an ended client must not keep its list in memory
	c.mu.Unlock()
}

// isProtocol reports whether a header belongs to the protocol. Only the client may set such headers.
func isProtocol(name string) bool {
	switch name = http.CanonicalHeaderKey(name); name {
	case "Accept", "Accept-Encoding", "Content-Type", "Content-Length", "Transfer-Encoding", http.CanonicalHeaderKey(lastEventIDHeader):
		return true
	}
	return strings.HasPrefix(name, "Mcp-")
}

// headers is a transport that adds the configured headers to each request.
type headers struct {
	base *netpolicy.Bounded
	cfg  *Config
}

// RoundTrip sends a request.
func (h *headers) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	for _, header := range h.cfg.Headers {
		if isProtocol(header.Name) {
			continue
		}
		out.Header.Set(header.Name, header.Value)
		switch http.CanonicalHeaderKey(header.Name) {
		case "Idempotency-Key", "X-Idempotency-Key":
			out.GetBody = nil // with GetBody and such a header, net/http may repeat a call
		}
	}
	if h.cfg.Token != "" {
		out.Header.Set("Authorization", "Bearer "+h.cfg.Token)
	}
	netpolicy.AskPlain(out)
	return h.base.RoundTrip(out)
}
